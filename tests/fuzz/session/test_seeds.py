"""The cases of a seed stay: a session draws what the committed list of 300 case ids and outcomes has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import Settings, plan
from fuzz.session.records import Reader
from fuzz.session.worker import run
from fuzz.targets.registry import load

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = json.loads((ROOT / "ci/results/session_300_host.json").read_text())
SETTINGS = Settings(targets=tuple(sorted({shard.rsplit("-", 1)[0] for shard in COMMITTED["shards"]})))


def targets_here() -> tuple[str, ...]:
    return tuple(name for name in SETTINGS.targets if load(name).missing() is None)


@pytest.mark.parametrize("name", ["blocksparse-0", "sdpa-2", "torch.flex-2", "torch.sdpa.math-2"])
def test_a_seed_draws_the_cases_that_it_drew_when_the_list_was_made(name):
    drawn: list[str] = []
    (shard,) = (shard for shard in plan(SETTINGS) if shard.name == name)
    target = load(shard.target)
    drawer = drawer_of(target, SETTINGS, shard)
    explore(shard, drawer, lambda case: drawn.append(case.id), seed_cases(shard, target, SETTINGS))
    assert drawn == [line.split()[0] for line in COMMITTED["shards"][name]]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif(targets_here() != SETTINGS.targets, reason="needs every target of the committed list")
def test_a_session_has_the_outcomes_that_it_had_when_the_list_was_made(tmp_path):
    settings = Settings(targets=SETTINGS.targets, folder=str(tmp_path), corpus=str(ROOT / "corpus/regressions"))
    assert run(settings, plan(settings), "w0") == []
    outcomes: dict[str, list[str]] = {}
    for record in Reader(tmp_path).new():
        outcomes.setdefault(record.shard, []).append(f"{record.case_id} {record.outcome}")
    assert outcomes == COMMITTED["shards"]
