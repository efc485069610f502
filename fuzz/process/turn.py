"""Turns: few processes at a time do what each does the slower the more do it at once, such as opening a GPU.

A place is a lock on a file, which ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

TICK = 0.01  # seconds between two looks for a free place


@contextmanager
def turn(what: str, places: int, patience: float) -> Iterator[bool]:
    """Holds one of `places` places for `what` among all processes of this user. Gives False, and goes on all the same,
    where none was free for `patience` seconds or locks cannot be had."""
    with ExitStack() as held:
        files = []
        with suppress(OSError):
            folder = os.path.join(tempfile.gettempdir(), f"attnfuzz-turns-{os.getuid()}")
            os.makedirs(folder, mode=0o700, exist_ok=True)
            files = [held.enter_context(open(os.path.join(folder, f"{what}-{i}"), "w")) for i in range(places)]
        until = time.monotonic() + patience
        while not (has_place := any(map(_locked, files))) and files and time.monotonic() < until:
            time.sleep(TICK)
        yield has_place


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
