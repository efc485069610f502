"""The loop: draw, run, record; the same for pytest, the command line and a cluster (fuzz/fleet).

A session is a list of shards: one target, a share of its cases, a seed of its own. Any process may run any shard, so
a session gives the same cases however many workers run it. Where Hypothesis draws (draw.py) it never sees a failure
(reduction is ours, fuzz/minimize), only the events and the error ratio that it is to climb on. A failure is recorded as
it was met; what becomes of it is decided after the cases (failures/settle.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import load_good
from fuzz.runner import HarnessError, MachineError, Runner
from fuzz.session.book import Book, FolderBook
from fuzz.session.draw import Scores, Stop, climbs, drawer_of, explore, seed_cases
from fuzz.session.failures.look_into import Investigator, Looked
from fuzz.session.failures.recording import Pending, Recording
from fuzz.session.failures.settle import Settler
from fuzz.session.plan import Shard
from fuzz.session.records import Fault, Record, Settled, settlement
from fuzz.session.resume import AlreadyRan, Ran
from fuzz.session.settings import Settings
from fuzz.targets.registry import load

BEFORE = 32  # cases that a failure's record has of those which its process ran before it
CONFIRMING = 3.0  # seconds kept for a failure that is confirmed and not minimised
SETTLING = 0.25  # share of a session's time, at most, that is kept for the failures that it has met


class Check(Protocol):
    """A look at the device between two cases."""

    @property
    def due(self) -> bool:
        """True if no further case is to run before it."""

    def look(self, run: Callable[[Case], Verdict]) -> None:
        """Looks, by means of the worker's child. Raises where no further case is to run on this device."""


