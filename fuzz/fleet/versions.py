"""Versions: what decides which cases a shard has. A worker with other code would draw other cases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from fuzz.compiling.build_key import digest, toolchain


def code(files: Iterable[str]) -> dict[str, str]:
    """Digests and versions by name: of attnfuzz, Hypothesis, the compiler, and each of a user's files."""
    found = {
        "attnfuzz": digest(("fuzz", "oracles"))[:12],
        "hypothesis": version("hypothesis"),
        "compiler": ", ".join(toolchain()),
    }
    for file in files:
        try:
            found[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
        except OSError as error:
            found[file] = str(error.strerror)
    return found


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What differs, in one line; '': nothing."""
    return "; ".join(
        f"{name} is {theirs.get(name, 'missing')}, here it is {mine}"
        for name, mine in ours.items()
        if theirs.get(name) != mine
    )
