"""Choices of blocks that are made alone: what is drawn, and that one wrong block is found."""

from __future__ import annotations

import random

import pytest
import torch

from fuzz.core.case import Case, Inputs
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.native_sparse.problem import NativeSparse

pytest.importorskip("triton")
pytest.importorskip("cutlass")

ALONE = Case("nsa", NativeSparse((700, 30), 2, 1, 16, "float16", "packed", 128, 3, 200), Inputs(seed=3), {"run": False})


def test_there_are_two_problems_for_each_kernel_of_33_to_64_blocks():
    from fuzz.targets.nsa.choice_alone import problems_of

    found = [problem for seed in range(8) for problem in problems_of(ALONE, random.Random(seed))]
    assert len({(p.layout, p.causal) for p in found}) == 6 and len(found) == 8 * 12
    assert all(33 <= -(-p.len_q // p.compress_block_size) <= 64 for p in found)
    assert {p.num_selected_blocks > 30 for p in found} == {True, False}


def test_scores_are_equal_in_some_rows_and_neighbours_in_others():
    from fuzz.targets.nsa.choice_alone import problems_of, scores
    from fuzz.targets.nsa.lists_alone import operands_of

    problem = next(problems_of(ALONE, random.Random(1)))
    rows = scores(operands_of(problem, "", "cpu"), 5).flatten(0, 2)
    numbers = [row.unique() for row in rows]
    assert sum(len(row) <= 3 for row in numbers) > len(rows) / 6
    assert sum(0 < float(row.max() - row.min()) < 1e-5 for row in numbers) > len(rows) / 6
    assert sum(len(row) == rows.shape[1] for row in numbers) > len(rows) / 6


def test_the_right_choice_is_of_the_largest_and_of_equal_ones_the_first():
    from fuzz.targets.nsa.choice_alone import right_choice
    from fuzz.targets.nsa.lists_alone import operands_of

    problem = NativeSparse((130, 64), 1, 1, 16, "float16", "packed", 16, 3, 1, q_tile=64)
    score = torch.tensor([0.0, 1.0, -0.0, 2.0, 0.0, 3.0, 3.0, 3.0, 3.0]).expand(2, 1, 3, 9).contiguous()
    chosen = right_choice(operands_of(problem, "", "cpu"), score)[:, 0].tolist()
    assert chosen == [[[0, 1, 3], [5, 6, 7], [5, 6, 7]], [[0, 1, 3], [-1] * 3, [-1] * 3]]


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
@pytest.mark.compiled_triton
def test_a_choice_that_is_wrong_in_one_place_is_found(monkeypatch):
    from fuzz.targets.nsa import choice_alone, lists_alone

    monkeypatch.setattr(lists_alone, "check", lambda *given: [])
    target = load("nsa", device="emulator")
    assert execute(ALONE, target, lambda phase, seconds: None).outcome == "pass"
    made = choice_alone._chosen
    monkeypatch.setattr(choice_alone, "_chosen", lambda *given: made(*given).index_fill(-1, torch.tensor([0]), 1))
    (finding,) = execute(ALONE, target, lambda phase, seconds: None).findings
    assert (finding.oracle, finding.kind) == ("selection", "blocks") and "not the largest" in finding.message