class Worker:
    """Runs shards one after the other with one persistent child, records every case, then settles failures. Cases in
    `ran` have been run: they are drawn again, for the sake of those after them, and not run.

    ends    of the session, by time.monotonic(); None: so many seconds from now as the settings say, if they do
    book    where records go; None: into the session's folder
    corpus  the entries that explain what is known; None: those of settings.corpus
    check   None: the device is not looked at
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        ran: AlreadyRan | None = None,
        ends: float | None = None,
        *,
        book: Book | None = None,
        corpus: Sequence[Entry] | None = None,
        check: Check | None = None,
    ) -> None:
        self.settings = settings
        self._ran = {shard: dict(places) for shard, places in (ran or {}).items()}
        self.name = name
        self.folder = Path(settings.folder)
        self._book = FolderBook(self.folder, name) if book is None else book
        self._check = check
        self._stopped = False
        if corpus is None:  # the session's end names files that cannot be read
            corpus = load_good(settings.corpus)[0] if settings.corpus else []
        everywhere = settings.device == "emulator"  # it runs what a GPU runs, and what a session on the host takes in
        devices = {settings.device} | ({"host"} if settings.device == "interpreter" else set())
        self._corpus = [one for one in corpus if everywhere or one.found is None or one.found.device in devices]
        self._runner: Runner | None = None
        self.faults: list[str] = []  # of the harness itself: a message each
        self._recent: deque[tuple[int | None, Case]] = deque(maxlen=BEFORE)  # the last cases, each with its child
        self._pending: Pending | None = None
        self._ended_at = time.perf_counter()  # the last case
        self._ends = ends
        if ends is None and settings.seconds:
            self._ends = time.monotonic() + settings.seconds
        self._recording = Recording(settings, name, self._book, self._corpus, self.run_case, self._fresh, self._left)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child and closes the records."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._book.close()

    def open(self) -> None:
        """Starts the child and has it open its device; as forks of this process where it has a single thread. Raises
        RunnerError."""
        runner = self._new_runner()
        runner.fork_zygote()
        runner.start()

    def run_shard(
        self, shard: Shard, ran: Mapping[int, Ran] | None = None, seconds: float | None = None
    ) -> list[Record]:
        """Runs a shard to its end; returns the records of the failures that the corpus does not explain. Nothing is run
        once the time is up.

        ran      by place, the shard's cases that have been run; None: those that the worker began with, and its own
        seconds  after which it runs no further case than the first one: what is left may be run by another call
        """
        if self.late():
            return []
        until, sent = None if seconds is None else time.monotonic() + seconds, 0
        under_test = load(shard.target, self.settings.files, self.settings.device)
        met: list[Record] = []
        broken: list[Exception] = []

        climbing = climbs(shard)
        done, places = self._ran_of(shard) if ran is None else dict(ran), count()

        def scores(case: Case, passed: bool, ratio: float) -> Scores:
            """What a climbing shard is to know of a case. Failures that are known would hold it where they are."""
            return {**under_test.climbs(case), "error over budget": ratio} if climbing and passed else {}

        def each(case: Case) -> Scores:
            """Runs a case, unless that was done before."""
            index = next(places)
            if (before := done.get(index)) is not None:
                return scores(case, before.passed, before.ratio)
            passed = [record.ratio for record in loop(case, index) if record.outcome == "pass"]
            return scores(case, bool(passed), sum(passed))

        def loop(case: Case | None, index: int = -1) -> list[Record]:
            """The records of what has ended: takes in the case before, and sends `case` off; None: there is no
            other."""
            nonlocal sent
            if case is not None:
                if self.late() or (until is not None and sent and time.monotonic() > until):
                    raise Stop
                sent += 1
            try:
                records = self._looked(under_test, shard)
                records += self._turn(under_test, shard, case, index)
                if climbing:  # this very case is to score before the next one is drawn
                    records += self._turn(under_test, shard, None)
            except Exception as error:  # ours, not the target's: Hypothesis must not replay and shrink it
                broken.append(error)
                raise Stop from None
            met.extend(record for record in records if record.status == "met")
            done.update({x.index: Ran(x.case_id, x.outcome == "pass", x.ratio) for x in records if x.index >= 0})
            return records

        self._ended_at = time.perf_counter()
        explore(shard, drawer_of(under_test, self.settings, shard), each, seed_cases(shard, under_test, self.settings))
        with suppress(Stop):
            if not broken:
                loop(None)
        if broken:
            raise broken[0]
        return met

    def left_of(self, shard: Shard) -> int:
        """Cases of a shard that this worker knows no record of."""
        return shard.cases - len(self._ran_of(shard))

    def _ran_of(self, shard: Shard) -> dict[int, Ran]:
        return self._ran.setdefault(shard.name, {})

    def settle(self) -> list[Settled]:
        """Settles failures that the session has met, with the other workers; returns what became of those that this one
        looked into. Raises KeyboardInterrupt once the one at hand is saved."""
        return Settler(
            self.settings,
            self.name,
            run=self.run_case,
            fresh=self._fresh,
            corpus=self._corpus,
            seconds=self._left,
            fault=self._note_fault,
        ).work()

    def look_into(self, record: Record) -> Looked:
        """What a failure turns out to be that this or another worker has met; it is not written down."""
        found = Investigator(self.settings, self.name, self.run_case, self._fresh, self._left, self._note_fault)
        return found.look_into(record)

    def stop(self) -> None:
        """From another thread: the case at hand is the last one."""
        self._stopped = True

    def late(self) -> bool:
        """True if no further case is to be run: the session's time is up, but for what its failures need."""
        if self._stopped:
            return True
        left = self._left()
        if left is None:
            return False
        each = self.settings.minimize_seconds if self.settings.minimize_runs else CONFIRMING
        return left <= min(len(self._recording.causes) * each, SETTLING * self.settings.seconds)

    def _left(self) -> float | None:
        """Seconds that are left of the session; None: there is no limit."""
        return None if self._ends is None else self._ends - time.monotonic()

    def run_case(self, case: Case) -> Verdict:
        """The one function that everything is built on; here with this worker's persistent child."""
        return self._child().run(case)

    def _child(self) -> Runner:
        return self._new_runner() if self._runner is None else self._runner

    def _fresh(self) -> None:
        self._child().fresh()

    def _new_runner(self) -> Runner:
        device = "cuda:0" if self.settings.device == "cuda" else self.settings.device
        self._runner = Runner(device, files=self.settings.files)
        return self._runner

    def _looked(self, under_test: Target, shard: Shard) -> list[Record]:
        """Looks at the device where that is due; the record of the case that the child had."""
        if self._check is None or not self._check.due:
            return []
        records = self._turn(under_test, shard, None)
        self._check.look(self.run_case)
        self._ended_at = time.perf_counter()
        return records

    def _turn(self, under_test: Target, shard: Shard, case: Case | None, index: int = -1) -> list[Record]:
        """The records of the case that the child had; it has `case` from now on, which it judges while this process
        draws. A hang or a crash is measured again first, for which the child is needed."""
        pending, self._pending = self._pending, None
        verdict, records = None, list[Record]()
        if pending is not None:
            verdict = self._verdict(pending)
            pending.seconds["total"] = time.perf_counter() - pending.began
            self._ended_at = time.perf_counter()
            if verdict is not None and verdict.outcome in ("hang", "crash"):
                records += self._judged(shard, pending, verdict)
                self._ended_at = time.perf_counter()
                verdict = None
        if case is not None:
            self._pending = self._submit(under_test, case, index)
        if pending is not None and verdict is not None:
            records += self._judged(shard, pending, verdict)
        return records

    def _verdict(self, pending: Pending) -> Verdict | None:
        """The child's verdict; None where the harness failed on the case."""
        if pending.verdict is not None:
            return pending.verdict
        try:
            return self._child().collect()
        except HarnessError as error:
            self._note_fault(pending.case, error)
            return None

    def _judged(self, shard: Shard, pending: Pending, verdict: Verdict) -> list[Record]:
        """The case's record; none where the harness failed as it looked into a failure."""
        try:
            return [self._recording.record(shard, pending, verdict)]
        except HarnessError as error:
            self._note_fault(pending.case, error)
            return []

    def _note_fault(self, case: Case, error: Exception) -> None:
        """A fault of the harness costs the case on which it shows, and is kept: the next case has a fresh child."""
        self.faults.append(str(error))
        machine = isinstance(error, MachineError)
        self._book.fault(Fault(self.name, str(error), case, time.time(), machine))

    def _submit(self, under_test: Target, case: Case, index: int) -> Pending:
        began = time.perf_counter()
        pending = Pending(case, index, began, {"draw": began - self._ended_at})
        refused = refusal(under_test, case)
        if refused is not None and refused.kind == "cannot":
            pending.verdict = Verdict(case.id, "reject", reason=f"cannot express: {refused.why}")
        else:
            child = self._child()
            child.submit(case)
            pending.before = tuple(one for pid, one in self._recent if pid == child.pid)
            self._recent.append((child.pid, case))
        return pending


def run(
    settings: Settings, shards: Iterable[Shard], worker: str, done: Callable[[Shard], None] | None = None
) -> list[Settled]:
    """Runs `shards` in this process and settles what failed; returns the new findings."""
    with Worker(settings, worker) as hands:
        for shard in shards:
            hands.run_shard(shard)
            if done is not None:
                done(shard)
        hands.settle()
    return [one for one in settlement(Path(settings.folder)).new if one.status == "new"]
