"""Long block lists of nsa: what is drawn, and that an entry missing in lists that are made alone is found."""

from __future__ import annotations

import random

import pytest
import torch

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.core.script_call import ScriptError
from fuzz.generate.cases import drawer
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.native_sparse.problem import NativeSparse

pytest.importorskip("triton")
pytest.importorskip("cutlass")

ALONE = Case(
    "nsa",
    NativeSparse((700, 30), 2, 1, 16, "float16", "packed", 16, 3, 200, q_tile=128),
    Inputs(seed=3),
    {"run": False},
)
emulated = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")


@pytest.mark.parametrize("device", ["emulator", "cuda"])
def test_one_case_in_six_has_many_rows_of_lists_and_most_of_these_make_nothing_else(device):
    target = load("nsa", device=device)
    found = [drawer(target)(random.Random(seed)) for seed in range(600)]
    alone = [case for case in found if not target.runs(case)]
    assert 50 <= len(alone) <= 110
    assert all(refusal(target, case) is None for case in alone)
    rows = [case.problem.heads_q * len(case.problem.lengths) * -(-case.problem.len_q // 64) for case in alone]
    assert min(rows) > 32 and max(rows) > 1024
    assert all(target.expected_seconds(case) <= 10 for case in alone) or device == "cuda"


@pytest.mark.nightly
@emulated
@pytest.mark.compiled_triton
def test_lists_alone_are_right():
    verdict = execute(ALONE, load("nsa", device="emulator"), lambda phase, seconds: None)
    assert verdict.outcome == "pass" and "not run" in verdict.reason, verdict.findings


@pytest.mark.nightly
@emulated
@pytest.mark.compiled_triton
def test_an_entry_that_is_missing_in_lists_alone_is_found(monkeypatch):
    from fuzz.targets.nsa import lists_alone

    made = lists_alone.branch_lists
    monkeypatch.setattr(lists_alone, "branch_lists", lambda *given: made(*given[:2], _fewer(given[2]), given[3]))
    (finding,) = execute(ALONE, load("nsa", device="emulator"), lambda phase, seconds: None).findings
    assert finding.oracle == "block_lists" and "of the selected branch" in finding.message


def _fewer(selection):
    from kernels.nsa.selection import Selection

    return Selection(selection.blocks[..., :-1].contiguous(), selection.groups)


def test_there_is_no_script_of_lists_alone():
    with pytest.raises(ScriptError, match="block lists alone"):
        load("nsa", device="emulator").script_call(ALONE)


def test_lists_alone_are_of_calls_of_both_layouts():
    from fuzz.targets.nsa.lists_alone import calls_of, other_layout

    calls = list(calls_of(ALONE, "", "cpu"))
    made = {(call.packed, call.settings.tile, call.settings.causal) for call in calls}
    assert {(packed, tile, causal) for packed in (False, True) for tile in (64, 128) for causal in (0, 1, 2)} <= made
    padded = other_layout(ALONE.problem)
    assert (padded.lengths, padded.layout) == ((700, 700), "padded")
    packed = other_layout(padded)
    assert packed.layout == "packed" and (packed.heads_q, packed.heads_kv) == (1, 1)
    for tile in (64, 128):  # rows that sequences end before: one of each 16
        assert {n // tile // 16 for n in packed.lengths if n % tile == 0 and n // tile < 128} == set(range(8))
