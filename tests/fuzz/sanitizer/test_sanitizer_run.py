"""Running under the sanitizer: a stand-in for the program that really runs the case and writes a log given to it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from sanitizer_output import MEMCHECK

from fuzz.cli.main import main
from fuzz.core.case import Case, Inputs, Storage, to_json
from fuzz.sanitizer import SanitizerError, sanitize
from fuzz.sanitizer.alone import apart
from fuzz.tensors.arena import build
from oracles.problem import Problem

FAKES = Path(__file__).parents[2] / "fakes"
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RAN = '{"kernel": "honest"}'
PROGRAM = f"""#!{sys.executable}
import os, subprocess, sys
given = sys.argv[1:]
command = given[given.index({sys.executable!r}):]
open(os.environ["STAND_IN_SEEN"], "w").write(" ".join(given) + "\\n" + str(os.getpid()))
if "STAND_IN_ENDED" in os.environ:  # what a run of the case would have written
    open(command[command.index("fuzz.sanitizer.alone") + 2], "w").write(os.environ["STAND_IN_ENDED"])
    code = 0
else:
    code = subprocess.call(command)
open(given[given.index("--log-file") + 1], "w").write(os.environ["STAND_IN_LOG"])
sys.exit(code or (86 if "Invalid" in os.environ["STAND_IN_LOG"] else 0))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs the stand-in, whose log is the argument; returns the file with the command line that it was given. It
    runs the case, or writes what `ended` has, where the run itself is beside the point."""

    def install(log: str, ended: str = "") -> Path:
        if ended:
            monkeypatch.setenv("STAND_IN_ENDED", ended)
        program = tmp_path / "bin" / "compute-sanitizer"
        program.parent.mkdir()
        program.write_text(PROGRAM)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("STAND_IN_LOG", log)
        monkeypatch.setenv("STAND_IN_SEEN", str(tmp_path / "seen"))
        return tmp_path / "seen"

    return install


def case(name: str) -> Case:
    return Case(f"fake.{name}", Problem((8,), (8,), 1, 1, 8, 8, "float32", backward=False))


def run(name: str, tool: str = "memcheck", file: str = "honest", **options):
    return sanitize(case(name), tool, device="host", files=(str(FAKES / f"{file}.py"),), **options)


def test_findings_make_the_verdict_fail(stand_in) -> None:
    seen = stand_in(MEMCHECK)
    verdict = run("honest", kernels="kernel_cutlass")
    assert verdict.outcome == "fail" and [f.kind for f in verdict.findings] == ["invalid_access"] * 2
    assert "unaligned_kernel" in verdict.evidence["sanitizer"]
    assert "--tool memcheck" in seen.read_text() and "--kernel-name kernel_substring=kernel_cutlass" in seen.read_text()


def test_a_clean_log_passes_and_says_what_ran(stand_in) -> None:
    stand_in(CLEAN)
    verdict = run("honest", "synccheck")
    assert verdict.outcome == "pass" and verdict.reason == "compute-sanitizer --tool synccheck: 0 errors"


@pytest.mark.nightly
def test_a_clean_log_of_a_run_that_raised_or_died_is_no_pass(stand_in) -> None:
    stand_in(CLEAN)
    (finding,) = run("raises", file="crashes").findings
    assert finding.kind == "raised"
    (finding,) = run("segfaults", file="crashes").findings
    assert finding.kind == "crash"


def test_a_run_that_never_ends_is_killed(stand_in) -> None:
    stand_in(CLEAN)
    verdict = run("sleeps", file="hangs", limit=4.0)
    assert verdict.outcome == "hang" and "not done after 4 s" in verdict.findings[0].message


def test_whoever_kills_the_command_ends_what_it_runs(stand_in) -> None:
    seen = stand_in(CLEAN)
    text = f"""from fuzz.core.case import Case
from fuzz.sanitizer import sanitize
from oracles.problem import Problem
case = Case("fake.sleeps", Problem((8,), (8,), 1, 1, 8, 8, "float32", backward=False))
sanitize(case, "memcheck", device="host", files=({str(FAKES / "hangs.py")!r},))"""
    path = str(FAKES.parents[1])
    command = subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": path})
    while not (seen.exists() and "\n" in seen.read_text()):
        assert command.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    group = int(seen.read_text().split("\n")[1])
    os.killpg(group, 0)
    command.kill()
    command.wait()
    until = time.monotonic() + 10
    while psutil.pid_exists(group) and psutil.Process(group).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "it lives on"
        time.sleep(0.02)


def test_no_report_is_an_error_and_not_a_pass(stand_in) -> None:
    stand_in("", RAN)
    with pytest.raises(SanitizerError, match="gave no report"):
        run("honest")


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("Error: Device not supported. Please refer to the documentation", 1),
        ("Internal Sanitizer Error: stopped. Results may be incomplete", 0),
    ],
)
def test_trouble_of_the_tool_is_neither_a_pass_nor_a_finding(stand_in, line: str, counted: int) -> None:
    stand_in(CLEAN.replace("=========", f"========= {line}\n=========", 1).replace(": 0", f": {counted}"), RAN)
    with pytest.raises(SanitizerError, match=line):
        run("honest")


def test_trouble_in_a_run_that_died_is_still_a_crash(stand_in) -> None:
    stand_in(CLEAN.replace("=========", "========= Error: process didn't terminate successfully\n=========", 1))
    (finding,) = run("segfaults", file="crashes").findings
    assert finding.kind == "crash"


def test_without_the_program_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SanitizerError, match="compute-sanitizer: not installed; it comes with the CUDA toolkit"):
        run("honest")


def test_on_the_host_there_is_nothing_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "case.json"
    file.write_text(to_json(case("honest")))
    arguments = ["repro", str(file), "--sanitizer", "memcheck", "--device", "host"]
    assert main([*arguments, "--target-file", str(FAKES / "honest.py")]) == 2
    assert "looks at GPU kernels" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--runs", "3"], ["--trace", "trace.json"]])
def test_what_the_sanitizer_would_leave_out_is_refused(tmp_path: Path, capsys, more: list[str]) -> None:
    file = tmp_path / "case.json"
    file.write_text(to_json(case("honest")))
    assert main(["repro", str(file), "--sanitizer", "memcheck", "--target-file", str(FAKES / "honest.py"), *more]) == 2
    assert "--sanitizer runs a case once" in capsys.readouterr().err


@pytest.mark.parametrize("storage", [Storage(), Storage("bshd", pad=3, offset=1)])
def test_every_tensor_ends_where_its_allocation_does(storage: Storage) -> None:
    problem = Problem((9,), (7,), 2, 1, 16, 16, "float16")
    arena = build(Case("any", problem, Inputs(q=storage, k=storage, v=storage, do=storage)), "cpu")
    within, alone = arena.tensors(), apart(arena)
    for name in ("q", "k", "v", "do"):
        one, other = getattr(within, name), getattr(alone, name)
        assert torch.equal(one, other) and one.stride() == other.stride()
        span = 1 + sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
        assert other.storage_offset() == storage.offset
        assert other.untyped_storage().nbytes() == (storage.offset + span) * 2
    assert alone.bias is None
