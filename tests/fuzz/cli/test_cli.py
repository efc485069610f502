"""The command line as users meet it: exit codes, one clear line for every mistake."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from judge_tools import FAKES

from fuzz.cli.command import every
from fuzz.cli.exit_codes import SUMMARY
from fuzz.cli.main import main
from fuzz.cli.parsers import parser
from fuzz.core.case import Case, to_json
from fuzz.ledger.query import read
from fuzz.ledger.tables.database import Ledger
from fuzz.runner import HarnessError, Runner
from fuzz.targets import autograd
from oracles.masks import Causal
from oracles.problem import Problem

PROBLEM = Problem((40,), (40,), 2, 1, 16, 16, "float32", mask=Causal(), scale=1.0)


def attnfuzz(*arguments: str, files: bool = False) -> int:
    extra = [part for file in FAKES for part in ("--target-file", file)] if files else []
    return main([*arguments, *extra])


def saved(folder: Path, target: str, problem: Problem = PROBLEM) -> str:
    path = folder / "case.json"
    path.write_text(to_json(Case(target, problem, repeats=2)))
    return str(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "not JSON"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `target`"),
        ('{"target": "sdpa", "problem": {"op": "attention"}}', "problem: Object missing required field `lengths_q`"),
        ("\x00\x01", "not JSON"),
        ("", "not JSON"),
    ],
)
def test_a_malformed_case_is_one_line_and_exit_code_2(tmp_path: Path, capsys, text: str, line: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    for command in ("repro", "minimize"):
        assert attnfuzz(command, str(path)) == 2
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1 and error.startswith("attnfuzz: ")


def test_a_missing_file_an_unknown_target_and_a_bad_target_file_are_usage(tmp_path: Path, capsys) -> None:
    assert attnfuzz("repro", str(tmp_path / "none.json")) == 2
    assert attnfuzz("repro", saved(tmp_path, "nope")) == 2
    assert attnfuzz("conformance", "nope") == 2
    assert attnfuzz("run", "--target", "nope", "--output-dir", str(tmp_path / "s")) == 2
    assert attnfuzz("targets", "--target-file", str(tmp_path / "none.py")) == 2
    assert capsys.readouterr().err.count("\n") == 5


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["run", "--cases", "0"], ["run", "--size", "huge"], ["repro"]]
    + [["minimize", "case.json", "--max-time", seconds] for seconds in ("0", "-1", "nan")],
)
def test_bad_options_are_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_session_of_a_target_that_cannot_run_here_is_usage_and_says_why(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autograd, "cuda_present", lambda: False)
    arguments = ["--device", "cuda", "--target", "torch.sdpa.math", "--cases", "4", "--output-dir", str(tmp_path)]
    assert main(["run", *arguments]) == 2
    assert capsys.readouterr().err == "attnfuzz: torch.sdpa.math cannot run here: needs a CUDA device\n"


def test_a_session_without_any_target_is_no_success(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "cuda_present", lambda: False)
    assert main(["run", "--device", "cuda", "--cases", "4", "--output-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("attnfuzz: no target runs on cuda here")


def test_repro_shows_the_mask_the_worst_places_and_exits_1(tmp_path: Path, capsys) -> None:
    assert attnfuzz("repro", saved(tmp_path, "fake.ignores_scale"), files=True) == 1
    shown = capsys.readouterr().out
    assert "█" in shown and "◀ wrong" in shown
    assert "Worst place of each tensor" in shown and "dq" in shown
    assert "is wrong: at batch" in shown


def test_repro_of_a_passing_case_exits_0_and_speaks_json(tmp_path: Path, capsys) -> None:
    assert attnfuzz("repro", saved(tmp_path, "fake.honest"), "--json", files=True) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "pass"


def test_repro_several_times_reports_k_of_n(tmp_path: Path, capsys) -> None:
    assert attnfuzz("repro", saved(tmp_path, "fake.ignores_scale"), "--runs", "3", files=True) == 1
    assert "failed 3 of 3 times" in capsys.readouterr().out


def test_minimize_writes_the_smallest_case_and_the_command_to_see_it(tmp_path: Path, capsys) -> None:
    out = tmp_path / "small.json"
    assert attnfuzz("minimize", saved(tmp_path, "fake.ignores_scale"), "--out", str(out), files=True) == 1
    shown = capsys.readouterr().out
    assert f"attnfuzz repro {out}" in shown
    small = json.loads(out.read_text())["problem"]
    assert small["heads_q"] == 1 and max(small["lengths_q"]) < 40


def test_minimize_of_a_passing_case_says_so(tmp_path: Path, capsys) -> None:
    assert attnfuzz("minimize", saved(tmp_path, "fake.honest"), files=True) == 0
    assert "does not fail here" in capsys.readouterr().err


def test_what_ends_a_minimisation_leaves_the_best_so_far(tmp_path: Path, capsys, monkeypatch) -> None:
    run, left = Runner.run, iter(range(12))

    def fails_later(self: Runner, *given):
        if next(left, None) is None:
            raise HarnessError("the judge failed on case x:\nTraceback\nKeyError: 'no such oracle'")
        return run(self, *given)

    monkeypatch.setattr(Runner, "run", fails_later)
    out = tmp_path / "small.json"
    assert attnfuzz("minimize", saved(tmp_path, "fake.ignores_scale"), "--out", str(out), files=True) == 3
    small = json.loads(out.read_text())["problem"]
    assert max(small["lengths_q"]) < 40 or small["heads_q"] == 1
    assert "KeyError: 'no such oracle'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["repro --script", "minimize --out"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, capsys, monkeypatch, option) -> None:
    monkeypatch.setattr(Runner, "run", None)  # never reached
    command, name = option.split()
    case = saved(tmp_path, "fake.ignores_scale")
    (tmp_path / "locked").touch(0o400)
    for path in ("none/small", ".", "locked"):
        if path == "locked" and os.access(tmp_path / path, os.W_OK):
            continue  # to root nothing is
        assert attnfuzz(command, case, name, str(tmp_path / path), files=True) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"attnfuzz: {name}: {tmp_path}") and error.count("\n") == 1


def test_minimize_of_a_target_that_cannot_run_here_says_why(tmp_path: Path, capsys) -> None:
    if autograd.cuda_present():
        pytest.skip("has a GPU")
    assert attnfuzz("minimize", saved(tmp_path, "torch.sdpa.math"), "--device", "cuda") == 2
    assert "torch.sdpa.math cannot run here: needs a CUDA device" in capsys.readouterr().err


def test_targets_lists_what_is_refused_and_why(capsys) -> None:
    assert attnfuzz("targets") == 0
    shown = capsys.readouterr().out
    assert "torch.sdpa.flash" in shown and "last dimension has another stride than 1" in shown


def test_schema_is_json(capsys) -> None:
    assert attnfuzz("schema") == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


def test_a_session_from_the_command_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fuzz.cli.main",
        "run",
        "--target",
        "torch.sdpa.math",
        "--cases",
        "6",
        "--size",
        "small",
    ]
    command += ["--jobs", "2", "--output-dir", str(tmp_path / "s"), "--corpus", str(tmp_path)]
    command += ["--ledger", str(tmp_path / "ledger.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.sdpa.math" in done.stdout and "no new finding" in done.stdout
    assert json.loads((tmp_path / "s" / "session.json").read_text())["settings"]["cases"] == 6
    assert f"ledger: {tmp_path / 'ledger.sqlite'}" in done.stdout
    with Ledger(str(tmp_path / "ledger.sqlite"), create=False) as ledger:
        (row,) = read.sessions(ledger).to_dict("records")
        assert (row["cases"], row["planned"], row["failing"]) == (6, 6, 0) and row["ended"] >= row["began"]
        assert len(read.runs(ledger, row["session"])) == 6 and not read.coverage(ledger).empty
        assert read.tallies(ledger)["arch"].tolist() == ["host"]


def test_the_harness_s_own_fault_has_an_exit_code_of_its_own(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("no such oracle")

    monkeypatch.setattr("fuzz.core.import_check.check_packages", broken)
    assert main(["schema"]) == 3
    said = capsys.readouterr().err
    assert "KeyError: 'no such oracle'" in said and said.endswith("please report the traceback above\n")


def test_the_version_and_the_completion_of_a_shell(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0 and capsys.readouterr().out.startswith("attnfuzz ")
    assert main(["completion", "bash"]) == 0
    assert "mutation-score" in capsys.readouterr().out


def test_every_command_has_a_summary_an_example_that_parses_and_the_exit_codes() -> None:
    commands = next(action for action in parser()._actions if isinstance(action.choices, dict))
    for command in every(commands):
        text = command.format_help()
        examples = [line.strip() for line in text.splitlines() if line.strip().startswith(command.prog)]
        assert examples and SUMMARY in text and command.description
        for example in examples:
            parser().parse_args(shlex.split(re.split("[>&]", example)[0])[1:])


def test_an_option_has_no_second_spelling() -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "--case", "4"])
    assert left.value.code == 2
