"""The board: medians, who finds what, the curve, the picture, and what the short form calls lost."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from fuzz.core.case import to_json
from fuzz.core.verdict import Verdict
from fuzz.score import regression_check
from fuzz.score.render import print_scoreboard
from fuzz.score.score_plot import plot
from fuzz.score.scoreboard import joined, make_scoreboard, survival
from fuzz.score.settings import Settings, Trial
from fuzz.score.trial import OURS, Ended, search
from fuzz.score.trial_plan import bugs, trials

WANTED = Settings(seeds=3, cases=100, peer_seeds=2, peer_cases=20)


def one(bug: str, seed: int, ours: int | None, *, generator: str = "ours", peers: int = 20, **theirs: int) -> Ended:
    found = {name.replace("_", "-"): n for name, n in theirs.items()} | ({OURS: ours} if ours else {})
    trial = Trial(bug, generator, seed, 100 if generator == "ours" else 20, peers)  # type: ignore[arg-type]
    run = max([n for n in (ours,) if n] or [trial.cases])
    asked = dict.fromkeys(("flash-attention", "nsa"), run)
    return Ended(
        trial, run, found, 2.0 * run, 1.0, "fail" if ours else "", "accuracy:wrong" if ours else "", asked=asked
    )


ENDED = [
    one("sdpa!a", 0, 3, flash_attention=5),
    one("sdpa!a", 1, 9),
    one("sdpa!a", 2, 5, peers=0),
    one("sdpa!b", 0, None),
    one("sdpa!b", 1, 40),
    one("sdpa!b", 2, None, peers=0),
    one("sdpa!c", 0, None),
    one("sdpa!a", 0, 7, generator="uniform"),
]


def test_medians_count_what_was_not_found():
    made = make_scoreboard(WANTED, ENDED)
    a, b, _ = made.bugs
    assert (a.found, a.trials, a.median, a.worst) == (3, 3, 5, 9)
    assert (b.found, b.trials, b.median, b.worst) == (1, 3, 101, 101)
    assert made.missed == ("sdpa!c",) and (made.found, made.mutants) == (2, 3)
    assert a.oracles == {"accuracy:wrong": 3} and a.seconds_median == 10.0


def test_rules_are_counted_only_where_they_looked_on():
    made = make_scoreboard(WANTED, ENDED)
    assert made.by["ours/ours"] == {"looked_for": 3, "found": 2}
    assert made.by["ours/flash-attention"] == {"looked_for": 3, "found": 1}
    assert made.by["uniform/ours"] == {"looked_for": 1, "found": 1}
    seen = next(s for s in made.bugs[0].seen if (s.generator, s.rule) == ("ours", "flash-attention"))
    assert seen.cases == (5, None) and seen.limits == (20, 20) and seen.counted == [5, 21]


def test_a_seed_that_is_judged_by_other_rules_too_counts_once():
    made = make_scoreboard(WANTED, [*ENDED[:3], one("sdpa!a", 0, 3, peers=0), one("sdpa!a", 1, 9, peers=0)])
    (bug,) = made.bugs
    assert (bug.trials, bug.median) == (3, 5)
    seen = {(s.generator, s.rule): s for s in bug.seen}
    assert sorted(seen["ours", OURS].seeds) == [0, 1, 2] and seen["ours", "flash-attention"].seeds == (0, 1)


def test_the_curve_falls_as_trials_find_their_bugs():
    x, y = survival(make_scoreboard(WANTED, ENDED[:3]), "ours", OURS)
    assert list(zip(x, y, strict=True)) == [(0, 1.0), (3, 2 / 3), (5, 1 / 3), (9, 0.0), (100, 0.0)]
    assert survival(make_scoreboard(WANTED, ENDED[:3]), "uniform", OURS) == ([], [])


def test_a_trial_that_could_not_run_is_an_error_and_no_miss():
    broken = Ended(Trial("sdpa!a", "ours", 0, 100), 0, {}, 0.0, 0.0, error="RunnerError: no child")
    made = make_scoreboard(WANTED, [broken, *ENDED[1:3]])
    assert made.bugs[0].trials == 2 and made.bugs[0].errors == ("RunnerError: no child",)


def test_two_scoreboards_joined_say_what_one_of_all_trials_says():
    first = make_scoreboard(WANTED, [one for one in ENDED if one.trial.bug == "sdpa!b"])
    rest = make_scoreboard(replace(WANTED, skip=("sdpa!b",)), [one for one in ENDED if one.trial.bug != "sdpa!b"])
    both = joined(first, rest)
    assert replace(both, machine={}) == replace(make_scoreboard(WANTED, ENDED), machine={})
    assert both.machine == first.machine | {"added": [rest.machine]}


def test_a_mutant_on_both_scoreboards_counts_as_the_added_one_says():
    old, new = make_scoreboard(WANTED, ENDED[3:6]), make_scoreboard(WANTED, ENDED[4:5])
    assert joined(old, new).bugs == new.bugs


def test_nothing_to_show_is_said():
    with pytest.raises(ValueError, match="no trial has ended"):
        make_scoreboard(WANTED, [])


def test_the_table_names_what_is_missed(capsys):
    print_scoreboard(make_scoreboard(WANTED, ENDED), Console(width=200))
    text = capsys.readouterr().out
    assert "missed: sdpa!c" in text and "2 of 3 mutants found" in text and "flash-attention" in text


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_picture_is_drawn_and_is_the_same_again(tmp_path, ending):
    pytest.importorskip("matplotlib")
    made = make_scoreboard(WANTED, ENDED)
    first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    plot(made, first)
    plot(made, second)
    assert first.read_bytes() == second.read_bytes() and first.stat().st_size > 5000


def test_the_picture_says_how_many_seeds_were_tried(tmp_path):
    pytest.importorskip("matplotlib")
    for ended, says in (
        (ENDED, "3 mutants, 1 to 3 seeds each; other lines: 2"),
        (ENDED[2:3], "1 mutants, 1 seed each"),
    ):
        plot(make_scoreboard(WANTED, ended), tmp_path / "a.svg")
        assert f"<!-- {says} -->" in (tmp_path / "a.svg").read_text()


def test_the_picture_says_after_how_many_cases_something_is_left(tmp_path):
    pytest.importorskip("matplotlib")
    made = make_scoreboard(WANTED, ENDED)
    plot(made, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for label, generator, rule in (("attnfuzz", "ours", OURS), ("NSA's rule, our cases", "ours", "nsa")):
        x, y = survival(made, generator, rule)
        assert f"<!-- {label}: {100 * y[-1]:.0f} % left after {x[-1]} cases -->" in drawn


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.svg"):
        plot(make_scoreboard(WANTED, ENDED), tmp_path / "a.jpeg")


def test_the_short_form_asks_for_what_the_committed_board_found(tmp_path):
    path = tmp_path / "score.json"
    path.write_text(to_json(make_scoreboard(WANTED, ENDED)))
    known, keys = regression_check.before(path)
    a, b = (
        regression_check.Known(9, seed=0, trials=3, seconds=6.6),
        regression_check.Known(101, seed=1, trials=3, seconds=79.6),
    )
    assert known == {"sdpa!a": a, "sdpa!b": b}  # as long as its cases, and compiling, take in all trials
    wanted = regression_check.short_settings(WANTED, known, keys)
    assert wanted.limits == {"sdpa!a": regression_check.LEAST, "sdpa!b": 606}
    assert wanted.seeds == 1 and not wanted.peer_seeds
    assert wanted.starts == {"sdpa!a": 0, "sdpa!b": 1}  # which took fewest cases
    assert regression_check.before(tmp_path / "none.json")[0] == {}


@pytest.mark.parametrize(
    ("worst", "trials", "limit"),
    [
        (1, 3, regression_check.LEAST),
        (30, 3, 180),
        (1, 2, regression_check.LEAST_OF_FEW),
        (166, 1, 996),
    ],
)
def test_a_rare_mutants_trial_may_have_many_times_the_cases_of_its_worst(worst, trials, limit):
    known = regression_check.Known(worst, seed=0, trials=trials, seconds=1.0)
    assert regression_check.limit_of(known) == limit


def test_a_trial_of_a_changed_generator_seldom_goes_beyond_the_limit():
    """NOTE [by chance] of the short form: beyond FACTOR times the worst of five."""
    draws = np.random.default_rng(0).geometric(1 / 50, (200_000, 6))
    beyond = draws[:, 5] > regression_check.FACTOR * draws[:, :5].max(axis=1)
    assert beyond.mean() == pytest.approx(1 / 462, rel=0.15)


def test_the_short_form_begins_with_what_takes_least_time():
    seconds = {"sdpa!lse_in_log2": 4.0, "sdpa!tail_keys_not_masked": 3.0, "sdpa!falls_back": 9.0}
    known = {name: regression_check.Known(1, seed=7, trials=1, seconds=n) for name, n in seconds.items()}
    wanted = regression_check.short_settings(Settings(pattern="sdpa!*"), known, 8)
    planned = trials(wanted)
    assert [one.bug for one in planned[:3]] == ["sdpa!tail_keys_not_masked", "sdpa!lse_in_log2", "sdpa!falls_back"]
    assert {one.seed for one in planned[:3]} == {7} and {one.seed for one in planned[3:]} == {0}


def test_where_time_is_short_the_short_form_begins_with_another_quarter_in_turn():
    known = {f"b{n}": regression_check.Known(1, seed=0, trials=1, seconds=n) for n in range(8)}
    assert regression_check.rotated(known, 0) == tuple(sorted(known))
    assert regression_check.rotated(known, 3) == ("b6", "b7", "b0", "b1", "b2", "b3", "b4", "b5")
    firsts = [regression_check.rotated(known, turn)[:2] for turn in range(9, 9 + regression_check.QUARTERS)]
    assert sorted(name for first in firsts for name in first) == sorted(known)
    few = {"a": known["b1"], "b": known["b0"]}
    assert all(set(regression_check.rotated(few, turn)) == set(few) for turn in range(5))


def test_only_who_looked_on_has_a_column(capsys):
    print_scoreboard(make_scoreboard(WANTED, [one("sdpa!a", 0, 3, peers=0)]), Console(width=80))
    text = capsys.readouterr().out
    assert "accuracy:wrong" in text and "dmatt" not in text and "Who finds" not in text
    print_scoreboard(make_scoreboard(WANTED, [*ENDED, one("sdpa!d", 0, None, generator="uniform")]), Console(width=200))
    text = capsys.readouterr().out
    assert "dmatt" in text and "Who finds" in text and "missed: sdpa!d" not in text


def test_what_is_not_found_again_or_fails_is_lost_and_what_had_no_time_is_told_alone():
    broken = Ended(Trial("sdpa!e", "ours", 0, 100), 0, {}, 0.0, 0.0, error="HarnessError: no")
    cut = replace(one("sdpa!d", 0, None), cut=True)
    lost = regression_check.lost(
        make_scoreboard(WANTED, [*ENDED, broken, cut]), ["sdpa!a", "sdpa!c", "sdpa!d", "sdpa!e", "sdpa!f"]
    )
    assert lost == regression_check.Lost(("sdpa!c",), {"sdpa!e": "HarnessError: no"}, ("sdpa!d", "sdpa!f")) and lost.bad
    assert regression_check.lost(make_scoreboard(WANTED, [*ENDED, cut]), ["sdpa!a", "sdpa!d"]) == regression_check.Lost(
        (), {}, ("sdpa!d",)
    )
    assert not regression_check.lost(make_scoreboard(WANTED, [*ENDED, cut]), ["sdpa!a", "sdpa!d"]).bad


def test_a_trial_that_was_cut_counts_only_where_it_found_its_bug(capsys):
    cut = [replace(one("sdpa!d", 0, None), cut=True), replace(one("sdpa!a", 3, 4), cut=True)]
    made = make_scoreboard(WANTED, [*ENDED, *cut])
    assert made.mutants == 3 and made.missed == ("sdpa!c",) and made.bugs[0].trials == 4
    print_scoreboard(made, Console(width=200))
    assert "sdpa!d" not in capsys.readouterr().out


def test_a_mutant_whose_trials_were_all_cut_has_no_row():
    cut = [replace(one("sdpa!d", seed, None), cut=True) for seed in (0, 1)]
    made = make_scoreboard(WANTED, [*ENDED, *cut])
    assert [bug.name for bug in made.bugs] == ["sdpa!a", "sdpa!b", "sdpa!c"]
    board = make_scoreboard(WANTED, ENDED[:3])
    both = joined(board, make_scoreboard(WANTED, [*ENDED[3:7], *cut]))
    assert [bug.name for bug in both.bugs] == ["sdpa!a", "sdpa!b", "sdpa!c"] and both.mutants == 3
    with pytest.raises(ValueError, match="no trial has ended"):
        make_scoreboard(WANTED, cut)


def test_a_mutant_whose_trial_could_not_run_has_a_row_with_the_error():
    broken = Ended(Trial("sdpa!e", "ours", 0, 100), 0, {}, 0.0, 0.0, error="RunnerError: no child")
    made = make_scoreboard(WANTED, [*ENDED, broken])
    assert made.bugs[-1].name == "sdpa!e" and made.bugs[-1].errors and not made.bugs[-1].trials


def test_no_case_begins_once_the_time_is_up():
    name = "sdpa!tail_keys_not_masked"
    target, passed = bugs(Settings(pattern=name))[name], []

    def run(case):
        passed.append(case)
        return Verdict(case.id, "pass")

    found = search(Trial(name, "ours", 0, 50), target, WANTED, run, run, lambda: len(passed) >= 3)
    assert found.run == 3 == len(passed) and found.cut
    whole = search(Trial(name, "ours", 0, 5), target, WANTED, run, run)
    assert whole.run == 5 and not whole.cut


def test_a_damaged_scoreboard_is_named(tmp_path):
    path = tmp_path / "score.json"
    path.write_text('{"bugs": 3}')
    with pytest.raises(ValueError, match=r"score\.json: is no scoreboard"):
        regression_check.before(path)


def test_false_alarms_of_a_rule_are_rates():
    noisy = replace(ENDED[1], theirs={"nsa": 2})
    assert make_scoreboard(WANTED, [noisy]).alarms["nsa"] == (2, 9)
