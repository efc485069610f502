"""Nested rows, which Hopper's forward kernel takes in pairs: in sessions, in block lists, in verdicts."""

from __future__ import annotations

from typing import Any

import pytest
from covering import nightly_unless
from needs import needs_emulator

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.generate.kernel_turns import variants_of
from fuzz.judging.judge import execute
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.catalog import CLASSES
from fuzz.targets.blocksparse.target import BlockSparseTarget
from fuzz.targets.blocksparse.variants import kernel_choices
from fuzz.targets.registry import load
from oracles.masks import Causal, Full, Window
from oracles.problem import Problem

NESTED: dict[str, Any] = {"mask": "band", "nested": True, "deterministic": False}


def causal(len_q: int = 300, len_k: int = 400, dtype: Any = "float16", dim: int = 128, **more: Any) -> Problem:
    return Problem((len_q,) * 2, (len_k,) * 2, 2, 1, dim, dim, dtype, **{"mask": Causal()} | more)


@pytest.mark.parametrize("emulated", [True, False])
def test_sessions_draw_nested_rows_where_rows_come_in_pairs(emulated: bool) -> None:
    """Few problems that are drawn have such rows: ci/check_long_rows.py draws no others."""
    target = CLASSES["emulator" if emulated else "cuda"]()
    nested = [one for one in target.variants_for(causal()) if one.get("nested")]
    assert {one["lists"] for one in nested} == {"csr", "padded", "compact"}
    assert all(one.get("products") == ("wgmma" if emulated else None) for one in nested)
    for other in (causal(128), causal(dtype="bfloat16"), causal(mask=Window(100, 0)), causal(layout="packed")):
        assert not any(one.get("nested") for one in target.variants_for(other))


def test_a_turn_of_the_same_choice_of_a_gpu_has_nested_rows_too() -> None:
    drawn = CLASSES["cuda"]().variants_for(causal())
    turns = [variants_of(choice, drawn) for choice in kernel_choices(emulated=False) if choice.dtype == "float16"]
    assert any({bool(one.get("nested")) for one in mine} == {False, True} for mine in turns if mine != drawn)


def test_a_choice_of_nested_rows_costs_one_forward_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CLASSES["cuda"]()
    monkeypatch.setattr(target, "arch", lambda: "sm_90a")
    drawn = [one for one in target.variants_for(causal()) if one.get("nested")]
    assert drawn and not any("keys" in one for one in drawn)
    for one in drawn:
        planned = target.planned(Case("blocksparse", causal(), variant=one))
        plain = target.planned(Case("blocksparse", causal(), variant=one | {"nested": False}))
        (new,) = planned - plain
        assert new.startswith("forward_") and "nested" in new


def test_lists_say_what_the_case_says() -> None:
    for nested in (True, False):
        case = Case("blocksparse", causal(), variant=NESTED | {"nested": nested, "lists": "padded"})
        assert blocks_of(case).forward.nested == nested and BlockSparseTarget().inspect(case) == []


@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (causal(mask=Window(100, 0)), NESTED),
        (causal(), NESTED | {"mask": "bits"}),
        (causal(mask=Full()), NESTED | {"mask": "none"}),
        (causal(), NESTED | {"keys": "split"}),
    ],
)
def test_other_masks_are_refused(problem: Problem, variant: dict[str, Any]) -> None:
    assert "nested rows" in str(refusal(BlockSparseTarget(), Case("blocksparse", problem, variant=variant)))
    assert refusal(BlockSparseTarget(), Case("blocksparse", causal(mask=Full()), variant=NESTED)) is None


@needs_emulator
@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (causal(backward=False), {}),
        nightly_unless(False, causal(mask=Causal("bottom_right"), dtype="bfloat16"), {"slots": 1, "lists": "compact"}),
        nightly_unless(False, causal(520, 300, dtype="bfloat16", softcap=20.0), {"warps": "starve_oldest"}),
        nightly_unless(False, causal(300, 300, dim=256), {"tile_n": 64}),
        nightly_unless(False, causal(mask=Full()), {"warps": "random", "seed": 3}),
    ],
)
def test_nested_rows_are_right_on_the_emulated_gpu(problem: Problem, variant: dict[str, Any]) -> None:
    case = Case("blocksparse", problem, Inputs(seed=1), NESTED | {"products": "wgmma"} | variant, repeats=2)
    verdict = execute(case, load("blocksparse"), lambda phase, limit: None)
    assert verdict.outcome == "pass", (verdict.reason, verdict.findings)
    assert "nested" in verdict.kernel
