"""Looks at a device from inside the child while a run does not end: a thread, with the target's own eyes.

The main thread waits in a synchronisation, which releases the GIL; a copy on a second stream works while a kernel spins
on a GPU. So a target that has a method `look` is asked once its run has outlasted its limit, and again later: what
stands still between two looks will not move. Nothing is ever looked at in a run that ends in time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from fuzz.core.target import Target

PHASE = "run"
AGAIN = 3.0  # times the limit: from one look to the next; the client calls a hang one at ten times the limit


class DeviceProbe:
    """One per child. `tell` is given what was seen, as JSON values."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._change = threading.Condition()
        self._target: Target | None = None
        self._due: float | None = None
        self._limit = 0.0
        self._thread: threading.Thread | None = None

    def begin(self, target: Target) -> None:
        """A case of `target` begins. The first one that can look starts the thread."""
        with self._change:
            self._target = target if target.looks else None
            self._due = None
        if self._target is not None and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="device probe", daemon=True)
            self._thread.start()

    def entered(self, phase: str, limit: float) -> None:
        """A phase of the case begins; only the run is watched."""
        if self._target is None:
            return
        with self._change:
            self._limit = limit
            self._due = monotonic() + limit if phase == PHASE else None
            self._change.notify()

    def end(self) -> None:
        """The case has ended."""
        if self._target is not None:
            with self._change:
                self._target, self._due = None, None

    def _watch(self) -> None:
        while True:
            with self._change:
                target, due = self._target, self._due
                left = None if due is None else due - monotonic()
                if target is None or left is None or left > 0:
                    self._change.wait(left)
                    continue
            seen = _look(target)
            with self._change:
                if self._due == due:
                    self._due = monotonic() + AGAIN * self._limit
                    self._tell(seen)  # before a next phase, or case, is begun: it is of this one


def _look(target: Target) -> dict[str, Any]:
    try:
        return dict(target.look())
    except Exception as error:  # best effort: the verdict is a hang either way
        return {"look_trouble": f"{type(error).__name__}: {error}"}
