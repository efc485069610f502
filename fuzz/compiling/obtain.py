"""obtain: what a target calls in `prepare`. From the cache; else built now, in a process of its own; else the reason.

One server per process, started by the first miss: a compiler that crashes or hangs must not take the process with it
that owns a GPU. A key that failed is not tried again by this process. Where the machine is the cause (a full disk, a
compiler that was killed) there is a second attempt, into the folder that the cache names then.
"""

from __future__ import annotations

import os
from pathlib import Path

from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import Artifact, Cache, default_folder
from fuzz.compiling.pool import Ended, Pool
from fuzz.process.cache_folder import CacheError
from fuzz.process.machine_fault import MachineFault

_pools: dict[tuple[int, Path], Pool] = {}
_failed: dict[str, Ended] = {}
_loaded: dict[str, Artifact] = {}


class CompileError(RuntimeError):
    """A kernel that cannot be compiled: which, why, and the end of the compiler's output."""


class NotCompiledHere(CompileError, MachineFault):
    """A kernel that could not be compiled for a reason that is the machine's."""


def obtain(build: Build, folder: Path | None = None) -> Artifact:
    """The artifact of `build`, compiled now where the cache has none. Raises CompileError; NotCompiledHere where that
    is not the kernel's fault."""
    if build.key in _loaded:
        return _loaded[build.key]
    try:
        cache = Cache(folder)
        artifact = cache.load(build)
        if artifact is None:
            artifact = _built(build, cache, folder)
    except (CacheError, OSError) as error:
        raise NotCompiledHere(f"{build.name}: {error}") from error
    _loaded[build.key] = artifact
    return artifact


def _built(build: Build, cache: Cache, folder: Path | None) -> Artifact:
    ended = _failed.get(build.key)
    if ended is None:
        (ended,) = _pool(cache).build([build])
        if ended.machine:
            cache = Cache(folder)
            (ended,) = _pool(cache).build([build])
    if ended.status == "failed":
        _failed[build.key] = ended
        if ended.machine:
            raise NotCompiledHere(f"{build.name}: {ended.why}")
        raise CompileError(f"{build.name}: {ended.why}\n{ended.log[-4000:]}")
    artifact = cache.load(build)
    if artifact is None:
        raise NotCompiledHere(f"{build.name}: was built and is gone from {cache.folder}")
    return artifact


def _pool(cache: Cache) -> Pool:
    """This process's own pool: one that was made before a fork belongs to the parent."""
    place = (os.getpid(), cache.folder or default_folder())
    if place not in _pools:
        _pools[place] = Pool(cache)
    return _pools[place]
