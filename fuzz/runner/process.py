"""Zygote and Child, the runner's two processes from outside: start, fork, output, end. They own their descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import psutil

from fuzz.process import fork_server
from fuzz.process.exits import exit_name, innermost, last_line
from fuzz.runner.errors import KilledError, RunnerError
from fuzz.runner.gpu import CoreDump
from fuzz.runner.limits import Limits
from fuzz.runner.wire import Connection, Ended, Forked, FromWorker, FromZygote, Gone, Ready, Refused, Start

_owned: weakref.WeakSet[Zygote | Child] = weakref.WeakSet()


class Zygote:
    """A running `python -m fuzz.runner.zygote`, in a session and process group of its own. `spent`: it became a worker.

    Its output and its workers' goes into memory (a memfd), not a pipe: nobody has to read it, it cannot block, and
    grandchildren that hold it open keep nobody waiting. A second one takes faulthandler's stacks.
    """

    def __init__(self, start: Start, env: dict[str, str], limits: Limits, *, fork: bool = False) -> None:
        """fork: as a fork of this process, which has imported what a zygote needs and has a single thread."""
        self.limits = limits
        self.spent = False
        self._ready = False
        self._ended: dict[int, int] = {}
        control, control_there = socket.socketpair()
        self._requests, requests_there = socket.socketpair()
        self._log, self._stacks = _memory_file("attnfuzz-output"), _memory_file("attnfuzz-stacks")
        try:
            given = [there.fileno() for there in (control_there, requests_there, self._stacks)]
            if fork:
                from fuzz.runner import zygote

                server = fork_server.start_as_fork(zygote.main, given, env, self._log)
            else:
                server = fork_server.start("fuzz.runner.zygote", given, env, stdout=self._log, stderr=self._log)
            self.popen, self._parent_pipe = server.popen, server.parent_pipe
        except OSError as error:
            raise RunnerError(f"cannot start {sys.executable}: {error}") from error
        finally:
            control_there.close()
            requests_there.close()
        self._control = Connection(control, FromZygote)
        _owned.add(self)
        with contextlib.suppress(Gone):  # whoever waits for Ready finds out
            self._control.send(start)

    @property
    def pid(self) -> int:
        """Process id, also that of its group."""
        return self.popen.pid

    def alive(self) -> bool:
        """True if it is there and can fork."""
        return not self.spent and not self.exited()

    def exited(self) -> bool:
        """True if it has ended. Does not reap it, so that its pid and its group's id stay its own until `kill`."""
        return self.popen.returncode is not None or _peek(self.pid) is not None

    def fork(self, targets: Iterable[str]) -> Child:
        """A fresh worker that has loaded `targets`. Raises RunnerError when imports fail or never end."""
        if not self._ready:
            self._await(Ready, "starting")
            self._ready = True
        ours, theirs = socket.socketpair()
        child_end, parent_pipe = fork_server.pipe()
        try:
            request = json.dumps(sorted(targets)).encode()
            socket.send_fds(self._requests, [request], [theirs.fileno(), child_end.fileno()])
            pid = self._await(Forked, "forking a worker").pid
        except OSError:
            raise self._obituary("forking a worker") from None
        finally:
            theirs.close()
            child_end.close()
        self.spent = pid == self.pid
        ours.settimeout(self.limits.reap)
        return Child(self, pid, ours, parent_pipe)

    def ended(self, pid: int) -> int | None:
        """Exit code of a worker, or None while it runs; that of a worker whose zygote died first is SIGKILL's."""
        if pid == self.pid:
            return _peek(pid) if self.popen.returncode is None else self.popen.returncode
        with contextlib.suppress(Gone):
            while (message := self._control.receive(0.0)) is not None:
                if isinstance(message, Ended):
                    self._ended[message.pid] = message.code
        if pid not in self._ended and self.exited() and not running(pid):
            return -signal.SIGKILL
        return self._ended.get(pid)

    def close(self) -> None:
        """Kills it, with whatever is in its group, and closes every descriptor."""
        try:
            if self.popen.returncode is None:
                kill_group(self.pid)
            self.popen.wait(self.limits.reap)
        except subprocess.TimeoutExpired:
            raise RunnerError(f"process {self.pid} did not end within {self.limits.reap:g} s of SIGKILL") from None
        finally:
            self.release()
            self._log.close()
            self._stacks.close()
            _owned.discard(self)

    def release(self) -> None:
        """Closes connections and parent_pipe, which alone kills the process."""
        self._parent_pipe.close()
        self._control.close()
        self._requests.close()

    def forget_output(self, most: int = 0) -> None:
        """Throws the output away where it is more than `most` bytes."""
        if os.fstat(self._log.fileno()).st_size > most:
            os.ftruncate(self._log.fileno(), 0)

    def output(self) -> str:
        """The tail of stdout and stderr together."""
        return fork_server.tail(self._log, self.limits.log)

    def dump_by_signal(self, pid: int) -> str:
        """All threads' Python stacks from faulthandler's handler, or ''. Works while native code holds the GIL."""
        os.ftruncate(self._stacks.fileno(), 0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        until = monotonic() + self.limits.signal
        seen = ""
        while monotonic() < until:
            sleep(0.005)
            now = fork_server.tail(self._stacks, 1 << 16)
            if now and now == seen:
                break
            seen = now
        return seen

    def _await(self, wanted: type, doing: str) -> Any:
        limit = self.limits.start
        until = monotonic() + limit
        while True:
            try:
                message = self._control.receive(self.limits.tick)
            except Gone:
                raise self._obituary(doing) from None
            if isinstance(message, wanted):
                return message
            if isinstance(message, Refused):
                raise RunnerError(f"failed {doing}: {message.line}\n{message.trace}")
            if monotonic() > until:
                where = innermost(self.dump_by_signal(self.pid)) or "native code"
                raise RunnerError(f"not done {doing} after {limit:g} s, in {where}")

    def _obituary(self, doing: str) -> RunnerError:
        until = monotonic() + 1.0
        while not self.exited() and monotonic() < until:
            sleep(0.01)
        kill_group(self.pid)
        code = self.popen.wait(self.limits.reap)
        return ended_early(doing, code, self.output())


class Child:
    """A worker: the process that runs cases. Leads a process group; reaped by its zygote."""

    def __init__(self, zygote: Zygote, pid: int, sock: socket.socket, parent_pipe: IO[bytes]) -> None:
        self.zygote, self.pid, self._parent_pipe = zygote, pid, parent_pipe
        self.connection = Connection(sock, FromWorker)
        self.core: CoreDump | None = None
        self.resident = 0  # bytes when it was opened; the client's note
        _owned.add(self)

    def exited(self) -> bool:
        """True if it has ended. Its pid stays its own until the zygote forks again."""
        return self.zygote.ended(self.pid) is not None

    def wait(self, seconds: float) -> bool:
        """True if it ends by itself within `seconds`."""
        until = monotonic() + seconds
        pause = 0.0005
        while not self.exited():
            if monotonic() > until:
                return False
            sleep(pause)
            pause = min(2 * pause, 0.02)
        return True

    def kill(self) -> int:
        """SIGKILL to it, its group and its descendants. Returns its exit code (negative: a signal), also when it had
        ended before. Raises RunnerError where the kernel does not let go of it."""
        if self.zygote.exited() and self.pid != self.zygote.pid:
            self.release()  # the pid may be another's by now; the parent_pipe knows its group all the same
        else:
            kill_group(self.pid)
        if not self.wait(self.zygote.limits.reap):
            raise RunnerError(f"process {self.pid} did not end within {self.zygote.limits.reap:g} s of SIGKILL")
        code = self.zygote.ended(self.pid)
        assert code is not None
        return code

    def close(self) -> None:
        """Kills it and closes every descriptor."""
        try:
            self.kill()
        finally:
            self.release()
            if self.core is not None:
                self.core.remove()
            _owned.discard(self)

    def release(self) -> None:
        """Closes connection and parent_pipe, which alone kills it."""
        self._parent_pipe.close()
        self.connection.close()

    def dump_by_signal(self) -> str:
        """See Zygote."""
        return self.zygote.dump_by_signal(self.pid)


def ended_early(doing: str, code: int, output: str) -> RunnerError:
    """The error of a process that ended before it could work."""
    kind = KilledError if code == -signal.SIGKILL else RunnerError
    return kind(f"the child died while {doing}, {exit_name(code)}: {last_line(output)}")


def kill_group(pid: int) -> None:
    """SIGKILL to a process that was not reaped yet, to the group that it leads, and to its descendants elsewhere."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


def running(pid: int) -> bool:
    """True if the process is there and has not ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _peek(pid: int) -> int | None:
    """Exit code of our own child, or None while it runs. Does not reap it, so its pid stays its own."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _memory_file(name: str) -> IO[bytes]:
    number = os.memfd_create(name, os.MFD_CLOEXEC)
    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_APPEND)
    return open(number, "rb+", buffering=0)


def _after_fork() -> None:
    """A fork of the client must not keep these processes alive, nor speak to them."""
    for process in list(_owned):
        process.release()


os.register_at_fork(after_in_child=_after_fork)
