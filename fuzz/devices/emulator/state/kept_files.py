"""Files of a cache folder that processes share: whole, as they were written, and not too many.

A file begins with the digest of what follows, so that one that is not whole, or not what was written, is found out and
goes.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from fuzz.devices.emulator.state.code_cache import one_process

FILES = 2048  # with one suffix that a folder keeps; of more the oldest quarter goes
DIGEST = 32  # bytes


def read(path: Path) -> bytes:
    """The data of a file that `write` has put there; b"" where there is none. One that is not what was written goes."""
    try:
        found = path.read_bytes()
    except OSError:
        return b""
    data = found[DIGEST:]
    if hashlib.sha256(data).digest() == found[:DIGEST]:
        return data
    path.unlink(missing_ok=True)
    return b""


def write(path: Path, data: bytes) -> None:
    """Puts a file there, or in another's place, at once; on a full disk, or where the folder has gone, nothing. Other
    suffixes' files stay."""
    folder, beside = path.parent, path.parent / f".{os.getpid()}"
    try:
        with one_process(folder):
            beside.write_bytes(hashlib.sha256(data).digest() + data)
            os.replace(beside, path)
            files = list(folder.glob(f"*{path.suffix}"))
            if len(files) > FILES:
                for old in sorted(files, key=lambda file: file.stat().st_mtime)[: FILES // 4]:
                    old.unlink()
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
