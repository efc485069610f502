"""A child dies with its parent, however that dies, and whatever the child is doing.

The parent holds the writing end of a pipe on which nothing is ever written; the child asks the kernel to SIGKILL its
whole process group when something happens on the reading end (O_ASYNC with F_SETSIG and F_SETOWN). The end of the
parent closes the pipe: half a millisecond later the group is gone. No thread and no handler runs for it in the child,
so it works while native code holds the GIL, and while the child is stopped. PR_SET_PDEATHSIG kills a process when the
*thread* that started it ends, and spares its group: that is for processes whose parent's main thread starts them and
whose own children are tied (`die_with_parent`).
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import select
import signal
import threading
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
PERIOD = 0.5  # seconds


def tie(reading_end: int) -> None:
    """In the child, which must lead its own process group: live no longer than whoever holds the other end."""
    os.set_inheritable(reading_end, False)
    fcntl.fcntl(reading_end, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(reading_end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reading_end, fcntl.F_SETFL, fcntl.fcntl(reading_end, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(reading_end, select.POLLIN | select.POLLHUP)
    if poll.poll(0):  # the parent died before the kernel was asked
        os._exit(1)


def leave_with_parent() -> None:
    """In a process that was started by another tool's means (pytest-xdist's worker): a thread ends it within PERIOD
    seconds of its parent's end, whatever the main thread does. Native code that holds the GIL holds the thread up."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(PERIOD)
        os._exit(1)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is the main thread's
    threading.Thread(target=look, name="parent death", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """In a process of multiprocessing's, first of all: the kernel sends SIGKILL as soon as the thread that started it
    has ended, which must be its program's main thread, or one that waits for it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent.pid:  # it died before the kernel was asked
        os._exit(1)


def adopt_orphans() -> None:
    """In the child: becomes the parent of whatever its own children leave behind, daemons too, so that they are found
    among its descendants and end with it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_tracing() -> None:
    """In the child: lets a sibling (py-spy) read its memory where Yama allows only ancestors. No-op elsewhere."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & (2**64 - 1)), 0, 0, 0)
