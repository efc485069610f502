"""The page "A Triton kernel of your own without a GPU": its kernel, its case and every command of it, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzz.core.case import from_json
from fuzz.targets.registry import load

# Not imported here: Triton decides at its import whether it interprets.
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how_to/triton_without_gpu.md").read_text()
EXITS = {"run": 1, "repro": 1, "minimize": 1, "python": 1}  # findings are there


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (kernel,), (case,) = blocks("python"), blocks("json")
    (tmp_path / "mine.py").write_text(kernel)
    (tmp_path / "case.json").write_text(case)
    return tmp_path


def test_the_pages_file_is_a_target_and_its_case_a_case(folder: Path) -> None:
    target = load("mine", (str(folder / "mine.py"),))
    assert target.support.dims == {16, 32} and target.support.masks == {"full", "causal"}
    assert from_json((folder / "case.json").read_text()).target == "mine"


@pytest.mark.nightly
def test_every_command_of_the_page_does_what_it_says(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    for line in "".join(blocks("sh")).splitlines():
        program, *arguments = shlex.split(line)
        command = [sys.executable, "-m", "fuzz.cli.main", *arguments]
        if program == "python":
            command = [sys.executable, "-I", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        expected = EXITS[program if program == "python" else arguments[0]]
        assert done.returncode == expected, (
            f"{line}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        if arguments[0] == "run":
            assert "O is NaN" in done.stdout and "where 0 is expected" in done.stdout
    small = from_json((folder / "small.json").read_text())
    assert small.problem.pairs <= 4
    assert "nan" in done.stdout and done.stdout.splitlines()[-1] == "FAILS: o"
