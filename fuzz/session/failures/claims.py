"""Claims: of the workers of a session, one looks into the failures of a cause, and the others leave them to it.

A claim is a file with the process that made it. One of a process that is gone counts for nothing: what it looked into
is on record (records.py), so another worker takes it over, or it is saved as it was met when the session ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

CLOCK = 2.0  # seconds by which a start time may be read differently


class Claim(msgspec.Struct, frozen=True):
    """Content of a claim: the process that made it."""

    pid: int
    born: float  # process ids are used again: seconds of the epoch at which the process started

    @property
    def abandoned(self) -> bool:
        """True if its process is gone."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.born) > CLOCK
        except psutil.Error:
            return True


class Claims:
    """The claims of a session's folder, by the id of the cause."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "claims"

    def take(self, cause: str) -> bool:
        """True if this process is to look into the cause: nobody has claimed it, or who did is gone."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / cause
        claim = msgspec.json.encode(Claim(os.getpid(), psutil.Process().create_time()))
        try:
            with path.open("xb") as file:
                file.write(claim)
        except FileExistsError:
            theirs = _read(path)
            if theirs is None or not theirs.abandoned:
                return False
            path.write_bytes(claim)
        return True

    def release(self, cause: str) -> None:
        """Gives up a claim; its failure has been looked into, and is on record."""
        (self._folder / cause).unlink(missing_ok=True)


def _read(path: Path) -> Claim | None:
    """Content of a claim; None where it is released, or not written yet."""
    with suppress(msgspec.DecodeError, OSError):
        return msgspec.json.decode(path.read_bytes(), type=Claim)
    return None
