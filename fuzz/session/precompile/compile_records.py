"""compiled.jsonl of a session's folder: the kernels that the session asked for before its cases, and how each ended."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from fuzz.compiling.build_key import Build
from fuzz.compiling.pool import Ended

FILE = "compiled.jsonl"


class CompileRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel. status: 'cached' where the cache had it; seconds: of compiling; why: it failed."""

    key: str
    name: str
    arch: str
    status: Literal["cached", "built", "failed"]
    seconds: float = 0.0
    why: str = ""


def write_compiled(folder: Path, ended: Iterable[Ended | Build]) -> None:
    """Appends kernels, each as it ended; those that were in the cache as their Build."""
    lines = []
    for one in ended:
        if isinstance(one, Build):
            record = CompileRecord(one.key, one.name, one.arch, "cached")
        else:
            b = one.build
            record = CompileRecord(b.key, b.name, b.arch, one.status, round(one.seconds, 3), one.why)
        lines.append(msgspec.json.encode(record) + b"\n")
    if lines:
        with open(folder / FILE, "ab") as file:
            file.write(b"".join(lines))


def compiled_in(folder: Path) -> list[CompileRecord]:
    """The kernels of a session, each once: as it ended when it was first asked for."""
    found: dict[str, CompileRecord] = {}
    with suppress(OSError):
        for line in (folder / FILE).read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                record = msgspec.json.decode(line, type=CompileRecord)
                found.setdefault(record.key, record)
    return list(found.values())
