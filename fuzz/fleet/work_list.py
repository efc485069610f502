"""WorkList: what a fleet's session still has to do, and what is done: shards, failures to look into, records.

A shard whose worker is lost is given to another one, which draws all of its cases again and runs those that are not on
record.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from fuzz.corpus.entry import Entry
from fuzz.fleet.cases import Cases
from fuzz.fleet.messages import Job, News
from fuzz.fleet.settling import Settling
from fuzz.session.plan import Shard
from fuzz.session.records import Record
from fuzz.session.resume import AlreadyRan
from fuzz.session.settings import Settings

LOSSES = 3  # workers in a row that may be lost over one shard without a case on record
DEVICES = 2  # devices in a row that a failure may cost before it counts
SETTLING = 4.0  # seconds after the session's time in which a failure that is being looked into may end


class WorkList:
    """Of the session in settings.folder.

    todo  its shards of which a case is missing, each of which is to be handed out
    ran   its cases that are on record; met: their failures
    ends  of the session, by time.monotonic(); None: when every case was run
    """

    def __init__(
        self,
        settings: Settings,
        corpus: Sequence[Entry],
        todo: Sequence[Shard],
        ran: AlreadyRan,
        met: Iterable[Record],
        ends: float | None,
    ) -> None:
        self._ends = ends
        self._cases = Cases(Path(settings.folder), settings.device, todo, ran)
        self._settling = Settling(settings, corpus)
        self._settling.add(met)
        self._lock = threading.Lock()
        self._shards: deque[Shard] = deque()
        self._to_come = len(todo)
        self._losses: Counter[str] = Counter()  # by shard
        self._given_up: dict[str, str] = {}  # by shard: why
        self._not_judged: set[str] = set()  # shards with cases on which the harness failed
        self._suspects: Counter[tuple[str, int]] = Counter()

    def hand_out(self, shard: Shard) -> None:
        """A shard that can be run; from any thread."""
        with self._lock:
            self._shards.append(shard)
            self._to_come -= 1

    def next(self, worker: str) -> Job | None:
        """A shard for a worker, or a failure to look into where there is no shard left; None: nothing yet."""
        if self.late():
            return None
        with self._lock:
            shard = self._shards.popleft() if self._shards else None
        if shard is not None:
            return Job(shard, self._cases.ran(shard.name))
        failure = None if self._to_come else self._settling.next(worker)
        return None if failure is None else Job(failure=failure)

    def take(self, worker: str, news: News) -> None:
        """Writes down what a worker tells. Raises OSError where the disk is full."""
        new = self._cases.add(news.records)
        self._settling.add(new)
        for record in new:
            self._losses.pop(record.shard, None)
        for fault in news.faults:
            self._cases.fault(fault)
        for looked in news.looked:
            self._settling.done(worker, looked)
        self._not_judged |= {name for name in news.finished if not self._cases.complete(name)}

    def suspect(self, record: Record) -> None:
        """A failure after which a device was not to be trusted any more: the case's doing where that comes again."""
        place = record.shard, record.index
        self._suspects[place] += 1
        if self._suspects[place] >= DEVICES:
            self._settling.add(self._cases.add([record]))

    def take_back(self, worker: str, job: Job | None, why: str) -> None:
        """What a worker had in hand that is lost, or drained."""
        self._settling.lose(worker)
        if job is None or job.shard is None or self._cases.complete(job.shard.name):
            return
        self._losses[job.shard.name] += 1
        if self._losses[job.shard.name] >= LOSSES:
            self._given_up[job.shard.name] = why
            return
        with self._lock:
            self._shards.appendleft(job.shard)

    def late(self, grace: float = 0.0) -> bool:
        """True once the session's time is up, and `grace` seconds more."""
        return self._ends is not None and time.monotonic() > self._ends + grace

    def done(self, busy: bool) -> bool:
        """True if there is nothing left to do. busy: a worker has a job in hand."""
        if self.late(SETTLING):
            return True
        if busy or ((self._shards or self._to_come) and not self.late()):
            return False
        return self.late() or not self._settling.left

    def problems(self, why: str) -> list[str]:
        """A line for each reason why cases are left undone, but for the session's time. why: there is no worker."""
        if self.late():
            return []
        missing = self._cases.missing()
        lines = [
            f"{missing[name]} cases of {name} were not run: {LOSSES} workers were lost over it, the last one: {last}"
            for name, last in self._given_up.items()
            if name in missing
        ]
        said = {*self._given_up, *self._not_judged}  # what the harness failed on has lines of its own
        rest = sum(number for name, number in missing.items() if name not in said)
        if rest:
            lines.append(f"{rest} cases were not run: no worker is left{f': {why}' if why else ''}")
        return lines

    def close(self) -> None:
        """Closes the file of records."""
        self._cases.close()
