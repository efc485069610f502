"""A user's script on the emulated GPU: its Triton kernels take CPU tensors, and what is found is told at the end."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.devices.emulator.frontends.emulated import emulated
from fuzz.devices.emulator.report.report import Finding, Report


@dataclass(frozen=True)
class ScriptRun:
    """End of a script.

    launches  kernels that were launched
    found     a text for each finding, deadlocks first; findings of one kind at one instruction are one
    error     the exception by which the script ended, or None; SystemExit where it called sys.exit
    """

    launches: int
    found: tuple[str, ...]
    error: BaseException | None


def run_script(path: Path, arguments: Sequence[str], arch: str, **settings: Any) -> ScriptRun:
    """Runs a Python script as `python PATH ARGUMENTS…` would, with `emulated(arch, **settings)` around it. A kernel in
    which something is found goes on, where it can. Raises ValueError where Triton interprets already, and for settings
    out of range."""
    os.environ.pop("TRITON_INTERPRET", None)
    error: BaseException | None = None
    with _as_main(path, arguments), emulated(arch, strict=False, **settings) as gpu:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except (Exception, SystemExit) as raised:
            error = raised
    return ScriptRun(len(gpu.reports), tuple(_texts(gpu.reports)), error)


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """sys.argv and sys.path as the script expects them."""
    argv, paths = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, paths


def _texts(reports: Sequence[Report]) -> Iterator[str]:
    for report in reports:
        if report.deadlock is not None:
            yield f"{report.deadlock}\n  kernel {report.kernel}"
        elif report.endless is not None:
            yield str(report.endless)
        elif report.status == "budget":
            yield f"kernel {report.kernel} does not end within its budget of micro-operations"
    alike: dict[tuple[str, str, int], list[Finding]] = {}
    for report in reports:
        for one in report.findings:
            alike.setdefault((one.kind, one.kernel, one.line), []).append(one)
    for ones in alike.values():
        yield f"{ones[0]}{f' (and {len(ones) - 1} more like it)' if len(ones) > 1 else ''}"
