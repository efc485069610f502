"""Outbox: the records of a worker, held back until a health check has found its device right."""

from __future__ import annotations

import threading
import time

from fuzz.corpus.entry import Entry
from fuzz.session.records import Fault, Record

LOST = ("hang", "crash")


class Outbox:
    """A session.book.Book for a worker far from its session's folder. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Record] = []
        self._faults_held: list[Fault] = []
        self._records: list[Record] = []
        self._faults: list[Fault] = []
        self._since: float | None = None
        self.added = 0  # records and faults in all

    def add(self, record: Record) -> None:
        """Holds a record back."""
        with self._lock:
            self._held.append(record)
            self._note()

    def fault(self, fault: Fault) -> None:
        """Holds a fault back."""
        with self._lock:
            self._faults_held.append(fault)
            self._note()

    def quarantine(self, entry: Entry) -> str:
        """Keeps nothing: the session's own process saves the case of the record."""
        return ""

    def close(self) -> None:
        """Keeps what it has."""

    def held_for(self) -> float:
        """Seconds for which the oldest record has been held back; 0: there is none."""
        with self._lock:
            return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def lost_a_child(self) -> bool:
        """True if a record that is held back is of a hang or a crash."""
        with self._lock:
            return any(record.outcome in LOST for record in self._held)

    def release(self) -> None:
        """What was held back may go."""
        with self._lock:
            self._records += self._held
            self._faults += self._faults_held
            self._held, self._faults_held, self._since = [], [], None

    def drop(self) -> tuple[int, Record | None]:
        """What was held back is forgotten: how many records that were, and the last of them that failed."""
        with self._lock:
            failed = [record for record in self._held if record.signature is not None]
            dropped = len(self._held)
            self._held, self._faults_held, self._since = [], [], None
        return dropped, failed[-1] if failed else None

    def take(self) -> tuple[tuple[Record, ...], tuple[Fault, ...]]:
        """What may go, once."""
        with self._lock:
            taken = tuple(self._records), tuple(self._faults)
            self._records, self._faults = [], []
        return taken

    def _note(self) -> None:
        self.added += 1
        if self._since is None:
            self._since = time.monotonic()
