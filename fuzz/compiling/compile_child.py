"""Child process of a build: calls the recipe, takes object and PTX out of what it returns.

Everything here runs in a child that may hang, crash or be killed at any line; nothing of it is relied on elsewhere.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.compiling.build_key import Build, digest
from fuzz.compiling.cache import INTERFACE, OBJECT, PTX, Cache, prefix

# No GPU; one thread, so that the server may fork; the PTX is kept.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUTE_DSL_KEEP": "ptx",
    "CUTE_DSL_DISABLE_FILE_CACHING": "1",
}
_TARGET = re.compile(r"^\.target\s+(\w+)", re.MULTILINE)
_ENTRY = re.compile(r"^\s*\.visible\s+\.entry\s+(\w+)", re.MULTILINE)


def preload(build: Build) -> None:
    """Imports the compiler and the recipe's module, and what that names in a function `preload` of its own, which is
    called with the options; raises whatever they raise."""
    runtime = importlib.import_module("cutlass.cute.runtime")
    for library in runtime.find_runtime_libraries(enable_tvm_ffi=False):
        ctypes.CDLL(
            library, mode=ctypes.RTLD_GLOBAL
        )  # an export for another arch than the default looks for its symbols
    module = importlib.import_module(build.recipe.partition(":")[0])
    if hasattr(module, "preload"):
        module.preload(json.loads(build.options))


def make(build: Build, cache: Cache) -> float:
    """Builds one key into the cache, whose lock for it the caller holds. Returns the seconds of the compile.

    Raises what the recipe raises, and ValueError where what it returned is not what was asked for.
    """
    module, _, function = build.recipe.partition(":")
    recipe = getattr(importlib.import_module(module), function)
    with cache.writing(build) as folder:
        _dump_to(folder)
        began = time.perf_counter()
        compiled = recipe(json.loads(build.options), build.arch)
        ptx = compiled.artifacts.PTX
        if ptx is None:
            raise ValueError("the compiled function holds no PTX: CUTE_DSL_KEEP=ptx was not in effect")
        text = ptx if isinstance(ptx, str) else ptx.decode()
        text = text.rstrip("\0")
        compiled.export_to_c(str(folder), Path(OBJECT).stem, prefix(build.key))
        seconds = time.perf_counter() - began
        facts = _facts(build, text, seconds)
        still(build)
        for left in folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name not in (OBJECT, INTERFACE):
                left.unlink()
        (folder / PTX).write_text(text)
        cache.finish(build, folder, facts)
    return seconds


def _dump_to(folder: Path) -> None:
    """Makes the compiler write the PTX, which it reads back from there, to this build's own folder: its name for the
    file is made of argument types, so different kernels that are compiled at once would read each other's. Temporary
    files go there too, to be found and removed where the build is killed."""
    from cutlass.cutlass_dsl import CuTeDSL

    CuTeDSL._get_dsl().envar.dump_dir = str(folder)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    os.chdir(folder)


def unchanged(build: Build, key: str) -> None:
    """Raises ValueError where this process does not see the sources that `key` was made of."""
    if build.key != key:
        raise ValueError(
            "the sources or the toolchain changed while the session ran: the key that was asked for is "
            f"{key}, what lies on disk now has {build.key} (sources {digest(build._modules)[:12]}); start again"
        )


def still(build: Build) -> None:
    """Raises ValueError where the sources on disk are not those of the key any more. A recipe imports what it compiles
    when it is called, which may be long after the key was made."""
    if digest.__wrapped__(build._modules) != digest(build._modules):
        raise ValueError("the sources changed while this was compiled; start again")


def _facts(build: Build, ptx: str, seconds: float) -> dict[str, Any]:
    archs, entries = _TARGET.findall(ptx), _ENTRY.findall(ptx)
    if archs != [build.arch]:
        raise ValueError(f"the PTX is for {', '.join(archs) or 'no arch'}, asked for was {build.arch}")
    if not entries:
        raise ValueError("the PTX has no entry point")
    if _cut_short(ptx, len(entries)):
        raise OSError(f"the PTX ends after {len(ptx)} characters, in the middle: a full disk?")
    return {"entries": entries, "seconds": round(seconds, 4)}


def _cut_short(ptx: str, entries: int) -> bool:
    """Checks the file, since the compiler reports no error when it could write a part of it only."""
    opened = ptx.count("{")
    return opened != ptx.count("}") or opened < entries or not ptx.endswith("\n")
