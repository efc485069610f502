"""Imports of many modules at once, without the collection of garbage; the end of a process that has imported them."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Context in which modules are imported: garbage is not collected. Modules make a million objects and hardly any
    garbage, and looking for it takes a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def freeze() -> None:
    """Before a process that has imported everything is forked: what it has is kept out of later collections, which
    would go through all of it, and copy the memory that the forks share."""
    gc.freeze()


def end_without_collecting() -> None:
    """For a process that is one command: at its end no garbage is looked for among all that it has imported, which
    takes 0.4 s after torch. The memory goes with the process; what is registered with atexit still runs."""
    atexit.unregister(_keep_all)
    atexit.register(_keep_all)


def _keep_all() -> None:
    if "cutlass" not in sys.modules:  # whose nanobind prints what is never collected, as leaks
        gc.freeze()
