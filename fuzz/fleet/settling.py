"""Settling in a fleet: which failure a worker without cases looks into; results are written down here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fuzz.corpus.entry import Entry
from fuzz.fleet.cases import FILE
from fuzz.session.failures.look_into import Looked
from fuzz.session.failures.settle import cause_id, plainest
from fuzz.session.failures.write_down import Reporter
from fuzz.session.records import Record, Settlement, settlement
from fuzz.session.settings import Settings

ATTEMPTS = 2  # workers that may be lost over one cause


class Settling:
    """The failures of a session that nobody has looked into, and who looks into what."""

    def __init__(self, settings: Settings, corpus: Sequence[Entry]) -> None:
        self._folder = Path(settings.folder)
        self._reporter = Reporter(settings, FILE, corpus)
        self._ended: Settlement = settlement(self._folder)
        self._met: list[Record] = []
        self._looking: dict[str, str] = {}  # by worker: the id of a cause
        self._lost: Counter[str] = Counter()
        self._none = False  # there is no failure that nobody looks into

    def add(self, records: Iterable[Record]) -> None:
        """Takes in the failures among some records."""
        met = [record for record in records if record.status == "met" and self._ended.of(record) is None]
        self._met += met
        self._none = self._none and not met

    def next(self, worker: str) -> Record | None:
        """The next failure to look into, for a worker; None: there is none that nobody looks into."""
        record = self._next()
        if record is not None:
            self._looking[worker] = cause_id(record)
        return record

    @property
    def left(self) -> bool:
        """True if somebody looks into a failure, or is to."""
        return bool(self._looking) or self._next() is not None

    def _next(self) -> Record | None:
        if self._none:
            return None
        refused = {*self._looking.values(), *(cause for cause, lost in self._lost.items() if lost >= ATTEMPTS)}
        record = plainest(self._met, self._ended, refused)
        self._none = record is None
        return record

    def done(self, worker: str, looked: Looked) -> None:
        """Writes down what a worker has found out. Raises OSError, CorpusError."""
        if self._looking.pop(worker, None) is None:
            return  # another one was given the cause, as this worker was believed to be lost
        self._reporter.write(looked)
        self._ended = settlement(self._folder)
        self._met = [record for record in self._met if self._ended.of(record) is None]
        self._none = False

    def lose(self, worker: str) -> None:
        """A worker is gone: another one may look into its cause."""
        cause = self._looking.pop(worker, None)
        if cause is not None:
            self._lost[cause] += 1
            self._none = False
