"""A bias per KV head: the same as one per query head whose values repeat, and its gradient is their sum."""

import pytest
import torch
from msgspec.structs import replace

from oracles.accuracy import judge
from oracles.error_budget.same_precision import same_precision
from oracles.masks import TopK
from oracles.metamorphic.permutations import take_heads
from oracles.numerics import EXACT
from oracles.outputs import Outputs
from oracles.problem import Bias, Problem, mask_tile, shapes
from oracles.reference.attention import reference

PROBLEM = Problem((5, 3), (7, 2), 4, 2, 8, 8, "float32", mask=TopK(3), bias=Bias(kv_heads=True))


def tensors_of(problem):
    generator = torch.Generator().manual_seed(0)
    return {n: torch.randn(shapes(problem)[n], generator=generator) for n in ("q", "k", "v", "do", "bias")}


@pytest.mark.parametrize("rows", [False, True])
def test_it_is_one_per_query_head_with_repeated_values(rows):
    problem = replace(PROBLEM, bias=Bias(kv_heads=True, rows=rows))
    given = tensors_of(problem)
    found = reference(problem, **given)
    by_query = replace(problem, bias=Bias(heads=True, rows=rows))
    wanted = reference(by_query, **given | {"bias": given["bias"].repeat_interleave(2, 1)})
    assert torch.equal(found.o, wanted.o) and torch.equal(found.dk, wanted.dk)
    torch.testing.assert_close(found.dbias, wanted.dbias.unflatten(1, (2, 2)).sum(2))


def test_a_gradient_that_is_not_summed_over_the_group_is_wrong():
    given = tensors_of(PROBLEM)
    right = reference(PROBLEM, **given)
    names = ("o", "lse", "dq", "dk", "dv", "dbias")
    outputs = Outputs(**{n: getattr(right, n).float() for n in names})
    same = same_precision(PROBLEM, **given, numerics=EXACT)
    assert not judge(PROBLEM, outputs, right, same).findings
    halved = Outputs(**{n: getattr(outputs, n) * (0.5 if n == "dbias" else 1.0) for n in names})
    assert {finding.tensor for finding in judge(PROBLEM, halved, right, same).findings} == {"dbias"}


def test_permuted_heads_keep_their_selection():
    other, _ = take_heads(PROBLEM, tensors_of(PROBLEM), [2, 3, 0, 1], [1, 0])
    for b, (n_q, n_k) in enumerate(zip(PROBLEM.lengths_q, PROBLEM.lengths_k, strict=True)):
        for at, head in enumerate((2, 3, 0, 1)):
            tiles = (mask_tile(p, b, h, (0, n_q), (0, n_k), "cpu") for p, h in ((other, at), (PROBLEM, head)))
            assert torch.equal(*tiles)
