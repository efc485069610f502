"""Targets that take their process with them, or try to."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

from honest import Result, attention, fake


@fake("segfaults")
def segfaults(*arguments) -> Result:
    """Reads address 0."""
    ctypes.string_at(0)
    return attention(*arguments)


@fake("aborts")
def aborts(*arguments) -> Result:
    """Fails an assertion in native code, as it were, with a line on standard error."""
    os.write(2, b"fake.cu:12: assertion `m_block < num_m_blocks' failed\n")
    os.abort()
    return attention(*arguments)


@fake("exits")
def exits(*arguments) -> Result:
    """Ends the process without Python's leave."""
    os._exit(3)
    return attention(*arguments)


@fake("killed")
def killed(*arguments) -> Result:
    """Ends as a process does that the system kills."""
    os.kill(os.getpid(), signal.SIGKILL)
    return attention(*arguments)


@fake("calls_sys_exit")
def calls_sys_exit(*arguments) -> Result:
    """Raises SystemExit, which `except Exception` does not catch."""
    sys.exit(4)
    return attention(*arguments)


@fake("forks_and_returns")
def forks_and_returns(*arguments) -> Result:
    """Returns in two processes, of which the second is the later one."""
    if os.fork() == 0:
        time.sleep(0.05)
    return attention(*arguments)


def _daemon(*arguments) -> Result:
    """Starts `sleep 1234.5` in a session of its own, which nobody waits for, and writes its number once it sleeps."""
    started = "setsid sleep 1234.5 >/dev/null 2>&1 & until grep -qx sleep /proc/$!/comm; do :; done; echo daemon $!"
    subprocess.run(["sh", "-c", started], check=True)
    return attention(*arguments)


@fake("leaves_a_daemon")
def leaves_a_daemon(*arguments) -> Result:
    """Right, but a process of its own goes on."""
    return _daemon(*arguments)


@fake("leaves_a_daemon_and_exits")
def leaves_a_daemon_and_exits(*arguments) -> Result:
    """A process of its own outlives it."""
    _daemon(*arguments)
    os._exit(3)


@fake("raises")
def raises(*arguments) -> Result:
    """Raises, without having declared a refusal."""
    raise RuntimeError("no kernel image for this shape")
