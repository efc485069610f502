"""A ledger as the site's values."""

from __future__ import annotations

from pathlib import Path

import dashboard_ledger as made
import pytest

from fuzz.dashboard.collect.site import collect
from fuzz.dashboard.model import SignatureItem, Site
from fuzz.ledger.ingest.write import write
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import Batch, SessionRow, TallyRow


def bug(site: Site, uid: str) -> SignatureItem:
    return next(one for one in site.signatures if one.uid == uid)


def test_news_name_what_came_came_back_and_went_since_the_night_before(site: Site) -> None:
    news = site.news
    assert (news.night, news.before) == (made.NIGHTS[3], made.NIGHTS[2])
    assert set(news.new) == {made.NEW.id, made.HANG.id}
    assert news.regressed == (made.BACK.id,)
    assert news.fixed == (made.GONE.id,)
    assert news.open == 5  # OLD, BACK, NEW, FLAKY, HANG; SAID is expected, GONE fixed


def test_news_name_versions_that_changed_and_drivers_and_compilers_stand_first(site: Site) -> None:
    changes = [(one.name, one.before, one.after) for one in site.news.environment]
    assert changes == [("revision", "2" * 40, "3" * 40), ("torch", "2.12.0", "2.13.0"), ("<b>triton", "3.2", "3.3")]
    assert site.news.environment[0].where == ("runner (host)",)


def test_the_first_night_has_no_night_before(tmp_path: Path) -> None:
    with Ledger(str(tmp_path / "l.sqlite")) as ledger:
        assert collect(ledger).news.night == ""
        made._night(ledger, 0, [made._found(made.OLD, 0)], torch="2.12.0")
        news = collect(ledger, made.FIRST + 7200).news
    assert (news.night, news.before, news.new, news.environment) == (made.NIGHTS[0], "", (made.OLD.id,), ())


def test_sessions_that_were_cut_off_are_counted(tmp_path: Path) -> None:
    with Ledger(str(tmp_path / "l.sqlite")) as ledger:
        made._night(ledger, 1, [], torch="2.12.0")  # plans 120 cases, runs 101
        assert collect(ledger).news.unfinished == 1


@pytest.mark.parametrize(("seconds", "took", "unfinished"), [(30, 29, 0), (30, 10, 1), (0, 29, 1), (30, None, 1)])
def test_a_session_whose_time_was_up_is_finished(tmp_path: Path, seconds: float, took: float | None, unfinished: int):
    ended = None if took is None else made.FIRST + took
    session = SessionRow(
        "a", made.FIRST, "n", ended, planned=9, settings={"seconds": seconds}, archs={made.MATH: "host"}
    )
    with Ledger(str(tmp_path / "l.sqlite")) as ledger:
        write(ledger, Batch(session, tallies=(TallyRow(made.MATH, "pass", 5, 1.0),)))
        assert collect(ledger).news.unfinished == unfinished


def test_a_signature_has_its_life_and_the_revisions_between_which_it_appeared(site: Site) -> None:
    back, new, old = bug(site, made.BACK.id), bug(site, made.NEW.id), bug(site, made.OLD.id)
    assert (back.state, new.state, old.state) == ("regressed", "new", "open")
    assert back.history[1].what.startswith("fixed") and "passed 10 times" in back.history[2].what
    assert new.appeared is not None and (new.appeared.good[0], new.appeared.bad[0]) == ("2", "3")
    assert old.appeared is not None and (old.appeared.good, old.appeared.bad[0]) == ("", "0")
    assert old.age == pytest.approx(3.5, abs=0.01)


def test_the_rate_has_an_interval_and_says_flaky(site: Site) -> None:
    flaky = bug(site, made.FLAKY.id)
    assert flaky.flaky and (flaky.failed, flaky.runs) == (2, 20)
    assert 0 < flaky.low < 0.1 < flaky.high < 0.5


def test_nights_of_a_signature_are_shares_of_its_targets_cases(site: Site) -> None:
    shares = dict(bug(site, made.BACK.id).nights)
    assert list(shares) == list(made.NIGHTS)
    assert list(shares.values()) == pytest.approx([5 / 90, 0, 0, 5 / 90], abs=1e-4)


def test_coverage_has_pairs_gaps_and_growth_without_options_of_targets(site: Site) -> None:
    found = site.coverage
    names = found.features
    pairs = {(names[a], names[b]): (cases, failed) for a, b, cases, failed in found.pairs}
    assert not any(name.startswith("variant:") for name in names)
    assert sum(cases for (a, b), (cases, _) in pairs.items() if {a, b} == {"gqa", "softcap"}) == 40
    assert "packed" in found.never
    assert [one.pairs for one in found.growth] == [2, 3, 3, 3]  # the option's pair counts too
    assert [one.cases for one in found.growth] == [100, 201, 301, 401]


def test_nights_have_seconds_lost_to_hangs_cache_and_flakes(site: Site) -> None:
    last = site.nights.throughput[-1]
    assert (last.hangs, last.hang_seconds, last.kernels, last.cached) == (2, 30.0, 8, 6)
    assert last.per_second == pytest.approx(last.cases / last.seconds, abs=1e-3)
    assert [(one.night, one.flakes) for one in site.nights.flakes if one.flakes] == [(made.NIGHTS[1], 1)]


def test_performance_has_kernels_and_benchmarks_with_their_change_points(site: Site) -> None:
    groups = {one.name: one for one in site.performance.series}
    assert [point.value for point in groups["sdpa on host"].points] == [0.1, 0.11, 0.12, 0.13]
    (shift,) = groups["blocksparse forward"].shifts
    assert (shift.index, shift.before, shift.after) == (8, 501.0, 451.0)
