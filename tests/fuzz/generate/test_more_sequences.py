"""fuzz/generate/more_sequences.py: packed cases whose sequences are cut into several."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.generate.cases import SMALL, drawer
from fuzz.generate.more_sequences import MANY, cut, with_more_sequences
from fuzz.targets.registry import load
from oracles.masks import Causal, Full, Window
from oracles.problem import Problem

TARGETS = ("blocksparse", "torch.nn.attention.varlen")


def drawn(name: str, count: int) -> list[tuple[Case, Case]]:
    """Cases, and the same ones after they may have been cut."""
    target, draw = load(name), random.Random(3)
    one = drawer(target, SMALL, 2)
    return [(case, cut(target, case)) for case in (one(draw) for _ in range(count))]


@pytest.mark.parametrize("name", TARGETS)
def test_a_case_that_is_cut_has_the_rows_of_the_one_that_was_drawn(name: str) -> None:
    target, least = load(name), 0 if load(name).support.zero_lengths else 1
    pairs = drawn(name, 400)
    changed = [(before, after) for before, after in pairs if before != after]
    assert len(changed) > 10
    for before, after in changed:
        old, new = before.problem, after.problem
        assert isinstance(old, Problem) and isinstance(new, Problem) and new.layout == "packed"
        assert isinstance(new.mask, Full | Causal | Window) and new.bias is None
        assert sum(new.lengths_q) == sum(old.lengths_q) and sum(new.lengths_k) == sum(old.lengths_k)
        assert len(new.lengths_q) >= 3 and min(new.lengths_q + new.lengths_k) >= least
        assert (new.lengths_q == new.lengths_k) == (old.lengths_q == old.lengths_k) or len(set(new.lengths_q)) == 1
        assert structs.replace(after, problem=old) == before and refusal(target, after) is None


def test_some_have_more_sequences_than_a_warp_has_lanes_and_lengths_that_differ_by_much() -> None:
    counts = [len(after.problem.lengths_q) for before, after in drawn("blocksparse", 1500) if before != after]
    assert counts.count(MANY) >= 2 and {3, 4, 5, 6, 8} <= set(counts)
    lengths = [after.problem.lengths_q for before, after in drawn("blocksparse", 600) if before != after]
    assert sum(max(of) > 4 * sorted(of)[len(of) // 2] for of in lengths) > len(lengths) / 4


def test_it_follows_from_the_case_alone_and_is_part_of_a_sessions_draws() -> None:
    target = load("blocksparse")
    one = with_more_sequences(target, drawer(target, SMALL, 2))
    first, again = ([one(draw) for _ in range(60)] for draw in (random.Random(3), random.Random(3)))
    assert first == again and first == [after for _, after in drawn("blocksparse", 60)]


@pytest.mark.parametrize(
    "problem",
    [
        Problem((100, 50), (100, 50), 2, 1, 64, 64, "float16"),  # padded
        Problem((1,), (1,), 2, 1, 64, 64, "float16", layout="packed"),  # nothing to cut
    ],
)
def test_others_stay(problem: Problem) -> None:
    target = load("blocksparse")
    for seed in range(20):
        case = Case("blocksparse", structs.replace(problem, scale=1.0 + seed))
        assert cut(target, case) is case
