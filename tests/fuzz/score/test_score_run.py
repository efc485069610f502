"""Trials end to end, with real kernels in real child processes; what is written down is not run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from covering import covering, nightly_unless

from fuzz.cli.main import main
from fuzz.score.run import ended, run
from fuzz.score.settings import Settings
from fuzz.score.trial import OURS

WANTED = Settings(
    pattern="sdpa!tail_keys_not_masked",
    seeds=1,
    cases=25,
    peer_seeds=1,
    peer_cases=3,
    minimize_runs=6,
    device="interpreter",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("score")
    run(WANTED, place, 1)
    return place


@pytest.mark.nightly
def test_a_planted_bug_is_found_judged_by_peers_and_made_smaller(folder):
    alone, ours = (one for one in ended(folder) if one.trial.generator == "ours")
    assert alone.trial.peers == 0 and ours.trial.peers == 3 and alone.found[OURS] == ours.found[OURS] == alone.run
    assert (not ours.error and ours.found[OURS] == ours.run) or ours.run == 3
    assert ours.oracle.startswith(("accuracy", "exact", "metamorphic")) and not ours.alarms
    assert ours.smallest is not None and ours.case is not None
    assert ours.smallest.tokens <= sum(ours.case.problem.lengths_q) + sum(ours.case.problem.lengths_k)
    assert set(ours.asked) >= {"nsa", "flash-dmattn"}


@pytest.mark.nightly
def test_uniform_cases_have_a_trial_of_their_own(folder):
    assert [one.trial.cases for one in ended(folder) if one.trial.generator == "uniform"] == [3]


@pytest.mark.nightly
def test_what_is_there_is_not_run_again(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.glob("ended-*")}
    assert len(run(WANTED, folder, 1)) == 3
    assert {path: path.stat().st_mtime_ns for path in folder.glob("ended-*")} == before


@pytest.mark.nightly
def test_a_line_that_was_cut_off_is_left_out(folder, tmp_path):
    whole = next(folder.glob("ended-*")).read_bytes()
    (tmp_path / "ended-0.jsonl").write_bytes(whole[:-20])
    assert len(ended(tmp_path)) == 2


@pytest.mark.nightly
def test_a_folder_of_another_score_is_refused(folder):
    with pytest.raises(ValueError, match="other settings"):
        run(Settings(pattern="sdpa!tail_keys_not_masked"), folder, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--filter", "nothing!*"], "no mutant"),
        (["--plot", "a.jpeg", "--filter", "sdpa!lse_in_log2"], ".svg"),
        (["--seeds", "0"], "seeds"),
        (["--add", "pyproject.toml"], "is no scoreboard"),
        (["--add", "ci/results/score_host.json", "--check"], "not together"),
    ],
)
def test_a_users_mistake_is_one_line(options, says, capsys):
    assert main(["mutation-score", *options]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may have it ignored
from fuzz.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


COMMANDS = ["mutation-score --seeds 1 --filter sdpa!*", "run --cases 5000 --target torch.sdpa.math"]


@pytest.mark.parametrize(
    ("command", "at"),
    [
        nightly_unless(not case.marks and case.values[1] == "workers start", *case.values)
        for case in covering(COMMANDS, ["modules are imported", "workers start"], strength=1)
    ],
)
def test_ctrl_c_in_the_first_seconds_is_one_line(tmp_path, command, at):
    """A terminal sends it to every process, also to those that still import their modules."""
    options = [*command.split(), "--output-dir", str(tmp_path / "made")]
    options += ["--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        if at == "workers start":
            written = "settings.json" if command.startswith("mutation-score") else "session.json"
            _wait_until(lambda: (tmp_path / "made" / written).exists() and _several_processes(process.pid))
        time.sleep(0.7)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in said and "interrupted" in said, said
    assert process.returncode == 130


def _several_processes(group: int) -> bool:
    """Whether workers were started: multiprocessing's own tracker is there too."""
    return sum(_group(path) == group for path in Path("/proc").glob("[0-9]*")) > 2


def _group(process: Path) -> int:
    with suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    return 0


def _wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.nightly
def test_when_its_time_is_up_a_score_ends_by_itself_and_a_resume_goes_on(tmp_path):
    wanted = Settings(
        pattern="sdpa!falls_back",
        seeds=2,
        cases=25,
        peer_seeds=0,
        peer_cases=0,
        minimize_runs=0,
        device="interpreter",
    )
    assert run(wanted, tmp_path, 1, seconds=0.001) == []
    told: list[tuple[int, int, str]] = []
    ended = run(wanted, tmp_path, 1, progress=lambda *what: told.append(what))
    assert [one.found for one in ended] == [{OURS: 1}] * 2
    assert told[-1] == (2, 2, "1 of 1 mutants found · 2 cases")


@pytest.mark.nightly
def test_what_a_bug_did_to_its_process_does_not_hide_it_from_the_next_seed(tmp_path):
    """The bug's cache is full after 32 passes, and then nothing leaks any more."""
    settings = Settings(
        pattern="sdpa!workspace_kept",
        seeds=2,
        cases=40,
        peer_seeds=0,
        keys=8,
        minimize_runs=0,
        device="interpreter",
    )
    assert [one.found.get(OURS, 0) > 0 for one in run(settings, tmp_path / "score", jobs=1)] == [True, True]
