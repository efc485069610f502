"""A night: its budget, its state, what becomes of stages that are cut off, its plan and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import msgspec
import pytest
from ledger_sessions import SessionFolder
from planted_history import CAP, FILE, git, planted

from ci.nightly import __main__ as nightly
from ci.nightly import passed, stages, state, summary
from ci.nightly.budget import Budget, Round
from ci.nightly.options import Options, parse
from ci.nightly.stages import NAMES, Stage
from ci.nightly.state import Done, Kept, Night
from ci.nightly.unfinished import unfinished
from fuzz.ledger.ingest.feed import take_in
from fuzz.ledger.ingest.folder import Folder
from fuzz.ledger.ingest.write import write
from fuzz.ledger.query import read
from fuzz.ledger.tables.database import Ledger
from fuzz.session.resume import owned

ROOT = Path(__file__).resolve().parents[2]
NO_LEDGER = "/nowhere/ledger.sqlite"


def simulate(budget: Budget, pairs: dict[str, int], rate: dict[str, float], seconds: float = 60) -> list[Round]:
    """Rounds of devices that have `pairs` to cover, half of what is left in each, and find bugs at a rate."""
    random, rounds, covered = Random(1), [], dict.fromkeys(pairs, 0)
    while (device := budget.next(rounds)) is not None:
        cases, _ = budget.left(rounds)
        new = (pairs[device] - covered[device] + 1) // 2
        covered[device] += new
        found = random.random() < rate[device]
        ran = min(cases, budget.per_round, 100)  # more do not fit into the time of a round
        rounds.append(Round(device, "", ran, seconds, covered[device], new, int(found)))
    return rounds


def test_every_device_runs_and_the_cases_are_all_spent() -> None:
    rounds = simulate(Budget(("a", "b"), 700), {"a": 500, "b": 500}, {"a": 0, "b": 0})
    assert sum(one.cases for one in rounds) == 700 and {one.device for one in rounds[:2]} == {"a", "b"}


def test_coverage_comes_first_then_the_device_that_finds_more() -> None:
    budget = Budget(("wide", "narrow"), 10**9, seconds=200 * 60)
    rounds = simulate(budget, {"wide": 4000, "narrow": 4000}, {"wide": 0.02, "narrow": 0.9})
    first, last = rounds[:12], rounds[-100:]
    assert 4 <= sum(one.device == "wide" for one in first) <= 8
    assert sum(one.device == "narrow" for one in last) > 80
    assert any(one.device == "wide" for one in rounds[20:])


def test_a_night_without_time_ends() -> None:
    budget = Budget(("a",), 10**9, seconds=100)
    assert budget.next([Round("a", "", 5, 80, 9, 9, 0)]) is None


def test_a_night_that_was_cut_off_goes_on_and_a_done_one_is_followed_by_another(tmp_path: Path) -> None:
    night = state.open_night(tmp_path, {"cases": 3}, "c0ffee")
    night.keep("fuzz", {"x": 1})
    with pytest.raises(SystemExit, match="another process"):
        state.open_night(tmp_path, {}, "")
    os.close(night._lock)
    again = state.open_night(tmp_path, {"cases": 9}, "other")
    assert again.name == night.name and again.parts("fuzz") == [{"x": 1}] and again.kept.settings == {"cases": 3}
    again.end()
    os.close(again._lock)
    other = state.open_night(tmp_path, {"cases": 9}, "other")
    assert other.name == f"{night.name}.2" and other.seed == night.seed + 1


def fake(name: str, result: Done | None = None, log: list[str] | None = None) -> Stage:
    def run(night: Night, options: Options) -> Done:
        if log is not None:
            log.append(name)
        if result is None:
            raise RuntimeError("a disk is full")
        return result

    return Stage(name, f"the stage {name}", run, lambda options: 2)


def night(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: list[Stage], *arguments: str) -> int:
    for module in (nightly, summary):
        monkeypatch.setattr(module, "STAGES", tuple(made))
    return nightly.main(["--root", str(tmp_path), "--ledger", NO_LEDGER, "--device", "host", *arguments])


def test_stages_run_in_order_and_one_that_breaks_does_not_end_the_night(tmp_path, monkeypatch, capsys) -> None:
    log: list[str] = []
    made = [fake("compile", Done("ok", "fine"), log), fake("fuzz", None, log), fake("report", Done("ok"), log)]
    assert night(monkeypatch, tmp_path, made) == 3 and log == ["compile", "fuzz", "report"]
    told = capsys.readouterr().out
    assert "RuntimeError: a disk is full" in told and "nothing is new" in told


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("findings", 1), ("skipped", 0), ("failed", 3)])
def test_the_exit_code_says_what_became_of_the_night(tmp_path, monkeypatch, status, code: int) -> None:
    assert night(monkeypatch, tmp_path, [fake("fuzz", Done(status))]) == code


def test_failed_tests_are_a_result(tmp_path, monkeypatch) -> None:
    assert night(monkeypatch, tmp_path, [fake("tests", Done("failed"))]) == 1


def test_stages_that_are_done_or_left_out_do_not_run(tmp_path, monkeypatch, capsys) -> None:
    log: list[str] = []
    begun = state.open_night(tmp_path, msgspec.to_builtins(Options(skip=("score",), ledger=NO_LEDGER)), "")
    begun.finish("compile", Done("ok", "before"))
    os.close(begun._lock)
    made = [fake(name, Done("ok"), log) for name in ("compile", "fuzz", "score")]
    assert night(monkeypatch, tmp_path, made) == 0 and log == ["fuzz"]
    assert "goes on with night" in capsys.readouterr().out


def test_a_night_that_goes_on_can_be_made_shorter_and_nothing_else(tmp_path, monkeypatch) -> None:
    begun = state.open_night(tmp_path, msgspec.to_builtins(Options(skip=("tests",), cases=7, ledger=NO_LEDGER)), "")
    os.close(begun._lock)
    log: list[str] = []
    made = [fake(name, Done("ok"), log) for name in ("tests", "fuzz", "score")]
    assert night(monkeypatch, tmp_path, made, "--skip", "score", "--max-minutes", "5", "--cases", "9") == 0
    kept = state.newest(tmp_path)
    assert log == ["fuzz"] and kept is not None
    assert [kept.settings[name] for name in ("skip", "minutes", "cases")] == [["tests", "score"], 5.0, 7]


def test_the_plan_changes_nothing_and_learns_from_the_last_night(tmp_path, monkeypatch, capsys) -> None:
    made = [fake("compile", Done("ok")), fake("fuzz", Done("ok"))]
    assert night(monkeypatch, tmp_path, made, "--dry-run", "--cases", "600") == 0
    told = capsys.readouterr().out
    assert "a guess" in told and not list(tmp_path.iterdir())
    last = Kept("before", 1.0, 1, settings={"cases": 300}, done={"fuzz": Done("ok", seconds=600)}, ended=2.0)
    text = summary.plan(Kept("to come", 0, 0), Options(cases=600), last)
    assert "fuzz              20" in text and "as in night before" in text


def test_every_stage_of_the_list_is_an_option_and_the_archs_are_known() -> None:
    asked = parse(["--skip", "tests", "--max-minutes", "5", "--device", "host"], NAMES)
    assert asked.options.skip == ("tests",) and asked.options.minutes == 5
    wanted = ["tests", "compile", "fuzz", "replay", "conformance", "score", "minimise", "bisect", "ledger", "report"]
    assert list(NAMES) == wanted and all(stage.minutes(Options()) > 0 for stage in stages.STAGES)


@pytest.mark.nightly
def test_tests_that_passed_before_a_cut_are_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('i', range(4))\ndef test_it(i): assert i != 2\n"
        "@pytest.fixture\ndef bad():\n    yield\n    raise RuntimeError\ndef test_end(bad): pass\n"
    )
    (tmp_path / "1.txt").write_text("test_it.py::test_it[0]\ntest_it.py::test_it[1]\ntest_it.py::test_it[3")  # torn

    def ran(number: int) -> tuple[str, list[str]]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), passed.VARIABLE: str(tmp_path / f"{number}.txt")}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-c", "/dev/null", "--rootdir", ".", "test_it.py"]
        plugins = ["-p", passed.__name__, "-p", "no:attnfuzz", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *plugins], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout, (tmp_path / f"{number}.txt").read_text().splitlines()

    told, kept = ran(2)
    assert "1 failed, 2 passed, 1 error" in told and kept == ["test_it.py::test_it[3]"]
    told, kept = ran(3)
    assert "1 failed, 1 passed, 1 error" in told and not kept


def test_files_of_tests_take_turns_by_the_night_in_which_they_last_ended() -> None:
    ids = ["a.py::1", "a.py::2", "b.py::1", "c.py::1", "d.py::1"]
    ended = {"a.py::1": 5.0, "a.py::2": 5.0, "b.py::1": 2.0, "c.py::1": 5.0}  # d.py never
    assert [ids[n] for n in passed.in_turn(ids, ended, 1)] == ["d.py::1", "b.py::1", "a.py::1", "a.py::2", "c.py::1"]
    # two workers: the first half of the list is one's, the second the other's
    assert [ids[n] for n in passed.in_turn(ids, ended, 2)] == ["d.py::1", "a.py::1", "a.py::2", "b.py::1", "c.py::1"]
    assert passed.in_turn(ids, ended | {"a.py::2": 1.0}, 1)[:3] == [4, 0, 1]  # one of a file's tests is due


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_that_had_no_time_come_first_in_the_next_night(tmp_path: Path, workers: str) -> None:
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(
            "import time, pytest\n@pytest.mark.parametrize('i', range(2))\ndef test_it(i): time.sleep(1.5)\n"
            "@pytest.mark.skip\ndef test_never(): pass\n"
        )

    def ran(night: int, seconds: float) -> tuple[list[str], set[str]]:
        """Tests that passed, in the order in which they ended, and tests that had no time."""
        folder = tmp_path / "nights" / str(night) / "passed"
        folder.mkdir(parents=True)
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            passed.VARIABLE: str(folder / "1.txt"),
            passed.NIGHTS: str(tmp_path / "nights"),
            passed.UNTIL: str(time.time() + seconds),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", "-c", "/dev/null"]
        plugins = ["-p", passed.__name__, "-p", "no:attnfuzz", "-p", "no:cacheprovider", "--rootdir", ".", "."]
        done = subprocess.run(
            [*command, *plugins], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        left = set(passed.names([path for path in [folder / "1.left"] if path.exists()]))
        assert done.returncode == 0 and passed.left(folder, 1) == len(left)
        return list(passed.names([folder / "1.txt"])), left

    first, left = ran(1, 4.0)
    assert first and left and not set(first) & left and len({*first, *left}) >= 8
    second, _ = ran(2, 4.0)
    waited = {one.partition("::")[0] for one in left}
    assert {one.partition("::")[0] for one in second[:2]} <= waited  # what had no time comes first, one for each worker
    third, rest = ran(3, 600.0)
    assert not rest and len(third) == 8


def test_sessions_that_were_cut_off_are_found_for_the_next_night(tmp_path, monkeypatch) -> None:
    """Of nights those that the ledger lacks wholly or in part; of users those that it has begun; none that runs."""
    root, options = tmp_path / "nights", Options(ledger=str(tmp_path / "ledger.sqlite"))
    monkeypatch.setattr("ci.nightly.unfinished.SESSIONS", tmp_path / "sessions")
    made = {
        name: SessionFolder(tmp_path / name, day)
        for day, name in enumerate((
            "nights/2026-11-01/sessions/whole", "nights/2026-11-01/sessions/begun", "nights/2026-11-02/sessions/unsent",
            "nights/2026-11-02/sessions/runs", "nights/2026-11-02/sessions/empty", "sessions/begun", "sessions/unsent",
        ))
    }  # fmt: skip
    with Ledger(options.ledger) as ledger:
        for name, folder in made.items():
            if not name.endswith("empty"):
                folder.passes(1, 2)
            if name.endswith("whole"):
                take_in(ledger, folder.path)
            if name.endswith("begun"):
                for batch in Folder(folder.path).more():
                    write(ledger, batch)
        away = SessionFolder(tmp_path / "away", 9)
        away.passes(1)
        (batch,) = Folder(away.path).more()
        other = msgspec.structs.replace(
            batch.session, hardware=msgspec.structs.replace(batch.session.hardware, host="b200")
        )
        write(ledger, msgspec.structs.replace(batch, session=other))
    monkeypatch.setattr("platform.node", lambda: "host")
    with owned(made["nights/2026-11-02/sessions/runs"].path):
        found, elsewhere = unfinished(root, options)
    names = [str(path.relative_to(tmp_path)) for path in found]
    assert names == ["nights/2026-11-01/sessions/begun", "nights/2026-11-02/sessions/unsent", "sessions/begun"]
    assert elsewhere == [f"b200:{away.path}"]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_new_finding_is_traced_to_its_commit(tmp_path: Path) -> None:
    """A night at a sound revision of a target file, and one after it was broken."""
    made = planted(tmp_path / "repository")
    skipped = [part for name in NAMES if name not in ("fuzz", "minimise", "bisect") for part in ("--skip", name)]
    command = [
        sys.executable, "-m", "ci.nightly", "--root", str(tmp_path / "nights"), "--ledger", str(tmp_path / "l.sqlite"),
        "--jobs", "1", "--cases", "60", "--device", "host", "--target", "mine", "--target-file", FILE, *skipped,
    ]  # fmt: skip
    for title, code in (("a name for the fill value", 0), ("imports in order", 1)):
        git(made.folder, "checkout", "--quiet", made.commits[title])
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=made.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    with Ledger(str(tmp_path / "l.sqlite"), create=False) as ledger:
        (kept,) = read.bisections(ledger).to_dict("records")
    assert kept["first"] == [[made.commits[CAP], CAP]] and kept["confident"]
    assert f"since {made.commits[CAP][:12]} {CAP}" in done.stdout
    assert "new" in done.stdout.splitlines()[-2]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_night_that_is_killed_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    """Two nights of real sessions on one target; the first is killed in the middle of its fuzzing."""
    ledger = tmp_path / "ledger.sqlite"
    skipped = [part for name in NAMES if name not in ("fuzz", "ledger") for part in ("--skip", name)]
    command = [
        sys.executable, "-m", "ci.nightly", "--root", str(tmp_path / "nights"), "--ledger", str(ledger), "--jobs", "1",
        "--cases", "100", "--device", "host", "--target", "torch.sdpa.math", *skipped,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    until = time.monotonic() + 200
    while time.monotonic() < until and not list(tmp_path.glob("nights/*/sessions/*/records-*.jsonl")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for number in (1, 2):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        kept = sorted((tmp_path / "nights").glob("*/state.json"))
        assert len(kept) == number
        told = json.loads(kept[-1].read_text())
        assert told["ended"] and told["done"]["fuzz"]["note"] == "100 cases in 2 sessions, 0 findings"
    with Ledger(str(ledger), create=False) as opened:
        sessions = read.sessions(opened)
    assert len(sessions) == 4 and sessions["cases"].sum() == 200 and sessions["night"].nunique() == 2
