"""The demonstration's history: it still loads, shows every state, and its site is complete."""

from __future__ import annotations

import lzma
from pathlib import Path

from fuzz.dashboard.build import build
from fuzz.dashboard.collect.site import collect
from fuzz.ledger.life import STATES
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.transfer import load

HISTORY = Path(__file__).parents[2] / "ci" / "demo" / "history.jsonl.xz"


def test_the_demonstration_shows_every_state_and_says_what_is_new(tmp_path: Path) -> None:
    plain = tmp_path / "history.jsonl"
    plain.write_bytes(lzma.decompress(HISTORY.read_bytes()))
    with Ledger(str(tmp_path / "ledger.sqlite")) as ledger:
        assert load(ledger, str(plain)) == 37
        site = collect(ledger)
    assert {bug.state for bug in site.signatures} == set(STATES)
    news = site.news
    assert news.new and news.regressed and news.fixed and news.environment
    assert any(bug.kind == "hang" and bug.archs[0].startswith("emulated-") for bug in site.signatures)
    assert {one.group for one in site.performance.series} == {"kernel", "benchmark", "scoreboard"}
    assert any(one.cached for one in site.nights.throughput) and any(one.hang_seconds for one in site.nights.throughput)
    assert build(site, tmp_path / "site") < 3_000_000


def test_it_is_small_and_names_no_folder_of_the_machine_that_made_it() -> None:
    assert HISTORY.stat().st_size < 300_000
    text = lzma.decompress(HISTORY.read_bytes()).decode()
    assert not [word for word in ("/root", "/home/", "/work/") if word in text]
