"""A fork of this process that goes on as another program, in the form that subprocess.Popen has for a new one.

It starts with all modules that this process has imported: milliseconds instead of the seconds of torch's imports. A
fork is safe only from a process with a single thread (`may_fork`).
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@contextmanager
def one_thread() -> Iterator[None]:
    """Gives processes that are started inside one thread for each library of theirs."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def may_fork() -> bool:
    """True if this process has one thread only."""
    return len(os.listdir("/proc/self/task")) == 1


class ForkedProcess:
    """A child process that runs `main` and ends. It leads a session, has no other descriptors of this process than
    `keep`, and writes stdout and stderr to the descriptor `output`."""

    def __init__(self, main: Callable[[], object], *, keep: tuple[int, ...], output: int, env: dict[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _begin(keep, output, env)
                main()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # where main has not ended the process itself

    def wait(self, timeout: float) -> int:
        """Its exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        until, pause = monotonic() + timeout, 0.0005
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif monotonic() > until:
                raise subprocess.TimeoutExpired("a fork", timeout)
            else:
                sleep(pause)
                pause = min(2 * pause, 0.02)
        return self.returncode


def _begin(keep: tuple[int, ...], output: int, env: dict[str, str]) -> None:
    """Leaves what belongs to the parent: its session, signals, descriptors and environment."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with suppress(OSError):
                os.close(int(name))
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "rb", closefd=False))
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), write_through=True)
        for number in (1, 2)  # type: ignore[arg-type]
    )
    os.environ.clear()
    os.environ.update(env)
