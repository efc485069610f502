"""The search over histories that are not real: thousands of them, so that the claimed probability can be counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from covering import daily

from fuzz.bisect.posterior import classes, clean_runs, linear, posterior
from fuzz.bisect.revisions import BisectError, History, Result, Revision, Untestable
from fuzz.bisect.search import Answer, Tried, search

GOOD = Revision("good")


@dataclass
class Memory:
    """A journal in memory."""

    tried: dict[str, Tried] = field(default_factory=dict)
    runs: int = 0

    def add(self, name: str, result: Result) -> None:
        tried = self.tried.setdefault(name, Tried())
        setattr(tried, result, getattr(tried, result) + 1)
        self.runs += 1

    def skip(self, name: str, why: str) -> None:
        self.tried.setdefault(name, Tried()).skipped = why


@dataclass
class Simulated:
    """Revisions that are bad from `first` on, and fail with probability `rate`."""

    history: History
    first: int
    rate: float
    random: Random
    broken: frozenset[str] = frozenset()
    otherwise: frozenset[str] = frozenset()

    @contextmanager
    def at(self, revision: Revision) -> Iterator[Callable[[], Result]]:
        if revision.name in self.broken:
            raise Untestable("does not import")
        bad = revision != GOOD and self.history.bad[self.first, self.history.revisions.index(revision)]
        failing: Result = "failed"

        def run() -> Result:
            if revision.name in self.otherwise:
                return "other"
            return failing if bad and self.random.random() < self.rate else "clean"

        yield run


def history(count: int) -> History:
    return History(GOOD, tuple(Revision(f"r{number}") for number in range(count)), linear(count))


def solve(count: int, first: int, rate: float, random: Random, **more) -> tuple[Answer, Memory, Simulated]:
    memory, simulated = Memory(), Simulated(history(count), first, rate, random, **more)
    return search(simulated.history, simulated, memory), memory, simulated


@pytest.mark.parametrize("rate", daily([1.0, 0.7, 0.3, 0.12], [1.0, 0.3]))
def test_the_claimed_probability_holds(rate: float) -> None:
    random, right, claimed, answered = Random(f"{rate}"), 0, 0.0, 0
    for _ in range(600):
        first = random.randrange(16)
        answer, _, simulated = solve(16, first, rate, random)
        assert answer.confident and answer.probability >= 0.99
        answered += 1
        claimed += answer.probability
        right += simulated.history.revisions[first] in answer.first
    wrong, expected = answered - right, answered - claimed
    assert wrong <= expected + 3 * math.sqrt(expected) + 1, f"{wrong} wrong, {expected:.1f} claimed"


def test_a_reliable_failure_takes_about_as_many_revisions_as_plain_bisection() -> None:
    random = Random(3)
    tried = [len(solve(64, random.randrange(64), 1.0, random)[1].tried) for _ in range(50)]
    assert np.mean(tried) <= math.log2(64) + 3


def test_every_first_revision_is_found() -> None:
    for first in range(9):
        answer, _, simulated = solve(9, first, 1.0, Random(1))
        assert answer.first == (simulated.history.revisions[first],)


def test_revisions_that_cannot_run_are_skipped_and_stay_suspects() -> None:
    answer, memory, _ = solve(12, 6, 1.0, Random(1), broken=frozenset({"r5", "r6"}))
    assert [one.name for one in answer.first] == ["r5", "r6", "r7"]
    assert answer.confident and "import" in memory.tried["r6"].skipped


def test_a_skipped_revision_far_from_the_bug_does_not_blur_the_answer() -> None:
    answer, _, _ = solve(12, 3, 1.0, Random(1), broken=frozenset({"r9"}))
    assert [one.name for one in answer.first] == ["r3"]


def test_a_revision_that_fails_otherwise_says_nothing() -> None:
    answer, memory, _ = solve(12, 6, 1.0, Random(1), otherwise=frozenset({"r5"}))
    assert [one.name for one in answer.first] == ["r5", "r6"]
    assert memory.tried["r5"].failed == 0


def test_a_failure_that_does_not_show_or_shows_at_the_good_revision_is_said() -> None:
    with pytest.raises(BisectError, match="does not fail in 500 runs"):
        solve(4, 0, 0.0, Random(1))
    memory = Memory({"good": Tried(failed=1)})
    with pytest.raises(BisectError, match="fails already"):
        search(history(4), Simulated(history(4), 2, 1.0, Random(1)), memory)


def test_few_runs_a_revision_end_without_the_confidence() -> None:
    memory, simulated = Memory(), Simulated(history(8), 3, 0.3, Random(5))
    memory.tried["r7"] = Tried(failed=6, clean=14)
    answer = search(simulated.history, simulated, memory, most_runs=2)
    assert not answer.confident and 0 < answer.probability < 0.99


def test_a_search_goes_on_with_what_its_journal_has() -> None:
    answer, whole, simulated = solve(16, 6, 1.0, Random(2))
    cut = Memory(dict(list(whole.tried.items())[:3]))
    assert search(simulated.history, simulated, cut).first == answer.first
    assert cut.runs < whole.runs
    again = Memory(whole.tried)
    assert search(simulated.history, simulated, again) == answer and again.runs == 0


def test_branches_are_told_apart() -> None:
    # 0 - 1 - 2 - 5, and 0 - 3 - 4 - 5: a bug of 3 is in 3, 4 and 5 alone
    ancestors = {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 3}, 4: {0, 3, 4}, 5: {0, 1, 2, 3, 4, 5}}
    bad = np.array([[f in ancestors[r] for r in range(6)] for f in range(6)])
    made = History(GOOD, tuple(Revision(f"r{n}") for n in range(6)), bad)
    for first in range(6):
        answer = search(made, Simulated(made, first, 1.0, Random(1)), Memory())
        assert [one.name for one in answer.first] == [f"r{first}"]


def test_contradicting_runs_are_an_error() -> None:
    with pytest.raises(ValueError, match="contradict"):
        posterior(np.eye(3, dtype=bool), np.array([1, 1, 0]), np.zeros(3, dtype=int))


def test_clean_runs_follow_the_formula_where_the_rate_is_well_known() -> None:
    for rate in (0.1, 0.3, 0.5):
        known = clean_runs(round(20_000 * rate), round(20_000 * (1 - rate)), 0.005, 1000)
        assert known == pytest.approx(math.ceil(math.log(0.005) / math.log(1 - rate)), abs=1)
    assert clean_runs(5, 0, 0.005, 1000) <= 3
    assert clean_runs(1, 19, 0.005, 50) == 50


def test_revisions_between_which_nothing_runs_are_one_class() -> None:
    testable = np.array([True, False, False, True])
    assert classes(linear(4), testable) == [[0], [1, 2, 3]]
