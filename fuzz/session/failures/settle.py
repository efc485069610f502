"""Settling of failures after a session's cases: each cause is confirmed in a fresh process, minimised and saved.

During the session a failure is recorded as it was met and costs nothing more. When a worker has no case left it claims
a cause (claims.py) among the failures that nobody has looked into, takes the plainest of its cases, looks into it
(look_into.py) and writes down what it is (write_down.py); what that explains is settled with it. So one cause is
minimised once, several are at the same time, and whatever ends the session early (Ctrl-C, a kill, --max-time) leaves
failures that are on record and are saved as they were met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from fuzz.core.case import Case
from fuzz.core.features import switches
from fuzz.core.signature import cause
from fuzz.core.verdict import Outcome, Signature, Verdict
from fuzz.corpus.entry import Entry
from fuzz.session.failures.claims import Claims
from fuzz.session.failures.look_into import NOT_LOOKED_INTO, Investigator, as_met
from fuzz.session.failures.write_down import Reporter, one_at_a_time, write_as_met
from fuzz.session.records import Reader, Record, Settled, Settlement, Status, settlement, whole
from fuzz.session.settings import Settings

LARGE = 1 << 22  # pairs of query and key over all heads
REST = "rest"  # name of the worker in what `save_rest` writes


class _Outline(msgspec.Struct, frozen=True):
    """The fields of a record by which a failure is chosen; `whole` reads all of it."""

    worker: str
    shard: str
    target: str
    case_id: str
    outcome: Outcome
    index: int = -1
    signature: Signature | None = None
    status: Status = ""
    case: Case | None = None
    before: list[msgspec.Raw] = []
    at: float = 0.0

    @property
    def record(self) -> Record:
        """A record without the rest: its case stands for those before it, of which only `whole` needs to know more."""
        before = () if self.case is None or not self.before else (self.case,)
        return Record(**(msgspec.structs.asdict(self) | {"seconds": {}, "before": before}))


class Settler:
    """One worker's part in settling the failures of the session in `folder`.

    run, fresh, seconds, fault  as in look_into.Investigator
    corpus                      the entries that explain what is known
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        run: Callable[[Case], Verdict],
        fresh: Callable[[], None],
        corpus: Sequence[Entry],
        seconds: Callable[[], float | None],
        fault: Callable[[Case, Exception], None],
    ) -> None:
        self._investigator = Investigator(settings, name, run, fresh, seconds, fault)
        self._reporter = Reporter(settings, name, corpus)
        self._folder = Path(settings.folder)
        self._claims = Claims(self._folder)
        self._reader = Reader(self._folder)
        self._met: list[Record] = []  # 10,000 that were read whole took 470 MB

    def work(self) -> list[Settled]:
        """Settles causes until there is none that another worker has not claimed, or the time is up."""
        done: list[Settled] = []
        while not self._investigator.late and (claimed := self._claim()) is not None:
            key, record = claimed
            try:
                looked = self._investigator.look_into(whole(self._folder, record))
                done.append(self._reporter.write(looked))
            finally:
                self._claims.release(key)
            if looked.interrupted:
                raise KeyboardInterrupt
        return done

    def _claim(self) -> tuple[str, Record] | None:
        """The next failure to look into, with the id of its cause."""
        self._met += [one.record for one in self._reader.decoded(_Outline) if one.status == "met"]
        refused = set[str]()
        while True:
            record = plainest(self._met, settlement(self._folder), refused)
            if record is None:
                return None
            key = cause_id(record)
            if self._claims.take(key):
                if settlement(self._folder).of(record) is None:  # else it was settled in the meantime
                    return key, record
                self._claims.release(key)
            else:
                refused.add(key)


def save_rest(folder: Path, device: str, records: Sequence[Record]) -> list[Settled]:
    """Saves the failures among `records` that nobody has looked into as they were met, one of each cause."""
    done = []
    with one_at_a_time(folder):
        while (record := plainest(records, settlement(folder))) is not None:
            done.append(write_as_met(folder, as_met(record, device, REST, NOT_LOOKED_INTO), REST))
    return done


def plainest(records: Sequence[Record], ended: Settlement, refused: Collection[str] = ()) -> Record | None:
    """The plainest failure that is not settled, of a cause that is not `refused`."""
    met = (record for record in records if record.status == "met")
    left = [record for record in met if cause_id(record) not in refused and ended.of(record) is None]
    return min(left, key=_plainness, default=None)


def cause_id(record: Record) -> str:
    """The id of the raw cause of a failure."""
    assert record.signature is not None
    return cause(record.signature).id


def _plainness(record: Record) -> tuple[bool, bool, int, int]:
    """Sorts failures: first cases that are not large, which are quick to minimise, then those with the cases before
    them on record, then by features in use, then by size."""
    assert record.case is not None
    problem = record.case.problem
    large = problem.pairs > LARGE
    return large, not record.before, len(switches(record.case)), sum(problem.lengths_q) + sum(problem.lengths_k)
