"""Runs a case under compute-sanitizer, in a process group of its own with a limit; a Verdict from its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzz.core.case import Case, to_json
from fuzz.core.verdict import Finding, Location, Outcome, Verdict
from fuzz.process.exits import exit_name
from fuzz.process.fork_server import search_path
from fuzz.process.tool import find
from fuzz.sanitizer.report import Report, read

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "compute-sanitizer"
LIMIT = 600.0
_MOST = 200  # entries that are printed
_FAILED = 86  # exit code of the sanitizer where it found something
_OPTIONS = {
    "memcheck": ("--report-api-errors", "no"),  # torch probes the driver with calls that fail
    "racecheck": ("--racecheck-report", "analysis"),
}
# What parent_death.py asks of the kernel holds for as long as any process has that end open: the program inherits it.
_TIED = """import os, sys
from fuzz.process import parent_death
end = int(sys.argv[1])
parent_death.tie(end)
os.set_inheritable(end, True)
os.execv(sys.argv[2], sys.argv[2:])
"""


class SanitizerError(ValueError):
    """The sanitizer cannot be used here; one line with what helps."""


def sanitize(
    case: Case, tool: str, *, device: str = "cuda", files: tuple[str, ...] = (), kernels: str = "", limit: float = LIMIT
) -> Verdict:
    """One run of `case` under `tool`.

    kernels  only kernels whose name holds this text are instrumented; '' for all, torch's own too
    limit    seconds; a kernel that hangs is not the sanitizer's to explain
    Raises SanitizerError where compute-sanitizer is missing, gave no report, or found nothing but had trouble of its
    own. ValueError on another tool.
    """
    if tool not in TOOLS:
        raise ValueError(f"tool: must be one of {', '.join(TOOLS)}, got {tool!r}")
    program = find(PROGRAM)
    if program is None:
        raise SanitizerError(
            f"{PROGRAM}: not installed; it comes with the CUDA toolkit (Debian, Ubuntu: apt-get install "
            "cuda-sanitizer-13-0; or NVIDIA's cuda-toolkit), and must be on PATH"
        )
    with tempfile.TemporaryDirectory(prefix="attnfuzz-sanitizer-") as name:
        folder = Path(name)
        (folder / "case.json").write_text(to_json(case))
        options = ["--tool", tool, "--log-file", str(folder / "log"), "--print-limit", str(_MOST)]
        options += ["--error-exitcode", str(_FAILED), *_OPTIONS.get(tool, ())]
        options += ["--kernel-name", f"kernel_substring={kernels}"] if kernels else []
        inner = [sys.executable, "-P", "-m", "fuzz.sanitizer.alone", str(folder / "case.json"), str(folder / "out")]
        began = time.monotonic()
        ended, output = _follow([program, *options, *inner, device, *files], limit)
        seconds = time.monotonic() - began
        log = (folder / "log").read_text(errors="replace") if (folder / "log").exists() else ""
        out = json.loads((folder / "out").read_text()) if (folder / "out").exists() else {}
    return _verdict(case, tool, ended, output, log, out, seconds, limit)


def _follow(command: list[str], limit: float) -> tuple[int | None, str]:
    """Exit code (None: killed at the limit) and output. The processes die with this one: a kernel that hangs would keep
    the GPU."""
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that every tensor is an allocation of its own
    env["PYTHONPATH"] = search_path()
    child_end, parent_pipe = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _TIED, str(child_end), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
        pass_fds=(child_end,),
    )
    os.close(child_end)
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output.decode(errors="replace")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        os.close(parent_pipe)


def _verdict(
    case: Case, tool: str, ended: int | None, output: str, log: str, out: dict[str, str], seconds: float, limit: float
) -> Verdict:
    report = read(log or output, tool)
    evidence: dict[str, object] = {"sanitizer": log[-20_000:] or output[-4000:]}
    findings = [*report.findings, *_more(report, tool, ended, output, out, limit)]
    if not findings and (report.errors is None or report.trouble):
        why = (report.trouble or tuple(output.strip().splitlines()[-1:]) or (f"ended with {ended}",))[0]
        raise SanitizerError(f"{PROGRAM} --tool {tool} gave no {'whole ' * bool(report.errors == 0)}report: {why}")
    outcome: Outcome = "hang" if ended is None else "fail" if findings else "pass"
    reason = "" if findings else f"{PROGRAM} --tool {tool}: 0 errors"
    times = {"sanitizer": round(seconds, 3)}
    return Verdict(
        case.id, outcome, tuple(findings), reason=reason, seconds=times, evidence=evidence, kernel=out.get("kernel", "")
    )


def _more(
    report: Report, tool: str, ended: int | None, output: str, out: dict[str, str], limit: float
) -> list[Finding]:
    """Output of the run itself beside the sanitizer's entries."""
    oracle = f"sanitizer.{tool}"
    if ended is None:
        return [Finding(oracle, "hang", f"not done after {limit:g} s under {PROGRAM}", place=Location(pattern="run"))]
    if report.findings:
        return []
    if report.errors and not report.trouble:  # else what is counted may be the tool's own
        message = f"{report.errors} errors are counted, of which none could be read; the log is in the evidence"
        return [Finding(oracle, "unread", message, place=Location(pattern="run"))]
    if "raised" in out:
        return [Finding(oracle, "raised", f"the target raised {out['raised']}", place=Location(pattern="run"))]
    if report.errors is not None and not out:
        last = (output.strip().splitlines() or [""])[-1]
        return [Finding(oracle, "crash", f"the run died ({exit_name(ended)}): {last}", place=Location(pattern="run"))]
    return []
