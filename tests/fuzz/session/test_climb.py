"""fuzz/session/climb.py: cases near the best ones are drawn, and lead to better ones."""

from __future__ import annotations

import random
from statistics import mean

from judge_tools import FAKES

from fuzz.core.case import Case
from fuzz.session.climb import Climber, Recorded
from fuzz.session.draw import LONG_SHARD, Scores, climbs, drawer_of, explore
from fuzz.session.plan import Shard
from fuzz.session.settings import Settings
from fuzz.targets.registry import load

HONEST = load("fake.honest", FAKES)
DRAWN = drawer_of(HONEST, Settings(targets=("fake.honest",), size="small", files=FAKES))


def tokens(case: Case) -> Scores:
    """A score that no case is drawn for: tokens that are a multiple of three, over head dims."""
    p = case.problem
    return {"tokens": sum(n for n in (*p.lengths_q, *p.lengths_k) if n % 3 == 0) / p.dim}


def test_numbers_are_given_again_but_for_those_anew() -> None:
    first = Recorded(1)
    wanted = [first.randint(0, 10**6), first.choice(range(999)), first.random(), first.randbytes(3)]
    again = Recorded(2, first.given)
    assert wanted == [again.randint(0, 10**6), again.choice(range(999)), again.random(), again.randbytes(3)]
    assert DRAWN(Recorded(3, first.given)) == DRAWN(Recorded(3, first.given))
    other = Recorded(2, first.given, frozenset({len(first.given) - 1}))
    assert wanted[:3] == [other.randint(0, 10**6), other.choice(range(999)), other.random()]
    assert wanted[3] != other.randbytes(3)


def test_a_case_is_drawn_again_from_its_numbers() -> None:
    for number in range(30):
        first = Recorded(number)
        case = DRAWN(first)
        assert DRAWN(Recorded(1000 + number, first.given)) == case


def test_climbing_finds_larger_scores_than_drawing_alone() -> None:
    reached = {"climbing": [], "drawing": []}
    for seed in range(8):
        climber, draw = Climber(seed, DRAWN), random.Random(seed)
        best = 0.0
        for _ in range(300):
            climber.learn(scores := tokens(climber.draw()))
            best = max(best, scores["tokens"])
        reached["climbing"].append(best)
        reached["drawing"].append(max(tokens(DRAWN(draw))["tokens"] for _ in range(300)))
    assert mean(reached["climbing"]) > 1.3 * mean(reached["drawing"])


def test_a_climbing_shard_has_all_its_cases_however_they_score() -> None:
    shard = Shard("fake.honest", 0, 4 * LONG_SHARD, 5)
    assert climbs(shard)
    for scores in (tokens, lambda case: {"same": 1.0}, lambda case: {}):
        found: list[Case] = []

        def each(case: Case, scores=scores, found=found) -> Scores:
            found.append(case)
            return scores(case)

        explore(shard, DRAWN, each)
        assert len(found) == shard.cases and len({case.id for case in found}) > 0.6 * shard.cases


def test_the_same_scores_give_the_same_cases() -> None:
    shard, found = Shard("fake.honest", 0, LONG_SHARD, 5), []
    for _ in range(2):
        explore(shard, DRAWN, lambda case: found.append(case.id) or tokens(case))
    assert found[:LONG_SHARD] == found[LONG_SHARD:]
