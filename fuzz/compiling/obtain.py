"""obtain: what a target calls in `prepare`. From the cache; else built now, in a process of its own; else the reason.

One server per process, started by the first miss: a compiler that crashes or hangs must not take the process with it
that owns a GPU. A key that failed is not tried again by this process.
"""

from __future__ import annotations

import os
from pathlib import Path

from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import Artifact, Cache, default_folder
from fuzz.compiling.pool import Ended, Pool

_pools: dict[tuple[int, Path], Pool] = {}
_failed: dict[str, Ended] = {}
_loaded: dict[str, Artifact] = {}


class CompileError(RuntimeError):
    """A kernel that cannot be compiled: which, why, and the end of the compiler's output."""


def obtain(build: Build, folder: Path | None = None) -> Artifact:
    """The artifact of `build`, compiled now where the cache has none. Raises CompileError."""
    if build.key in _loaded:
        return _loaded[build.key]
    cache = Cache(folder)
    artifact = cache.load(build)
    if artifact is None:
        artifact = _built(build, cache)
    _loaded[build.key] = artifact
    return artifact


def _built(build: Build, cache: Cache) -> Artifact:
    ended = _failed.get(build.key)
    if ended is None:
        (ended,) = _pool(cache).build([build])
    if ended.status == "failed":
        _failed[build.key] = ended
        raise CompileError(f"{build.name}: {ended.why}\n{ended.log[-4000:]}")
    artifact = cache.load(build)
    if artifact is None:
        raise CompileError(f"{build.name}: was built and is gone from {cache.folder}")
    return artifact


def _pool(cache: Cache) -> Pool:
    """This process's own pool: one that was made before a fork belongs to the parent."""
    place = (os.getpid(), cache.folder or default_folder())
    if place not in _pools:
        _pools[place] = Pool(cache)
    return _pools[place]
