"""Compiled kernels as values: from the cache of one machine into that of another."""

from __future__ import annotations

from typing import Any

import msgspec

from fuzz.compiling.build_key import Build
from fuzz.compiling.cache import FILES, Artifact, Cache

_OWN = frozenset(
    ("key", "format", "recipe", "options", "arch", "sources", "toolchain", "prefix", "files")
)  # of a header, as Cache.finish writes them


class Kernel(msgspec.Struct, frozen=True):
    """A build with its artifact: the files by name, and what its header says beside what the build does."""

    recipe: str
    options: str
    arch: str
    sources: tuple[str, ...]
    files: dict[str, bytes]
    facts: dict[str, Any]

    @property
    def build(self) -> Build:
        """Sources and options of the kernel; its key follows from the sources and the toolchain of this machine."""
        return Build(self.recipe, self.options, self.arch, self.sources)


def pack(build: Build, artifact: Artifact) -> Kernel:
    """An artifact as a value. Raises OSError where its files are gone."""
    files = {name: (artifact.folder / name).read_bytes() for name in FILES}
    facts = {name: value for name, value in artifact.header.items() if name not in _OWN}
    return Kernel(build.recipe, build.options, build.arch, build.sources, files, facts)


def install(cache: Cache, kernel: Kernel) -> None:
    """Puts a kernel into a cache that lacks it. Raises OSError."""
    build = kernel.build
    if cache.load(build) is not None:
        return
    with cache.locked(build.key), cache.writing(build) as folder:
        if cache.load(build) is None:
            for name, content in kernel.files.items():
                (folder / name).write_bytes(content)
            cache.finish(build, folder, kernel.facts)
