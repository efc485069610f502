"""Targets that are right, and whose side effects would stop a careless harness."""

from __future__ import annotations

import os
import signal
import sys
import time

from honest import Result, attention, fake

_MEGABYTES = 8


@fake("prints_megabytes")
def prints_megabytes(*arguments) -> Result:
    """Eight megabytes each on standard output and standard error: more than any pipe holds."""
    line = "x" * 1023 + "\n"
    for stream in (sys.stdout, sys.stderr):
        stream.write(line * (_MEGABYTES * 1024))
        stream.flush()
    return attention(*arguments)


@fake("leaves_a_grandchild")
def leaves_a_grandchild(*arguments) -> Result:
    """Forks a process that sleeps and holds every descriptor open; writes its id on standard output."""
    print("grandchild", _fork_a_sleeper(), flush=True)
    return attention(*arguments)


@fake("dies_before_its_grandchild")
def dies_before_its_grandchild(*arguments) -> Result:
    """Forks such a process, and is killed: the connection stays open although the child is gone."""
    print("grandchild", _fork_a_sleeper(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return attention(*arguments)


def _fork_a_sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
        os._exit(0)
    return pid
