"""`pytest -n 2 fuzz`: the session as users run it."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree as Xml

import pytest
import torch
import warm_start
from judge_tools import FAKES

ROOT = Path(__file__).parents[2]


def session(tmp_path: Path, *arguments: str) -> CompletedProcess[str]:
    (tmp_path / "corpus").mkdir(exist_ok=True)
    command = ["-m", "pytest", "-p", "no:cacheprovider", "fuzz", "--fuzz-size", "small"]
    command += ["--fuzz-output-dir", str(tmp_path / "session"), "--fuzz-corpus", str(tmp_path / "corpus"), *arguments]
    return warm_start.run(command, cwd=ROOT, timeout=280)


def test_a_clean_session_over_two_workers_ends_with_the_table(tmp_path: Path) -> None:
    done = session(
        tmp_path,
        "-n",
        "2",
        "--fuzz-cases",
        "8",
        "--fuzz-target",
        "torch.sdpa.math",
        "--fuzz-target",
        "torch.sdpa.flash",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Cases by target" in done.stdout and "Features covered" in done.stdout and "no new finding" in done.stdout
    assert len(list((tmp_path / "session").glob("records-*.jsonl"))) == 2


@pytest.mark.nightly
def test_a_finding_fails_the_session_and_names_the_command(tmp_path: Path) -> None:
    files = [part for file in FAKES for part in ("--fuzz-target-file", file)]
    junit = tmp_path / "results.xml"
    done = session(tmp_path, "--fuzz-cases", "6", "--fuzz-target", "fake.wrong_dtype", *files, f"--junitxml={junit}")
    assert done.returncode == 1, done.stdout + done.stderr
    properties = [(one.get("name"), one.get("value", "")) for one in Xml.parse(junit).iter("property")]
    assert ("cases", "6") in properties
    failures = [value for name, value in properties if name == "failure"]
    assert failures and all(re.match("case [0-9a-f]{12}, signature [0-9a-f]{8}: ", value) for value in failures)
    saved = list((tmp_path / "corpus").glob("*.json"))
    assert saved and all(f"attnfuzz repro {path}" in done.stdout for path in saved)
    assert done.stdout.count("NEW fake.wrong_dtype") == len(saved)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.nightly), ("--fuzz-target", "torch.sdpa.math")])
def test_a_device_that_is_not_there_is_usage_and_not_a_skip(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = session(tmp_path, "--fuzz-cases", "4", "--fuzz-device", "cuda", *more)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    says = "torch.sdpa.math cannot run here: needs a CUDA device" if more else "no target runs on cuda here"
    assert says in done.stderr


def test_other_pytest_runs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    assert True\n")
    done = warm_start.run(["-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path)], cwd=tmp_path)
    assert done.returncode == 0 and "attnfuzz" not in done.stdout


def test_an_unknown_target_is_usage_and_not_an_error_of_pytest(tmp_path: Path) -> None:
    done = session(tmp_path, "--fuzz-target", "nope")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: target 'nope' is not known" in done.stderr and "INTERNALERROR" not in done.stdout + done.stderr
