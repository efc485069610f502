"""The process that builds are forked from: `python -m fuzz.compiling.server PARENT_PIPE SOCKET NICE`.

Started fresh and without a GPU, it imports the compiler and the recipes' modules once and forks a child for each build:
a fork costs milliseconds, the imports half a second and more. The child has a time limit, a log, and a process group of
its own; it holds the key's lock and dies with this process, as this one dies with its parent. Messages are
lines of JSON:
    in   {"id", "recipe", "options", "arch", "sources", "key", "cache", "limit"}
    out  {"id", "status": "built" | "cached" | "failed", "seconds", "why", "log"}
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from fuzz.compiling import compile_child
from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import Cache, Failure
from fuzz.process import fork_server
from fuzz.process.cache_folder import CacheError, unwritable
from fuzz.process.exits import exit_name

LOG = 1 << 15  # bytes of a log that are kept
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LONGEST = 3600.0  # seconds of one wait; poll takes no number above 2^31 milliseconds
IMPORTS = 60.0  # seconds that an import may take, at least
GRACE = 0.3  # seconds between the request for stacks and SIGKILL


def main(arguments: list[str]) -> None:
    """Serves one client until it is gone."""
    _, sock_fd, nice = fork_server.begin(arguments)
    os.nice(nice)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sock = socket.socket(fileno=sock_fd)
    sock.set_inheritable(False)
    _Server(sock).run()


@dataclass
class _Child:
    request: dict[str, Any]
    build: Build
    pid: int
    pipe: IO[bytes]  # one line: 'began', then the result; its end is the child's end
    parent_pipe: IO[bytes]
    log: IO[bytes]
    began: float = field(default_factory=time.monotonic)
    until: float | None = None  # None while it waits for another process that builds the same key
    killed: bool = False
    reply: bytes = b""


class _Server:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._children: dict[int, _Child] = {}  # by the pipe's descriptor
        self._bytes = b""

    def run(self) -> None:
        while True:
            poll = select.poll()
            for number in (self._sock.fileno(), *self._children):
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll(self._patience()):
                if number == self._sock.fileno():
                    if not self._requests():
                        self._end()
                else:
                    self._hear(self._children[number])
            for child in list(self._children.values()):
                if child.until is not None and time.monotonic() > child.until:
                    self._kill(child)

    def _patience(self) -> float | None:
        ends = [child.until for child in self._children.values() if child.until is not None]
        return min(max(0.0, min(ends) - time.monotonic()), LONGEST) * 1000 + 1 if ends else None

    def _requests(self) -> bool:
        """Takes what has come; False when the client is gone."""
        try:
            data = self._sock.recv(1 << 16)
        except ConnectionResetError:  # it left without reading the whole reply
            return False
        self._bytes += data
        *lines, self._bytes = self._bytes.split(b"\n")
        for line in lines:
            self._start(json.loads(line))
        return bool(data)

    def _start(self, request: dict[str, Any]) -> None:
        build = Build(request["recipe"], request["options"], request["arch"], tuple(request["sources"]))
        # An import that hangs would hang this process and all that is built: it ends with its stack on stderr instead.
        faulthandler.dump_traceback_later(min(max(request["limit"], IMPORTS), LONGEST), exit=True)
        try:
            compile_child.unchanged(build, request["key"])
            compile_child.preload(build)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            self._answer(request, build, Failure(_line(why), traceback.format_exc()))
            return
        finally:
            faulthandler.cancel_dump_traceback_later()
        reading, writing = os.pipe()
        child_end, parent_pipe = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        pid = os.fork()
        if pid == 0:
            self._sock.close()
            for other in self._children.values():
                other.parent_pipe.close()
            os.close(parent_pipe)
            _work(build, Path(request["cache"]), writing, child_end, log)
        os.close(writing)
        os.close(child_end)
        pipe, parent_pipe_file = os.fdopen(reading, "rb", 0), os.fdopen(parent_pipe, "wb", 0)
        self._children[reading] = _Child(request, build, pid, pipe, parent_pipe_file, log)

    def _hear(self, child: _Child) -> None:
        data = os.read(child.pipe.fileno(), 4096)
        child.reply += data
        if child.until is None and child.reply.startswith(b"began\n"):
            child.began = time.monotonic()
            child.until = child.began + child.request["limit"]
        if not data:
            self._reap(child)

    def _kill(self, child: _Child) -> None:
        """Asks for the Python stacks, which go to the log, then ends the child's whole group."""
        child.killed, child.until = True, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGUSR2)
        time.sleep(GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def _reap(self, child: _Child) -> None:
        number = child.pipe.fileno()
        _, status = os.waitpid(child.pid, 0)
        with contextlib.suppress(ProcessLookupError):  # what the child left behind
            os.killpg(child.pid, signal.SIGKILL)
        del self._children[number]
        log = fork_server.tail(child.log, LOG)
        child.pipe.close()
        child.parent_pipe.close()
        child.log.close()
        seconds = time.monotonic() - child.began
        result = child.reply.rpartition(b"\n")[2]  # it may have failed before it began
        if result and os.waitstatus_to_exitcode(status) == 0:
            found = json.loads(result)
            if found["status"] != "failed":
                self._send({"id": child.request["id"], "why": "", "log": "", **found})
                return
            why, machine = found["why"], found["machine"]
        elif child.killed:
            why, machine = f"not done after {child.request['limit']:g} s, killed", False
        else:
            code = os.waitstatus_to_exitcode(status)
            why, machine = f"the compiler died: {exit_name(code)}", code == -signal.SIGKILL
        if full := unwritable(Path(child.request["cache"])):  # compilers die of it in many ways
            why, machine = f"{why} ({child.request['cache']}: {full})", True
        self._answer(child.request, child.build, Failure(why, log, round(seconds, 3), machine))

    def _answer(self, request: dict[str, Any], build: Build, failure: Failure) -> None:
        with contextlib.suppress(OSError, CacheError):
            cache = Cache(request["cache"])
            cache.sweep([build.key])
            if build.key == request["key"]:
                cache.failed(build, failure)
        self._send({"id": request["id"], "status": "failed", **failure.__dict__})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        os._exit(0)


def _work(build: Build, folder: Path, writing: int, child_end: int, log: IO[bytes]) -> NoReturn:
    """The child: waits for the key's lock, builds, reports how it ended."""
    fork_server.begin_child(child_end)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    code = 0
    try:
        cache = Cache(folder)
        with cache.locked(build.key):
            os.write(writing, b"began\n")
            seconds = None if cache.load(build) is not None else compile_child.make(build, cache)
        found = {"status": "cached" if seconds is None else "built", "seconds": seconds or 0.0}
        os.write(writing, json.dumps(found).encode())
    except BaseException as error:
        machine = isinstance(error, (OSError, MemoryError, CacheError))
        found = {"status": "failed", "why": _line(f"{type(error).__name__}: {error}"), "machine": machine}
        os.write(writing, json.dumps(found).encode())
        with contextlib.suppress(OSError):  # the log is on a disk that may be full
            traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _line(text: str) -> str:
    """Message of an exception, in one line: the compiler's messages come in colours and over many lines."""
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    return " ".join(lines[:4])[:300]


if __name__ == "__main__":
    main(sys.argv[1:])
