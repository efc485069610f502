"""Histories of git repositories, and the search in one with planted regressions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from planted_history import BROKEN, CAP, FILE, FLAKY, ROWS, Planted, git, planted

from fuzz.bisect.checkouts import HARNESS, Checkouts
from fuzz.bisect.revisions import BisectError, Untestable
from fuzz.cli.main import main
from fuzz.core.case import Case, to_json
from oracles.problem import Problem

CASES = {
    CAP: Problem((24,), (24,), 1, 1, 16, 16, "float32", backward=False, softcap=2.0, scale=0.5),
    FLAKY: Problem((24,), (24,), 2, 1, 16, 16, "float32", backward=False),
    ROWS: Problem((8,), (128,), 1, 1, 16, 16, "float32", backward=False),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return planted(tmp_path_factory.mktemp("planted"))


def command(repository: Planted, case: Path, state: Path, good: str, bad: str, *more: str) -> list[str]:
    return [
        "bisect", str(case), "--repo", str(repository.folder), "--target-file", FILE, "--good", good, "--bad", bad,
        "--device", "host", "--state", str(state), "--json", *more,
    ]  # fmt: skip


def write(folder: Path, problem: Problem) -> Path:
    path = folder / "case.json"
    path.write_text(to_json(Case("mine", problem, repeats=1)))
    return path


def test_the_suspects_are_the_commits_after_the_good_one(repository: Planted) -> None:
    commits = list(repository.commits.values())
    history = Checkouts(repository.folder, commits[3], commits[9]).history()
    assert history.good.name == commits[3] and [one.name for one in history.revisions] == commits[4:10]
    assert history.revisions[2].title == BROKEN
    assert (history.bad == np.triu(np.ones((6, 6), dtype=bool))).all()


def test_a_merged_branch_is_no_line(tmp_path: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for title in ("root", "left"):
        git(tmp_path, *who, "commit", "--quiet", "--allow-empty", "-m", title)
    git(tmp_path, "switch", "--quiet", "-c", "side", "HEAD~1")
    git(tmp_path, *who, "commit", "--quiet", "--allow-empty", "-m", "right")
    git(tmp_path, "switch", "--quiet", "main")
    git(tmp_path, *who, "merge", "--quiet", "--no-edit", "side")
    history = Checkouts(tmp_path, "HEAD~2", "HEAD").history()
    number = {one.title: place for place, one in enumerate(history.revisions)}
    left, right = number["left"], number["right"]
    assert not history.bad[left, right] and not history.bad[right, left]
    assert history.bad[:, -1].all() and history.bad.diagonal().all()


def test_a_worktree_holds_the_revision_and_is_removed(repository: Planted) -> None:
    made = Checkouts(repository.folder, "HEAD~5", "HEAD", (FILE, "/elsewhere/x.py"))
    revision = made.history().revisions[0]
    with made.prepare(revision) as place:
        assert "no constant" in (place.folder / FILE).read_text()
        assert place.files == (str(place.folder / FILE), "/elsewhere/x.py")
        assert place.paths == (HARNESS, place.folder)
    assert not place.folder.exists() and git(repository.folder, "worktree", "list").count("\n") == 0
    assert git(repository.folder, "status", "--porcelain") == ""


def test_a_build_that_fails_makes_a_revision_untestable(repository: Planted) -> None:
    made = Checkouts(repository.folder, "HEAD~2", "HEAD", build="echo no compiler >&2; exit 3")
    with pytest.raises(Untestable, match="ended with 3: no compiler"), made.prepare(made.history().revisions[0]):
        pass
    assert git(repository.folder, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize(("good", "bad"), [("nope", "HEAD"), ("HEAD", "HEAD"), ("HEAD", "HEAD~1"), ("-x", "HEAD")])
def test_revisions_that_make_no_history_are_an_error(repository: Planted, good: str, bad: str) -> None:
    with pytest.raises(BisectError):
        Checkouts(repository.folder, good, bad).history()


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_reliable_regression_is_found_in_real_revisions(repository: Planted, tmp_path: Path, capsys) -> None:
    commits = list(repository.commits.values())
    case = write(tmp_path, CASES[CAP])
    assert main(command(repository, case, tmp_path / "state", commits[1], commits[4])) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["title"] for one in found["first_bad"]] == [CAP] and found["probability"] >= 0.99
    assert main(command(repository, case, tmp_path / "state", commits[1], commits[4])) == 0
    assert json.loads(capsys.readouterr().out) == found  # out of the journal
    assert main(command(repository, case, tmp_path / "state", commits[0], commits[4])) == 2
    assert "holds another search" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bug", [CAP, FLAKY, ROWS])
def test_three_planted_regressions_are_found(repository: Planted, tmp_path: Path, capsys, bug: str) -> None:
    commits = list(repository.commits.values())
    case = write(tmp_path, CASES[bug])
    assert main(command(repository, case, tmp_path / "state", commits[0], commits[-1])) == 0
    found = json.loads(capsys.readouterr().out)
    print(json.dumps(found))
    assert bug in [one["title"] for one in found["first_bad"]] and found["probability"] >= 0.99
    if bug == FLAKY:  # the commit before it does not import: no run can tell the two apart
        assert {one["title"] for one in found["first_bad"]} <= {FLAKY, BROKEN}
        assert 0 < found["rate"]["failed"] < found["rate"]["runs"]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_killed_search_goes_on(repository: Planted, tmp_path: Path, capsys) -> None:
    commits = list(repository.commits.values())
    arguments = command(repository, write(tmp_path, CASES[CAP]), tmp_path / "state", commits[0], commits[5])
    environment = os.environ | {"PYTHONPATH": str(HARNESS)}
    process = subprocess.Popen([sys.executable, "-m", "fuzz.cli", *arguments], env=environment)
    runs, until = tmp_path / "state" / "runs.jsonl", time.monotonic() + 120
    while time.monotonic() < until and not (runs.exists() and runs.read_bytes().count(b"\n") >= 6):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = runs.read_bytes()
    assert before.count(b"\n") >= 6
    assert main(arguments) == 0
    assert [one["title"] for one in json.loads(capsys.readouterr().out)["first_bad"]] == [CAP]
    assert runs.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
