"""`attnfuzz sanitize`, and the fixture `emulated_gpu`: a user's own program on the emulated GPU."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm_start

from fuzz.cli import sanitize
from fuzz.cli.main import main
from fuzz.devices.emulator.frontends.script import ScriptRun

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """\
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def ones(x, n, N: tl.constexpr, CHECKED: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, 1.0, mask=at < (n if CHECKED else n + 3))


def filled(checked):
    x = torch.zeros(50)
    ones[(1,)](x, 50, N=64, CHECKED=checked)
    return x


if __name__ == "__main__":
    print("sum", filled("--checked" in sys.argv).sum().item())
    sys.exit(5 if "--checked" in sys.argv else 0)
"""
TESTS = """\
import pytest

from script import filled

from fuzz.devices.emulator import EmulationError


def test_right(emulated_gpu):
    assert filled(True).sum() == 50 and emulated_gpu.ok and len(emulated_gpu.reports) == 1


def test_wrong(emulated_gpu):
    with pytest.raises(EmulationError, match="out of bounds"):
        filled(False)
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    return warm_start.run(["-m", *command], cwd=folder, env=environment, timeout=300)


@needs_triton
def test_findings_are_told_after_the_scripts_own_output(tmp_path: Path) -> None:
    done = run(tmp_path, "fuzz.cli.main", "sanitize", "script.py", "--anything")
    first, found, last = done.stdout.splitlines()
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "tl.store" in text)
    assert done.returncode == 1 and first == "sum 50.0"
    assert found.startswith("========= out of bounds: CTA (0, 0, 0)") and f"script.py:{line}, PTX line" in found
    assert last == "========= ERROR SUMMARY: 1 error in 1 launch"


@needs_triton
def test_without_findings_the_code_is_the_scripts(tmp_path: Path) -> None:
    done = run(tmp_path, "fuzz.cli.main", "sanitize", "--warp-schedule", "random", "script.py", "--checked")
    assert done.returncode == 5 and done.stdout.splitlines() == [
        "sum 50.0",
        "========= ERROR SUMMARY: 0 errors in 1 launch",
    ]


def test_a_script_that_is_not_there_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sanitize", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.endswith("none.py: no such file\n")
    with pytest.raises(SystemExit, match="2"):
        main(["sanitize", "--resident-ctas", "0", "script.py"])
    assert "must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--contraction", "second", "--seed", "7"]])
def test_a_script_runs_with_the_settings_that_are_asked_for(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def run_script(path: Path, arguments: list[str], arch: str, **settings: Any) -> ScriptRun:
        asked.update(settings)
        return ScriptRun(0, (), None)

    monkeypatch.setattr(sanitize, "run_script", run_script)
    (tmp_path / "script.py").touch()
    assert main(["sanitize", *given, str(tmp_path / "script.py")]) == 0
    wanted = dict(zip(given[::2], given[1::2], strict=True))
    assert (asked["contraction"], asked["seed"]) == (wanted.get("--contraction", "as_written"), 7 if given else 1)


@needs_triton
def test_a_fixture_gives_tests_the_emulated_gpu(tmp_path: Path) -> None:
    (tmp_path / "test_script.py").write_text(TESTS)
    done = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_script.py")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
