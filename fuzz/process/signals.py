"""Ctrl-C while processes start: a terminal sends it to all of them, and one that still imports its modules would answer
with a traceback. It is held back there until the process is ready for it, and is not lost: see `held` and `ready`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from time import monotonic

PATIENCE = 5.0  # seconds for processes to end by themselves


@contextmanager
def held() -> Iterator[None]:
    """Holds SIGINT back in this thread, and in the processes that are started in it until they say `ready`; what came
    in the meantime is raised as KeyboardInterrupt at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ready() -> None:
    """Ends the holding in a process that was started while SIGINT was held: raises KeyboardInterrupt where it came
    before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM is raised as KeyboardInterrupt, in a main thread whose SIGTERM nobody else handles."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def interrupt_once() -> None:
    """Only the first SIGINT is raised as KeyboardInterrupt: it may come from a terminal and from the parent."""

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def end(processes: Sequence[BaseProcess], patience: float = PATIENCE) -> None:
    """Waits `patience` seconds in all for processes that were interrupted too, then kills what is left."""
    until = monotonic() + patience
    for process in processes:
        process.join(max(until - monotonic(), 0.0))
    for process in processes:
        process.kill()
