"""Folders for compiled code, one per version of the sources that it was compiled from.

The sources are found by following the imports inside this package, so a new file cannot be forgotten, and a file that
compiled code does not import (reports, the host side) costs no compilation when it changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core import caching

from fuzz.process.cache_folder import refuse_shared, spare, unwritable

PACKAGE = "fuzz.devices.emulator"
ROOT = Path(__file__).parents[1]
IDLE = 30 * 24 * 3600.0
IMPORT = re.compile(
    rf"^[ \t]*(?:from|import) {re.escape(PACKAGE)}\.?([\w.]*)(?: import (?:\(([^)]*)\)|([^\n#]*)))?", re.M
)


def sources(*modules: str) -> list[Path]:
    """The files of `modules` (dotted, relative to the package) and of all that they import from it, sorted."""
    found: set[Path] = set()
    todo = [path for name in modules for path in _files(name)]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        for m in IMPORT.finditer(path.read_text()):
            todo += _files(m.group(1))
            names = re.findall(r"\w+", m.group(2) or m.group(3) or "")
            todo += [file for name in names for file in _files(f"{m.group(1)}.{name}".lstrip("."))]
    return sorted(found)


def _files(module: str) -> list[Path]:
    """The file of a module, where it is one: packages only hold a docstring."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py") if module else ROOT / "__init__.py"
    return [path] if path.is_file() and module else []


def cache_folder(*modules: str) -> Path:
    """Folder of the code compiled from `modules`: one per version of their sources, the tools and the processor. Where
    it cannot be written, or the disk is full, one in the temporary folder. A new one takes the place of those that were
    not asked for in IDLE seconds. Raises CacheError for a folder that others may write into."""
    digest = hashlib.sha256()
    for path in sources(*modules):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    cpu = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    digest.update(f"{sys.version} {llvmlite.__version__} {numba.__version__} {cpu}".encode())
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder, name = Path(root) / "attnfuzz" / "emulator", digest.hexdigest()[:16]
    refuse_shared(folder)
    new = not (folder / name).exists()
    if unwritable(folder / name):
        return spare(f"emulator/{name}")
    refuse_shared(folder / name)
    with suppress(OSError):
        os.utime(folder / name)  # when it was last asked for
        if new:
            _forget(folder, time.time() - IDLE)
    return folder / name


def _forget(folder: Path, before: float) -> None:
    """Removes the folders of other versions that were not asked for since then."""
    for old in folder.iterdir():
        if re.fullmatch(r"[0-9a-f]{16}", old.name) and old.stat().st_mtime < before:
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def one_process(folder: Path) -> Iterator[None]:
    """Waits until no other process is in here with the same folder: of those that start together, one compiles and
    the others load what it left."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def numba_cache_in(folder: Path) -> Iterator[None]:
    """Context in which `njit(cache=True)` keeps a function's code in `folder`, whose name says which sources it was
    compiled from: numba itself looks at the function's own file alone. Where that file lies is no part of it, so copies
    of the sources share their code."""
    config: Any = numba.config
    locator: Any = caching.__dict__["_CacheLocator"]
    before, subpath = config.CACHE_DIR, locator.__dict__["get_suitable_cache_subpath"]
    config.CACHE_DIR = str(folder)
    locator.get_suitable_cache_subpath = staticmethod(lambda file: Path(file).stem)
    try:
        yield
    finally:
        config.CACHE_DIR = before
        locator.get_suitable_cache_subpath = subpath
