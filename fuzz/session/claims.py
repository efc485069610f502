"""Claims: of the workers of a session, one minimises a failure that is new, and the others only count it.

A claim is a file that holds the failure as it was met. So a worker that is killed while it minimises loses nothing:
another worker that meets the failure takes the claim over, and what nobody took over is reported as it was met when the
session ends, or when the next one begins in the same folder.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from fuzz.core.verdict import Signature
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import save
from fuzz.session.records import Reader, Record, Recorder

CLOCK = 2.0  # seconds by which a start time may be read differently
RECOVERED = "recovered"  # name of the worker in the records of failures that a killed one has left


class Claim(msgspec.Struct, frozen=True):
    """Content of a claim: the failure as it was met, and the process that minimises it."""

    pid: int
    born: float  # process ids are used again: seconds of the epoch at which the process started
    entry: Entry
    record: Record

    @property
    def abandoned(self) -> bool:
        """True if its process is gone."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.born) > CLOCK
        except psutil.Error:
            return True


class Claims:
    """The claims of a session's folder, by raw signature. One that is settled stays, as an empty file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "claims"

    def take(self, found: Signature, entry: Entry, record: Record) -> bool:
        """True if this process is to minimise the failure: nobody has claimed it, or who did is gone."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / found.id
        claim = Claim(os.getpid(), psutil.Process().create_time(), entry, record)
        try:
            with path.open("xb") as file:
                file.write(msgspec.json.encode(claim))
        except FileExistsError:
            theirs = _read(path)
            if theirs is None or not theirs.abandoned:
                return False
            path.write_bytes(msgspec.json.encode(claim))
        return True

    def settle(self, found: Signature) -> None:
        """The failure is reported."""
        (self._folder / found.id).write_bytes(b"")

    def recover(self) -> int:
        """Reports the failures whose processes are gone, as they were met; returns their number."""
        left = [(path, claim) for path in sorted(self._folder.glob("*")) if (claim := _read(path)) and claim.abandoned]
        if not left:
            return 0
        count = 0
        told = {record.case_id for record in Reader(self._folder.parent).new() if record.status == "new"}
        recorder = Recorder(self._folder.parent, RECOVERED)
        for path, claim in left:
            if claim.record.case_id not in told:  # else it was killed between its report and the end of its claim
                where = save(claim.entry, self._folder.parent / "findings")
                recorder.add(msgspec.structs.replace(claim.record, worker=RECOVERED, status="new", finding=str(where)))
                count += 1
            path.write_bytes(b"")
        recorder.close()
        return count


def _read(path: Path) -> Claim | None:
    """Content of a claim; None where it is settled, or not written yet."""
    with suppress(msgspec.DecodeError, OSError):
        return msgspec.json.decode(path.read_bytes(), type=Claim)
    return None
