"""The cases of a session that are on record, each of them once: the one place that writes a fleet's records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fuzz.core.target import Device
from fuzz.corpus.entry import Entry
from fuzz.session.book import FolderBook
from fuzz.session.plan import Shard
from fuzz.session.records import Fault, Record
from fuzz.session.resume import AlreadyRan, Ran

FILE = "fleet"  # records-fleet.jsonl: one file, however many workers there are


class Cases:
    """Writes into a session's folder. A worker that was believed to be lost may still tell of cases that another one
    has run in the meantime: what is on record already is left out.

    shards  of the session; ran: cases that are on record already
    """

    def __init__(self, folder: Path, device: Device, shards: Iterable[Shard], ran: AlreadyRan) -> None:
        self._book, self._device = FolderBook(folder, FILE), device
        self._size = {shard.name: shard.cases for shard in shards}
        self._open: dict[str, dict[int, Ran]] = {
            name: dict(ran.get(name, {})) for name, size in self._size.items() if len(ran.get(name, ())) < size
        }
        self.by_worker: Counter[str] = Counter()
        self.repeated = 0  # records that came twice

    def add(self, records: Iterable[Record]) -> list[Record]:
        """Writes records that are new; returns them as they were written. Raises OSError where the disk is full."""
        return [self._written(record) for record in records if self._new(record)]

    def fault(self, fault: Fault) -> None:
        """Writes down that a case was not judged."""
        self._book.fault(fault)

    def complete(self, shard: str) -> bool:
        """True if all cases of a shard are on record."""
        return shard not in self._open

    def ran(self, shard: str) -> Mapping[int, Ran]:
        """The cases of a shard that are on record, by their places; those of a complete one are not kept."""
        return dict(self._open.get(shard, {}))

    def missing(self) -> dict[str, int]:
        """By shard that is not complete: how many of its cases are not on record."""
        return {name: self._size[name] - len(ran) for name, ran in self._open.items()}

    def close(self) -> None:
        """Closes the file of records."""
        self._book.close()

    def _new(self, record: Record) -> bool:
        ran = self._open.get(record.shard)
        if ran is None or record.index in ran:
            self.repeated += 1
            return False
        return True

    def _written(self, record: Record) -> Record:
        if record.status == "unconfirmed":
            assert record.case is not None and record.signature is not None
            entry = Entry.as_met(record.case, record.outcome, record.signature, device=self._device)
            record = msgspec.structs.replace(record, finding=self._book.quarantine(entry))
        if record.at:  # by this machine's clock, as the beginning of the session is
            record = msgspec.structs.replace(record, at=time.time())
        self._book.add(record)
        ran = self._open[record.shard]
        ran[record.index] = Ran(record.case_id, record.outcome == "pass", record.ratio)
        self.by_worker[record.worker] += 1
        if len(ran) == self._size[record.shard]:
            del self._open[record.shard]
        return record
