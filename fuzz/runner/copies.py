"""Copies of a worker: forks that its target makes, and that come back from the target's call as the worker does.

Such a copy would judge its case once more and answer a second time. It cannot: its connection is the worker's
(wire.py). It ends with an exit code of its own, by which the worker learns of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic, sleep

RETURNED = 113  # exit code of a copy that came back
PATIENCE = 2.0  # seconds to wait for what a target has forked to end
TICK = 0.005


class Copies:
    """Forks of the process that makes it, case by case."""

    def __init__(self) -> None:
        self._forked = False
        os.register_at_fork(after_in_parent=self._note)

    def begin(self) -> None:
        """A case begins."""
        self._forked = False

    def returned(self) -> bool:
        """True if a process that was forked since `begin`, by Python's means, has come back from the call, or does so
        within PATIENCE seconds. Reaps those that have; all others are the target's own."""
        until = monotonic() + PATIENCE
        while self._forked:
            states = [_state(pid) for pid in children()]
            if RETURNED in states:
                return True
            if None not in states or monotonic() > until:
                return False
            sleep(TICK)
        return False

    def _note(self) -> None:
        self._forked = True


def children() -> list[int]:
    """Process ids of this process's children."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def _state(pid: int) -> int | None:
    """Exit code of a child, None while it runs; that of a copy is reaped."""
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        if ended.si_code == os.CLD_EXITED and ended.si_status == RETURNED:
            os.waitpid(pid, 0)
        return ended.si_status
    return 0
