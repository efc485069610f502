"""Commands of a stage: their output goes to the stage's log, and their last lines to the terminal where they fail."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.nightly.state import Night

_DEATH = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None)
SHOWN = 15  # lines of a log


def run(night: Night, stage: str, command: Sequence[str], *, variables: Mapping[str, str] | None = None) -> int:
    """Exit code of a command, whose sessions belong to the night. variables: of its environment."""
    environment = os.environ | {"ATTNFUZZ_NIGHT": night.name} | dict(variables or {})
    with open(night.log(stage), "a") as log:
        log.write(f"$ {shlex.join(command)}\n")
        log.flush()
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            preexec_fn=_die_with_parent, check=False,
        ).returncode  # fmt: skip


def output(night: Night, stage: str, command: Sequence[str], *, seconds: float | None = None) -> tuple[int, str]:
    """Exit code and standard output of a command; the rest goes to the log. 124 where it took more than `seconds`."""
    with open(night.log(stage), "a") as log:
        log.write(f"$ {shlex.join(command)}\n")
        log.flush()
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, timeout=seconds,
                env=os.environ | {"ATTNFUZZ_NIGHT": night.name}, preexec_fn=_die_with_parent, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            log.write(f"ended after {seconds:g} s\n")
            return 124, ""
        log.write(done.stdout)
        return done.returncode, done.stdout


def tail(path: Path, lines: int = SHOWN) -> str:
    """The last lines of a log."""
    return "\n".join(f"    {line}" for line in path.read_text(errors="replace").splitlines()[-lines:])


def _die_with_parent() -> None:
    """In the child: a night that is killed leaves no session behind, which would hold the folder of its own."""
    _LIBC.prctl(_DEATH, signal.SIGKILL, 0, 0, 0)
