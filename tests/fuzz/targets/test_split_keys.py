"""Keys in two calls: the answers of one call, gradients by way of LSE's included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.core.target import Tensors
from fuzz.targets import merge_by_lse
from fuzz.targets.sdpa import split_keys, target
from fuzz.targets.sdpa.target import BundledSdpa
from oracles.masks import Causal, Full, Intervals
from oracles.problem import Bias, Problem

LATE = Intervals((((0, 5),), ((3, 5),), (), ((0, 2),)))  # a row without keys, rows without keys in one of the halves
PROBLEM = Problem((4, 4), (5, 5), 2, 1, 8, 8, "float32", mask=LATE, bias=Bias(rows=True, cols=True, grad=True))
CASE = Case("sdpa", PROBLEM, Inputs(), {"keys": "split"})


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **said: Any
) -> tuple[Tensor, Tensor] | Tensor:
    """scaled_dot_product_attention in PyTorch, with LSE."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5 + (0.0 if attn_mask is None else attn_mask)
    most = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(most.isinf(), 0.0, most))
    total = weights.sum(-1, keepdim=True)
    there = torch.where(total == 0, 1.0, total)
    lse = torch.where(total == 0, -torch.inf, torch.where(most.isinf(), 0.0, most) + there.log())[..., 0]
    return (weights / there @ value, lse) if said["return_lse"] else weights / there @ value


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "kernel_of", lambda mutant: attention)


def answers(case: Case) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    given = Tensors(made(2, 2, 4, 8), made(2, 1, 5, 8), made(2, 1, 5, 8), made(2, 2, 4, 8), made(1, 1, 4, 5))
    found = BundledSdpa().run(case, given).outputs
    return {name: getattr(found, name) for name in ("o", "lse", "dq", "dk", "dv", "dbias")}


def test_two_calls_answer_as_one_does() -> None:
    split, whole = answers(CASE), answers(replace(CASE, variant={}))
    for name, answer in split.items():
        torch.testing.assert_close(answer, whole[name], atol=1e-6, rtol=1e-5, msg=name)
    assert bool((split["lse"][:, :, 2] == -torch.inf).all()) and not bool(split["o"][:, :, 2].any())


def test_gradients_are_wrong_where_lse_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = merge_by_lse.merged
    monkeypatch.setattr(merge_by_lse, "merged", lambda parts: merged([(o, lse.detach()) for o, lse in parts]))
    split, whole = answers(CASE), answers(replace(CASE, variant={}))
    wrong = {name for name in split if not torch.allclose(split[name], whole[name], atol=1e-6, rtol=1e-5)}
    assert wrong == {"dq", "dk", "dbias"}


def test_the_lines_of_a_script_answer_as_the_target_does() -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
    mask = torch.where(torch.rand(4, 5) < 0.5, 0.0, -torch.inf)
    names: dict[str, Any] = {"torch": torch, "attention": attention, "q": q, "k": k, "v": v, "m": mask}
    exec("\n".join(split_keys.text("attention", ["attn_mask=m"], [])), names)
    o, lse = merge_by_lse.merged([attention(q, *part, return_lse=True) for part in split_keys.parts_of(k, v, mask)])
    torch.testing.assert_close((names["o"], names["lse"]), (o, lse))


@pytest.mark.parametrize(
    ("problem", "inputs", "taken"),
    [
        (PROBLEM, Inputs(), True),
        (replace(PROBLEM, mask=Full(), bias=None), Inputs(), True),
        (replace(PROBLEM, dtype="bfloat16"), Inputs(), False),
        (replace(PROBLEM, mask=Causal(), bias=None), Inputs(), False),  # is_causal says nothing of the last keys
        (replace(PROBLEM, backward=False), Inputs(), False),
        (PROBLEM, Inputs(distribution="constant"), False),  # its sum is exact in one call
    ],
)
def test_what_can_be_split(problem: Problem, inputs: Inputs, taken: bool) -> None:
    case = replace(CASE, problem=problem, inputs=inputs)
    assert (refusal(BundledSdpa(), case) is None) == taken


def test_sessions_have_them() -> None:
    made = BundledSdpa()
    ways = made.variants_for(PROBLEM)
    assert 0.2 < ways.count({"keys": "split"}) / len(ways) < 0.4
    assert {"keys": "split"} not in made.variants_for(replace(PROBLEM, dtype="float16"))
