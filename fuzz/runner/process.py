"""Child: one process from outside. Starting it, its pipe, its output, its end. Owns every descriptor it opens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from time import monotonic, sleep

import psutil

from fuzz.runner.errors import RunnerError
from fuzz.runner.gpu import CoreDump
from fuzz.runner.limits import Limits
from fuzz.runner.wire import Connection, Gone, Start, ToClient

_children: weakref.WeakSet[Child] = weakref.WeakSet()


class Child:
    """A running `python -m fuzz.runner.child`, in a session and process group of its own.

    Its output goes into memory (a memfd), not a pipe: nobody has to read it, it cannot block, and grandchildren that
    hold it open keep nobody waiting. A second one takes faulthandler's stacks.
    """

    def __init__(self, start: Start, env: dict[str, str], limits: Limits, core: CoreDump | None = None) -> None:
        self._limits = limits
        self.core = core
        env = env | (core.environment if core else {})
        mine, theirs = socket.socketpair()
        life, self._lifeline = _pipe()
        self._log = _memory_file("attnfuzz-output")
        self._stacks = _memory_file("attnfuzz-stacks")
        given = (theirs.fileno(), life.fileno(), self._stacks.fileno())
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-u", "-m", "fuzz.runner.child", *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=given,
                env={**env, "PYTHONPATH": _search_path()},
                start_new_session=True,
            )
        except OSError as error:
            raise RunnerError(f"cannot start {sys.executable}: {error}") from error
        finally:
            theirs.close()
            life.close()
        mine.settimeout(limits.reap)
        self.began = monotonic()
        self.connection = Connection(mine, ToClient)
        self.resident = 0  # bytes when it was ready; the client's note
        _children.add(self)
        with contextlib.suppress(Gone):  # whoever waits for Ready finds out
            self.connection.send(start)

    @property
    def pid(self) -> int:
        """Process id, also that of its group."""
        return self._popen.pid

    def exited(self) -> bool:
        """Whether it has ended. Does not reap it, so that its pid and its group's id stay its own until `kill`."""
        if self._popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, seconds: float) -> bool:
        """Whether it ends by itself within `seconds`."""
        until = monotonic() + seconds
        pause = 0.0005
        while not self.exited():
            if monotonic() > until:
                return False
            sleep(pause)
            pause = min(2 * pause, 0.02)
        return True

    def kill(self) -> int:
        """SIGKILL to it, its group and its descendants; reaps it. Returns its exit code (negative: a signal), also when
        it had ended before. Raises RunnerError where the kernel does not let go of it."""
        if self._popen.returncode is None:
            for process in _descendants(self.pid):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        try:
            return self._popen.wait(self._limits.reap)
        except subprocess.TimeoutExpired:
            raise RunnerError(f"process {self.pid} did not end within {self._limits.reap:g} s of SIGKILL") from None

    def close(self) -> None:
        """Kills it and closes every descriptor."""
        try:
            self.kill()
        finally:
            self.release()
            self._log.close()
            self._stacks.close()
            if self.core is not None:
                self.core.remove()
            _children.discard(self)

    def release(self) -> None:
        """Closes the pipe and the lifeline, which alone kills the child."""
        self._lifeline.close()
        self.connection.close()

    def new_case(self) -> None:
        """Forgets the output so far."""
        if os.fstat(self._log.fileno()).st_size:
            os.ftruncate(self._log.fileno(), 0)

    def limit_output(self) -> None:
        """Throws the output away where it is more than memory should hold."""
        if os.fstat(self._log.fileno()).st_size > self._limits.spill:
            os.ftruncate(self._log.fileno(), 0)

    def output(self) -> str:
        """The tail of stdout and stderr together."""
        return _tail(self._log.fileno(), self._limits.log)

    def dump_by_signal(self) -> str:
        """All threads' Python stacks from faulthandler's handler, or ''. Works while native code holds the GIL."""
        os.ftruncate(self._stacks.fileno(), 0)
        os.kill(self.pid, signal.SIGUSR2)
        until = monotonic() + self._limits.signal
        seen = ""
        while monotonic() < until:
            sleep(0.005)
            now = _tail(self._stacks.fileno(), 1 << 16)
            if now and now == seen:
                break
            seen = now
        return seen


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _pipe():
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def _memory_file(name: str):
    number = os.memfd_create(name, os.MFD_CLOEXEC)
    file = open(number, "rb+", buffering=0)  # noqa: SIM115 (closed by Child.close)
    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_APPEND)
    return file


def _tail(number: int, size: int) -> str:
    whole = os.fstat(number).st_size
    data = os.pread(number, size, max(0, whole - size))
    return ("… " if whole > size else "") + data.decode(errors="replace")


def _search_path() -> str:
    """The parent's sys.path, so that the child imports the same code whatever way the parent found it."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)


def _after_fork() -> None:
    """A fork of the client must not keep its children alive, nor speak to them."""
    for child in list(_children):
        child.release()


os.register_at_fork(after_in_child=_after_fork)
