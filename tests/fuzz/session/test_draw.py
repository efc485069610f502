"""fuzz/session/draw.py: which cases a shard has, and who draws them."""

from __future__ import annotations

import pytest
from judge_tools import FAKES, PLAIN

from fuzz.core.case import Case
from fuzz.session import draw
from fuzz.session.draw import CLIMBING_EACH, LONG_SHARD, Scores, Stop, climbs, drawer_of, explore
from fuzz.session.plan import Shard
from fuzz.session.settings import Settings
from fuzz.targets.registry import load

HONEST = load("fake.honest", FAKES)
WANTED = Settings(targets=("fake.honest",), size="small", files=FAKES)


def cases(shard: Shard, first: tuple[Case, ...] = ()) -> list[str]:
    found: list[str] = []

    def each(case: Case) -> Scores:
        found.append(case.id)
        return {}

    explore(shard, drawer_of(HONEST, WANTED), each, first)
    return found


def test_one_long_shard_in_four_climbs() -> None:
    shards = [Shard("fake.honest", index, LONG_SHARD, 1) for index in range(8)]
    assert [climbs(shard) for shard in shards] == [index % CLIMBING_EACH == 0 for index in range(8)]
    assert not climbs(Shard("fake.honest", 0, LONG_SHARD - 1, 1))


def test_a_long_shard_is_drawn_without_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "_by_hypothesis", None)
    shard = Shard("fake.honest", 1, LONG_SHARD, 7)
    found = cases(shard)
    assert len(found) == LONG_SHARD and len(set(found)) > 0.95 * LONG_SHARD
    assert cases(shard) == found
    assert set(cases(Shard("fake.honest", 1, LONG_SHARD, 8))).isdisjoint(found)


def test_first_cases_take_the_places_of_those_drawn() -> None:
    shard = Shard("fake.honest", 1, LONG_SHARD, 7)
    first = (Case("fake.honest", PLAIN),)
    found = cases(shard, first)
    assert found[: len(first)] == [case.id for case in first]
    assert found[len(first) :] == cases(shard)[len(first) :]


def test_a_long_shard_ends_where_no_more_cases_are_taken() -> None:
    met: list[Case] = []

    def each(case: Case) -> Scores:
        if len(met) == 3:
            raise Stop
        met.append(case)
        return {}

    explore(Shard("fake.honest", 1, LONG_SHARD, 7), drawer_of(HONEST, WANTED), each)
    assert len(met) == 3
