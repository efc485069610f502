"""Pool: compiles many keys at once. The client of a server (server.py), which it starts, feeds and replaces.

What is cached is never sent. A build that fails, hangs or kills the compiler is one Ended with its log; a server that
dies costs the builds that it had in hand, and the next ones go to a fresh one. Leaving the `with` block, also by
Ctrl-C, kills everything; what was finished is in the cache, and of the rest nothing is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import Cache, Failure
from fuzz.compiling.compile_child import ENVIRONMENT
from fuzz.process import fork_server
from fuzz.process.cache_folder import unwritable

LIMIT = 120.0  # seconds that one build may take
MAX_JOBS = 16
REAP = 10.0
TICK = 0.2  # seconds until `stop` is heard
LEAVE = (
    1.0  # seconds for a server that was asked to stop to end by itself, and for killed builds to let go of their locks
)


@dataclass(frozen=True)
class Ended:
    """Result of one build. `cached`: it was there before. `why` and `log` are empty unless it failed; machine: as in
    cache.Failure."""

    build: Build
    status: Literal["cached", "built", "failed"]
    seconds: float = 0.0
    why: str = ""
    log: str = ""
    machine: bool = False


def auto_jobs() -> int:
    """One worker per core that this process may use, at most MAX_JOBS."""
    return min(len(os.sched_getaffinity(0)), MAX_JOBS)


class Pool:
    """At most `jobs` builds at once, each within `limit` seconds. Owns one server process, started when first needed.

    nice  lowers the priority of the builds, so that they take what other processes leave of the CPU: 0 to 19

    Raises ValueError on a bad number.
    """

    def __init__(self, cache: Cache, jobs: int = 1, limit: float = LIMIT, nice: int = 0) -> None:
        if jobs < 1:
            raise ValueError(f"jobs: must be at least 1, got {jobs}")
        if not limit > 0:
            raise ValueError(f"limit: must be a positive number of seconds, got {limit}")
        self.cache, self.jobs, self.limit, self.nice = cache, jobs, limit, nice
        self._server: _Server | None = None
        self._doing: dict[int, Build] = {}
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The server's process id, while there is one."""
        return self._server.popen.pid if self._server is not None else None

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ends `build` in another thread, soon: what is being compiled is killed. The pool compiles nothing more."""
        self._stop.set()

    def build(self, builds: Iterable[Build]) -> Iterator[Ended]:
        """Yields each distinct key once, as it ends. Left early, it closes the pool."""
        todo: deque[Build] = deque()
        for build in {build.key: build for build in builds}.values():
            if self.cache.load(build) is not None:
                yield Ended(build, "cached")
            else:
                todo.append(build)
        try:
            yield from self._built(todo)
        finally:
            if self._doing:  # no caller waits for these
                self.close()

    def _built(self, todo: deque[Build]) -> Iterator[Ended]:
        doing, sent = self._doing, 0
        while (todo or doing) and not self.stopped:
            server = self._ready()
            try:
                while todo and len(doing) < self.jobs:
                    server.send(self._request(sent, todo[0]))
                    doing[sent] = todo.popleft()
                    sent += 1
                for message in server.receive(TICK):
                    build = doing.pop(message.pop("id"))
                    yield Ended(build, **message)
            except OSError:
                lost = list(doing.values())
                code = self._lost()
                for build in lost:
                    yield self._failed(build, f"the compile server ended ({code}) while it had this build", code)
                if not lost and todo:  # it does not even start
                    yield self._failed(todo.popleft(), f"the compile server ended ({code}) before this build", code)

    def close(self) -> None:
        """Kills the server and with it every build that is going on. The pool can be used again."""
        if self._server is not None:
            self._server.kill()
            self._server = None
        self._forget()

    def _ready(self) -> _Server:
        if self._server is None:
            self._server = _Server(self.nice)
        return self._server

    def _lost(self) -> int:
        assert self._server is not None
        code = self._server.kill(LEAVE)
        self._server = None
        self._forget()
        return code

    def _forget(self) -> None:
        """Removes what the builds in hand have written; their processes end at once, not in no time."""
        keys, until = [build.key for build in self._doing.values()], time.monotonic() + LEAVE
        self._doing.clear()
        while not self.cache.sweep(keys) and time.monotonic() < until:
            time.sleep(0.01)

    def _failed(self, build: Build, why: str, code: int) -> Ended:
        machine = code == -signal.SIGKILL or bool(unwritable(self.cache.folder))
        with contextlib.suppress(OSError):
            self.cache.failed(build, Failure(why, "", machine=machine))
        return Ended(build, "failed", why=why, machine=machine)

    def _request(self, number: int, build: Build) -> dict[str, object]:
        return {
            "id": number,
            "recipe": build.recipe,
            "options": build.options,
            "arch": build.arch,
            "sources": list(build.sources),
            "key": build.key,
            "cache": str(self.cache.folder.absolute()),
            "limit": self.limit,
        }


class _Server:
    """The server process from outside."""

    def __init__(self, nice: int) -> None:
        self._sock, theirs = socket.socketpair()
        self._bytes = b""
        try:
            server = fork_server.start(
                "fuzz.compiling.server", [theirs.fileno()], {**os.environ, **ENVIRONMENT}, numbers=[nice]
            )
        finally:
            theirs.close()
        self.popen, self._parent_pipe = server.popen, server.parent_pipe

    def send(self, request: dict[str, object]) -> None:
        """Raises OSError when it is gone."""
        self._sock.sendall(json.dumps(request).encode() + b"\n")

    def receive(self, seconds: float) -> list[dict]:
        """Waits for what comes next, at most so many seconds. Raises OSError when it is gone."""
        if not select.select([self._sock], [], [], seconds)[0]:
            return []
        data = self._sock.recv(1 << 16)
        if not data:
            raise OSError("closed")
        *lines, self._bytes = (self._bytes + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self, patience: float = 0.0) -> int:
        """SIGKILL to the server, where it has not ended by itself in `patience` seconds; its builds die with it
        (parent_death.py). Returns its exit code."""
        self._sock.close()
        if patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(patience)
        self._parent_pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.popen.pid, signal.SIGKILL)
        return self.popen.wait(REAP)
