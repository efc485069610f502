"""Compiling for a fleet: tasks on the cluster's CPUs, whose kernels go into this machine's cache and to the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

import msgspec

from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import Artifact, Cache, Failure
from fuzz.compiling.pool import LIMIT, Ended, Pool
from fuzz.fleet.kernels import Kernel, install, pack

TICK = 0.5  # seconds until `stop` is heard


class Result(msgspec.Struct, frozen=True):
    """Outcome of a build: its kernel, or why there is none, as in compiling.pool.Ended."""

    seconds: float
    kernel: Kernel | None = None
    why: str = ""
    log: str = ""
    machine: bool = False


class Compilers(Protocol):
    """The CPUs of a cluster."""

    def jobs(self) -> int:
        """How many builds may run at once."""

    def submit(self, build: Build) -> None:
        """Begins a build somewhere."""

    def ended(self, seconds: float) -> list[tuple[Build, Result]]:
        """Builds that have ended since the last call; waits for one, `seconds` at most."""

    def cancel(self) -> None:
        """Ends all builds."""


class _Told(Cache):
    """A cache that tells which artifacts were asked for and are there: the workers need those."""

    def __init__(self, found: Callable[[Build, Artifact], None]) -> None:
        super().__init__()
        self._found = found

    def load(self, build: Build) -> Artifact | None:
        artifact = super().load(build)
        if artifact is not None:
            self._found(build, artifact)
        return artifact


class FleetPool(Pool):
    """A compiling.pool.Pool whose builds run in a cluster. send: called once with each kernel that the workers need."""

    def __init__(self, compilers: Compilers, send: Callable[[Kernel], None]) -> None:
        super().__init__(_Told(self._there), max(compilers.jobs(), 1), LIMIT)
        self._compilers, self._send = compilers, send
        self._sent: set[str] = set()

    def close(self) -> None:
        """Ends all builds."""
        self._compilers.cancel()
        self._doing.clear()

    def _built(self, todo: deque[Build]) -> Iterator[Ended]:
        doing = 0
        while (todo or doing) and not self.stopped:
            while todo and doing < max(self._compilers.jobs(), 1):
                self._compilers.submit(todo.popleft())
                doing += 1
            for build, result in self._compilers.ended(TICK):
                doing -= 1
                yield self._taken(build, result)

    def _taken(self, build: Build, result: Result) -> Ended:
        if result.kernel is None:
            with suppress(OSError):
                self.cache.failed(build, Failure(result.why, result.log, result.seconds, result.machine))
            return Ended(build, "failed", result.seconds, result.why, result.log, result.machine)
        with suppress(OSError):  # a full disk here: the workers get it all the same
            install(self.cache, result.kernel)
        self._once(build, result.kernel)
        return Ended(build, "built", result.seconds)

    def _there(self, build: Build, artifact: Artifact) -> None:
        if build.key not in self._sent:
            with suppress(OSError):
                self._once(build, pack(build, artifact))

    def _once(self, build: Build, kernel: Kernel) -> None:
        if build.key not in self._sent:
            self._sent.add(build.key)
            self._send(kernel)


_pool: Pool | None = None


def compile_here(build: Build) -> Result:
    """On a node: the kernel of a build, from the node's cache or compiled now. Keeps a compile server for the next
    one."""
    global _pool
    if _pool is None:
        _pool = Pool(Cache(), 1)
    (ended,) = _pool.build([build])
    artifact = _pool.cache.load(build)
    if artifact is None:
        why = ended.why or "it was built and is gone"
        return Result(ended.seconds, None, why, ended.log, ended.machine or not ended.why)
    return Result(ended.seconds, pack(build, artifact))
