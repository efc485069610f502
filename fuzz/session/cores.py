"""The core that a worker of a GPU's session keeps to, with its child: each its own, over all sessions of a machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_HELD: list[int] = []  # locks of this process; they end with it


def own_core(device: str, count: int, name: str) -> int | None:
    """Core of the worker w<number> of `count`, which its child shares; None: any core.

    The two work in turn, and a child that waits for a GPU wakes where its caches are warm: 16 workers on 16 cores of an
    H200's machine ran 12 % more cases a second so (480 executed instead of 427). Without a GPU a child has a thread
    beside it, which keeps another core busy; fewer cores than workers are shared by the system.
    """
    if not device.startswith("cuda") or not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[int(name[1:]) % len(cores)] if count <= len(cores) else None


def keep_to(core: int) -> int | None:
    """Keeps this process to `core`, or to the next one that no worker of another session keeps to; returns it. None:
    all are taken, or the system refuses, and the process may run on any."""
    cores = sorted(os.sched_getaffinity(0))
    first = cores.index(core) if core in cores else 0
    for one in cores[first:] + cores[:first]:
        if _lock(one):
            with suppress(OSError):  # the core was taken from this process meanwhile
                os.sched_setaffinity(0, {one})
                return one
    return None


def _lock(core: int) -> bool:
    """True if the core's lock is this process's from now on, or there can be no lock."""
    folder = Path(tempfile.gettempdir()) / f"attnfuzz-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / str(core), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a full disk, a folder of somebody else
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    _HELD.append(lock)
    return True
