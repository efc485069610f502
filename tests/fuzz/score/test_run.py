"""Trials end to end, with real kernels in real child processes; what is written down is not run again."""

from __future__ import annotations

import pytest

from fuzz.cli import main
from fuzz.score.run import ended, run
from fuzz.score.settings import Settings
from fuzz.score.trial import OURS

WANTED = Settings(pattern="sdpa!tail_keys_not_masked", seeds=1, cases=25, peer_seeds=1, peer_cases=3, minimize_runs=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("score")
    run(WANTED, place, 1)
    return place


def test_a_planted_bug_is_found_judged_by_peers_and_made_smaller(folder):
    ours = next(one for one in ended(folder) if one.trial.generator == "ours")
    assert (not ours.error and ours.found[OURS] == ours.run) or ours.run == 3
    assert ours.oracle.startswith(("accuracy", "exact", "metamorphic")) and not ours.alarms
    assert ours.smallest is not None and ours.case is not None
    assert ours.smallest.tokens <= sum(ours.case.problem.lengths_q) + sum(ours.case.problem.lengths_k)
    assert set(ours.asked) >= {"nsa", "flash-dmattn"}


def test_uniform_cases_have_a_trial_of_their_own(folder):
    assert [one.trial.cases for one in ended(folder) if one.trial.generator == "uniform"] == [3]


def test_what_is_there_is_not_run_again(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.glob("ended-*")}
    assert len(run(WANTED, folder, 1)) == 2
    assert {path: path.stat().st_mtime_ns for path in folder.glob("ended-*")} == before


def test_a_line_that_was_cut_off_is_left_out(folder, tmp_path):
    whole = next(folder.glob("ended-*")).read_bytes()
    (tmp_path / "ended-0.jsonl").write_bytes(whole[:-20])
    assert len(ended(tmp_path)) == 1


def test_a_folder_of_another_score_is_refused(folder):
    with pytest.raises(ValueError, match="other settings"):
        run(Settings(pattern="sdpa!tail_keys_not_masked"), folder, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--target-pattern", "nothing!*"], "no planted bug"),
        (["--picture", "a.jpeg", "--target-pattern", "sdpa!lse_in_log2"], ".svg"),
        (["--seeds", "0"], "seeds"),
    ],
)
def test_a_users_mistake_is_one_line(options, says, capsys):
    assert main(["score", *options]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_when_its_time_is_up_a_score_ends_by_itself_and_a_resume_goes_on(tmp_path):
    wanted = Settings(pattern="sdpa!falls_back", seeds=2, cases=25, peer_seeds=0, peer_cases=0, minimize_runs=0)
    assert run(wanted, tmp_path, 1, seconds=0.001) == []
    lines: list[str] = []
    assert [one.found for one in run(wanted, tmp_path, 1, progress=lines.append)] == [{OURS: 1}] * 2
    assert "2/2 trials · 1 of 1 bugs found · 2 cases" in lines[-1]
