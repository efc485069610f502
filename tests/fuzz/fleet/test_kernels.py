"""Compiled kernels as values, from one machine's cache into another's; compiling elsewhere."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec
import pytest

from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import FILES, Artifact, Cache
from fuzz.fleet.compiling import FleetPool, Result
from fuzz.fleet.kernels import Kernel, install, pack

BUILDS = [Build.of("fuzz.compiling.recipes:none", {"value": value}, "sm_90a") for value in range(3)]


def stored(cache: Cache, build: Build) -> Artifact:
    with cache.locked(build.key), cache.writing(build) as folder:
        for name in FILES:
            (folder / name).write_bytes(f"{name} of {build.options}".encode())
        cache.finish(build, folder, {"seconds": 0.5, "entries": ["forward"]})
    artifact = cache.load(build)
    assert artifact is not None
    return artifact


def test_a_kernel_that_has_travelled_is_the_one_that_was_compiled(tmp_path: Path) -> None:
    here, there = Cache(tmp_path / "here"), Cache(tmp_path / "there")
    artifact = stored(here, BUILDS[0])
    kernel = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(BUILDS[0], artifact)), type=Kernel)
    install(there, kernel)
    install(there, kernel)  # as by another worker of the node
    found = there.load(BUILDS[0])
    assert found is not None and found.header == artifact.header
    assert all((found.folder / name).read_bytes() == (artifact.folder / name).read_bytes() for name in FILES)
    assert there.load(BUILDS[1]) is None


class Compilers:
    """CPUs elsewhere: one build at a time; the third fails."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._todo = cache, deque[Build]()
        self.most = 0

    def jobs(self) -> int:
        return 2

    def submit(self, build: Build) -> None:
        self._todo.append(build)
        self.most = max(self.most, len(self._todo))

    def ended(self, seconds: float) -> list[tuple[Build, Result]]:
        build = self._todo.popleft()
        if build == BUILDS[2]:
            return [(build, Result(0.1, why="ptxas says no", log="line 3"))]
        return [(build, Result(0.5, pack(build, stored(self._cache, build))))]

    def cancel(self) -> None:
        self._todo.clear()


def test_what_is_compiled_elsewhere_is_cached_here_and_sent_to_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "here"))
    stored(Cache(), BUILDS[0])
    compilers, sent = Compilers(Cache(tmp_path / "there")), list[Kernel]()
    pool = FleetPool(compilers, sent.append)
    ended = {one.build: one for one in pool.build(BUILDS)}
    assert [ended[build].status for build in BUILDS] == ["cached", "built", "failed"]
    assert [kernel.build for kernel in sent] == BUILDS[:2], "each once, and those of the cache too"
    assert Cache().load(BUILDS[1]) is not None
    failure = pool.cache.failure(BUILDS[2])
    assert failure is not None and (failure.why, failure.log) == ("ptxas says no", "line 3")
    assert compilers.most == 2
