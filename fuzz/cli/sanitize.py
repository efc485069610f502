"""`attnfuzz sanitize`: runs a script on the emulated GPU, and prints what is found as compute-sanitizer does."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fuzz.cli.exit_codes import FINDINGS, OK
from fuzz.devices.emulator.config import BLOCK_CHECKS
from fuzz.devices.emulator.frontends.script import run_script


def sanitize(
    path: Path, arguments: Sequence[str], arch: str, checks: Sequence[str], settings: Mapping[str, Any]
) -> int:
    """Runs the script, prints its findings, and returns the exit code: 1 with findings, else the script's own. checks:
    beside those of `emulated`. Raises FileNotFoundError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    ended = run_script(path, arguments, arch, checks=BLOCK_CHECKS | frozenset(checks), **settings)
    sys.stdout.flush()
    if ended.error is not None and not isinstance(ended.error, SystemExit):
        traceback.print_exception(ended.error.with_traceback(_from(path, ended.error.__traceback__)))
    for text in ended.found:
        print("\n".join(f"========= {line}" for line in text.splitlines()))
    errors, launches = _counted(len(ended.found), "error"), _counted(ended.launches, "launch", "es")
    print(f"========= ERROR SUMMARY: {errors} in {launches}")
    return FINDINGS if ended.found else _code(ended.error)


def _code(error: BaseException | None) -> int:
    """The exit code of a script that ended by `error`."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return OK if error is None else FINDINGS


def _from(path: Path, frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback from the script on; all of them where it has none."""
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename != str(path):
        first = first.tb_next
    return first or frames


def _counted(count: int, thing: str, plural: str = "s") -> str:
    return f"{count} {thing}{plural if count != 1 else ''}"
