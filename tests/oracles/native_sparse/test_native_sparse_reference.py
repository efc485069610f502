"""The reference: gradients against differences, branches against attention, edges that the definition names."""

from __future__ import annotations

import pytest
import torch

from oracles.masks import Causal, Window
from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.reference import Part, answer, parts, reference
from oracles.native_sparse.selection import true_selection
from oracles.problem import Problem
from oracles.reference.attention import reference as attention


def made(p, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = p.shapes()
    names = ("q", "k", "v", "do", *p.weights)
    return {n: torch.randn(shape[n], generator=generator, dtype=torch.float64) for n in names}


def one_hot(p, given, branch):
    """Gates that are 1 for one branch and 0 for the others: the first element of every query is 1, and decides."""
    q, weight = given["q"].clone(), torch.zeros(p.shapes()["w_gate"], dtype=torch.float64)
    q[..., 0] = 1.0
    weight[:, :, 0] = -1000.0
    weight[:, branch, 0] = 1000.0
    return given | {"q": q, "w_gate": weight}


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [True, "strict"])
def test_gradients_agree_with_differences(causal):
    p = NativeSparse(
        (256,), 2, 1, 32, "float32", compress_block_size=32, num_selected_blocks=2, window_size=48, q_tile=64,
        causal=causal, w_k=True, w_v=True, w_gate=True,
    )  # fmt: skip
    given = made(p)
    choices = true_selection(p, given)
    (part,) = parts(p, choices, torch.device("cpu"))
    names = ("q", "k", "v", "w_k", "w_v", "w_gate")
    leaves = [part.take(name, given[name]).clone().requires_grad_() for name in names]

    def of(*tensors):
        return answer(part, dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(of, leaves, fast_mode=True)


@pytest.mark.parametrize(
    ("causal", "mask"), [(True, Window(39, 0)), (False, Window(20, 20)), ("strict", Window(39, 0))]
)
def test_a_gate_of_one_leaves_the_window_branch(causal, mask):
    p = NativeSparse((150, 60), 4, 2, 16, "float32", "packed", window_size=40, causal=causal, q_tile=64, w_gate=True)
    given = one_hot(p, made(p), 2)
    same = Problem(p.lengths, p.lengths, 4, 2, 16, 16, "float32", "packed", mask)
    right = attention(same, given["q"], given["k"], given["v"], do=given["do"])
    found = reference(p, given)
    for name in ("o", "dk", "dv"):
        torch.testing.assert_close(getattr(found, name), getattr(right, name))


def test_all_blocks_selected_is_causal_attention():
    p = NativeSparse(
        (150,), 2, 1, 16, "float32", compress_block_size=16, num_selected_blocks=10, q_tile=64, w_gate=True
    )
    given = one_hot(p, made(p), 1)
    same = Problem((150,), (150,), 2, 1, 16, 16, "float32", mask=Causal())
    right = attention(same, given["q"], given["k"], given["v"])
    torch.testing.assert_close(reference(p, given).o, right.o)


def test_a_row_sees_the_block_that_it_is_in_unless_strict():
    p = NativeSparse((40,), 1, 1, 16, "float32", compress_block_size=16, q_tile=64, w_gate=True)
    given = one_hot(p, made(p), 0)
    mean = given["v"][0, 0, :16].mean(0)
    torch.testing.assert_close(reference(p, given).o[0, 0, 3], mean)
    strict = reference(p.edited(causal="strict"), given).o[0, 0]
    assert not strict[:15].any()
    torch.testing.assert_close(strict[15], mean)
    last = reference(p.edited(causal=False, num_selected_blocks=1), given | {"v": given["v"] * 0 + 1}).o
    torch.testing.assert_close(last, torch.ones_like(last))  # the last block's mean is over its own 8 tokens


def test_sequences_do_not_see_one_another():
    p = NativeSparse((70, 0, 131), 2, 1, 16, "float32", "packed", compress_block_size=16, q_tile=64, w_k=True)
    given = made(p)
    whole = reference(p, given)
    rows = slice(70, 201)
    tensors = {n: given[n][rows].transpose(0, 1)[None] for n in ("q", "k", "v", "do")} | {"w_k": given["w_k"]}
    alone = reference(p.edited(lengths=(131,), layout="padded"), tensors)
    torch.testing.assert_close(whole.o[rows].transpose(0, 1)[None], alone.o)
    torch.testing.assert_close(whole.dk[rows].transpose(0, 1)[None], alone.dk)


def test_a_part_takes_its_own_heads():
    p = NativeSparse((5,), 4, 2, 8, "float32", w_gate=True)
    part = Part(p, 0, 1, (torch.ones(1),) * 3)
    weight = torch.arange(4)[:, None, None].expand(4, 3, 8)
    assert part.take("w_gate", weight)[:, 0, 0].tolist() == [2, 3]
