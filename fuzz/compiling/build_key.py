"""Build: one kernel to compile, as data, and its key: what decides the bytes that come out.

The key is a hash of the sources (every file of the packages that the target names), the options, the arch, the
toolchain's versions and the variables that it heeds, so an artifact of other sources or another compiler has another
name and can never be loaded for this one. Nothing here imports a kernel or the compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the compile server starts without torch
    from fuzz.core.case import Case

FORMAT = 3  # of the artifacts on disk
ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
TOOLCHAIN = tuple(  # the compiler itself lies in the package for one of CUDA's versions
    f"nvidia-cutlass-dsl{part}" for part in ("", "-libs-base", "-libs-core", "-libs-cu12", "-libs-cu13")
)
# What changes the code that comes out, as the compiler's own table says (base_dsl/env_manager.py, affects_compile).
VARIABLES = tuple(
    f"CUTE_DSL_{name}"
    for name in (
        "AUTO_M2S", "COMPILER_BACKEND", "COMPILER_OPT", "DEBUG", "DRYRUN", "ENABLE_ASSERTIONS", "ENABLE_PYIR",
        "ENABLE_TVM_FFI", "LINEINFO", "LOC_TRACEBACKS", "TOLERATE_M2M", "USE_EXTENSION_COMPILER", "WARNINGS_AS_ERRORS",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Build:
    """One kernel to compile.

    recipe   'module:function', called as function(options, arch) in a process without a GPU; it returns a compiled CuTe
             function (with `export_to_c` and `artifacts.PTX`)
    options  what the recipe is given, as canonical JSON (see `of`)
    arch     one of ARCHS
    sources  names of the modules and packages whose Python files decide what comes out; a package counts with all
             that is in it
    """

    recipe: str
    options: str
    arch: str
    sources: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.arch not in ARCHS:
            raise ValueError(f"arch: must be one of {', '.join(ARCHS)}, got {self.arch!r}")
        module, _, function = self.recipe.partition(":")
        if not module or not function:
            raise ValueError(f"recipe: must be 'module:function', got {self.recipe!r}")

    @staticmethod
    def of(recipe: str, options: Mapping[str, Any], arch: str, sources: tuple[str, ...] = ()) -> Build:
        """A Build whose options are given as a mapping of JSON values."""
        return Build(recipe, json.dumps(dict(options), sort_keys=True, separators=(",", ":")), arch, sources)

    @cached_property
    def key(self) -> str:
        """24 hexadecimal digits; the same in every process that sees the same sources and toolchain."""
        parts = (FORMAT, self.recipe, self.options, self.arch, digest(self._modules), toolchain())
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def name(self) -> str:
        """Name for users: the options' values and the arch."""
        values = json.loads(self.options)
        return " ".join([*(f"{k}={v}" for k, v in values.items() if v not in ("", False, None, [])), self.arch])

    @property
    def _modules(self) -> tuple[str, ...]:
        return tuple(sorted({self.recipe.partition(":")[0], *self.sources}))


class Compiled(ABC):
    """Mixin of a target whose kernels are compiled ahead."""

    @abstractmethod
    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        """Builds that `case` needs, compiled for `arch`; found from the case alone, without tensors or a device."""

    @abstractmethod
    def arch(self) -> str:
        """Architecture that its kernels are compiled for on this machine."""

    def uncompilable(self) -> str | None:
        """Reason why its kernels cannot be compiled on this machine, as for lack of a package, or None; a GPU is not
        asked for."""
        return None


@lru_cache
def digest(modules: tuple[str, ...]) -> str:
    """SHA-256 over the Python files of modules and packages, by name and content. Read once per process: what this
    process has imported does not change either. Raises ModuleNotFoundError."""
    found = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no module {name!r} to compile from")
        root = Path(spec.origin)
        files = sorted(root.parent.rglob("*.py")) if spec.submodule_search_locations else [root]
        for file in files:
            found.update(f"{name}\0{file.relative_to(root.parent)}\0".encode())
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


@lru_cache
def toolchain() -> tuple[str, ...]:
    """The compiler's packages with their versions, what the environment asks of it, and the machine that host code is
    for."""
    variables = (f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    return (*(f"{name} {_version(name)}" for name in TOOLCHAIN), *variables, platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
