"""Compiling kernels ahead of a session and beside it: workers, cache. fuzz/session plans what to compile.

    with Pool(cache, jobs=2) as pool:      # pool.py: builds without a GPU, each in a child of its own
        for ended in pool.build(builds): ...
    artifact = obtain(build)               # obtain.py: from the cache, or built now; what targets call

build_key.py says what a key is made of, cache.py how artifacts lie on disk, server.py is the process that has the
toolchain imported and forks a child per build, compile_child.py what it does there.
"""

from fuzz.compiling.build_key import Build, Compiled
from fuzz.compiling.cache import Artifact, Cache, default_folder
from fuzz.compiling.obtain import CompileError, obtain
from fuzz.compiling.pool import Ended, Pool

__all__ = ["Artifact", "Build", "Cache", "CompileError", "Compiled", "Ended", "Pool", "default_folder", "obtain"]
