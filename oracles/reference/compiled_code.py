"""numba's compiled code on disk, checked. numba itself trusts whatever lies there: of a torn file it raises, or worse,
runs it.

    code = CheckedCode(folder, "numba_loops.*.nb?")   # before numba looks: files that are not as they were left go
    …                                                 # numba loads, and compiles what is not there
    code.seal()                                       # the digests of what it left

Both happen under a lock of the folder, so that of processes that start together one compiles.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache


def folder_of(function: Callable[..., Any]) -> Path | None:
    """Where numba keeps the code of `function`'s module; None where it finds no folder that it could write into."""
    try:
        return Path(FunctionCache(function).cache_path)
    except RuntimeError:
        return None


class CheckedCode:
    """The files of `folder` that match `pattern` (folders below it too with '**/'). The lock is held until `seal`."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        name = "".join(letter if letter.isalnum() else "_" for letter in pattern).strip("_")
        self._digests = folder / f"{name}.digests.json"
        self._lock: int | None = None
        with suppress(OSError):  # a folder that cannot be written: nobody else writes it either
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        known = self._known()
        for path, digest in self._found().items():
            if known.get(path) != digest:
                with suppress(OSError):
                    (folder / path).unlink()

    def seal(self) -> None:
        """Keeps the digests of what is there now, and frees the lock."""
        found = self._found()
        if found != self._known():
            beside = self._digests.with_suffix(f".{os.getpid()}")
            with suppress(OSError):  # a full disk: what is not sealed is compiled again
                beside.write_text(json.dumps(found, indent=0))
                os.replace(beside, self._digests)
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _known(self) -> dict[str, str]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._digests.read_bytes()))
        return {}

    def _found(self) -> dict[str, str]:
        found = {}
        for path in sorted(self._folder.glob(self._pattern)):
            with suppress(OSError):  # another process was quicker
                found[str(path.relative_to(self._folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found
