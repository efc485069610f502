"""The loop: draw, run, record; the same for pytest, the command line and a cluster.

A session is a list of shards: one target, a share of its cases, a seed of its own. Any process may run any shard, so
a session gives the same cases however many workers run it. Hypothesis draws; it never sees a failure (reduction is
ours, fuzz/minimize), only the events and the error ratio that it is to climb on. A failure is recorded as it was met;
what becomes of it is decided after the cases (settle.py).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

import msgspec
from hypothesis import event, target

from fuzz.core.case import Case
from fuzz.core.features import features, ordered
from fuzz.core.refusal import refusal
from fuzz.core.signature import cause, root_summary, same_failure, signature
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict
from fuzz.corpus.entry import Entry
from fuzz.corpus.replay import known
from fuzz.corpus.store import load_good, save
from fuzz.judging.follow_up import failed_alone
from fuzz.runner import HarnessError, MachineError, Runner
from fuzz.session.confirm import runs_for
from fuzz.session.draw import CLIMBING_CASES, Stop, cases_of, explore, seed_cases
from fuzz.session.plan import Shard
from fuzz.session.records import Fault, Record, Recorder, Settled, settlement, write_fault
from fuzz.session.resume import AlreadyRan
from fuzz.session.settings import Settings
from fuzz.session.settle import Settler
from fuzz.targets.registry import load

BEFORE = 32  # cases that a failure's record has of those which its process ran before it
WITH_BEFORE = 20  # failures of each cause that have them
CONFIRMING = 3.0  # seconds kept for a failure that is confirmed and not minimised
SETTLING = 0.25  # share of a session's time, at most, that is kept for the failures that it has met


@dataclass
class _Pending:
    """A case that the child has, or whose verdict is known without it.

    index    its place among the shard's cases
    seconds  draw: from the verdict before until the child had this case; the child was idle. total: from there to its
             verdict, or until the next case was drawn, where that took longer.
    before   what the child had run before
    """

    case: Case
    index: int
    began: float
    seconds: dict[str, float]
    verdict: Verdict | None = None
    before: tuple[Case, ...] = ()


class Worker:
    """Runs shards one after the other with one persistent child, records every case, then settles failures. Cases in
    `ran` have been run: they are drawn again, for the sake of those after them, and not run.

    ends  of the session, by time.monotonic(); None: so many seconds from now as the settings say, if they do
    """

    def __init__(self, settings: Settings, name: str, ran: AlreadyRan | None = None, ends: float | None = None) -> None:
        self.settings = settings
        self._ran = ran or {}
        self.name = name
        self.folder = Path(settings.folder)
        self._recorder = Recorder(self.folder, name)
        kept = load_good(settings.corpus)[0] if settings.corpus else []  # the session's end names the others
        everywhere = settings.device == "emulator"  # it runs what a GPU runs, and what a session on the host takes in
        devices = {settings.device} | ({"host"} if settings.device == "interpreter" else set())
        self._corpus = [one for one in kept if everywhere or one.found is None or one.found.device in devices]
        self._runner: Runner | None = None
        self.faults: list[str] = []  # of the harness itself: a message each
        self._causes: Counter[str] = Counter()  # of the failures met, by the id of the raw cause
        self._recent: deque[tuple[int | None, Case]] = deque(maxlen=BEFORE)  # the last cases, each with its child
        self._pending: _Pending | None = None
        self._ended_at = time.perf_counter()  # the last case
        self._ends = ends
        if ends is None and settings.seconds:
            self._ends = time.monotonic() + settings.seconds

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child and closes the records."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._recorder.close()

    def open(self) -> None:
        """Starts the child and has it open its device; as forks of this process where it has a single thread. Raises
        RunnerError."""
        runner = self._new_runner()
        runner.fork_zygote()
        runner.start()

    def run_shard(self, shard: Shard) -> list[Record]:
        """Runs a shard to its end; returns the records of the failures that the corpus does not explain. Nothing is run
        once the time is up."""
        if self.late():
            return []
        under_test = load(shard.target, self.settings.files, self.settings.device)
        met: list[Record] = []
        broken: list[Exception] = []

        climbs = shard.cases >= CLIMBING_CASES
        ran, places = self._ran.get(shard.name, {}), count()

        def learn(case: Case, passed: bool, ratio: float) -> None:
            """Hypothesis learns of a case. Failures that are known would hold it where they are."""
            for name in _features(case):
                event(name)
            if climbs and passed:
                target(ratio, label=f"error / budget of {shard.target}")
                for label, number in under_test.climbs(case).items():
                    target(number, label=f"{label} of {shard.target}")

        def each(case: Case) -> None:
            """Runs a case, unless that was done before."""
            index = next(places)
            if (before := ran.get(index)) is not None:
                learn(case, before.passed, before.ratio)
            else:
                loop(case, index)

        def loop(case: Case | None, index: int = -1) -> None:
            """Takes in the case before, and sends `case` off; None: there is no other."""
            if case is not None and self.late():
                raise Stop
            try:
                records = self._turn(under_test, shard, case, index)
                if climbs:  # Hypothesis is to learn of this very case before it draws the next one
                    records += self._turn(under_test, shard, None)
            except Exception as error:  # ours, not the target's: Hypothesis must not replay and shrink it
                broken.append(error)
                raise Stop from None
            met.extend(record for record in records if record.status == "met")
            if case is not None:
                passed = [record.ratio for record in records if record.outcome == "pass"]
                learn(case, bool(passed), sum(passed))

        self._ended_at = time.perf_counter()
        explore(shard, cases_of(under_test, self.settings), each, seed_cases(shard, under_test, self.settings))
        with suppress(Stop):
            if not broken:
                loop(None)
        if broken:
            raise broken[0]
        return met

    def settle(self) -> list[Settled]:
        """Settles failures that the session has met, with the other workers; returns what became of those that this one
        looked into. Raises KeyboardInterrupt once the one at hand is saved."""
        return Settler(
            self.settings,
            self.name,
            run=self.run_case,
            fresh=lambda: self._child().fresh(),
            corpus=self._corpus,
            seconds=self._left,
            fault=self._note_fault,
        ).work()

    def late(self) -> bool:
        """True if no further case is to be run: the session's time is up, but for what its failures need."""
        left = self._left()
        if left is None:
            return False
        each = self.settings.minimize_seconds if self.settings.minimize_runs else CONFIRMING
        return left <= min(len(self._causes) * each, SETTLING * self.settings.seconds)

    def _left(self) -> float | None:
        """Seconds that are left of the session; None: there is no limit."""
        return None if self._ends is None else self._ends - time.monotonic()

    def run_case(self, case: Case) -> Verdict:
        """The one function that everything is built on; here with this worker's persistent child."""
        return self._child().run(case)

    def _child(self) -> Runner:
        return self._new_runner() if self._runner is None else self._runner

    def _new_runner(self) -> Runner:
        device = "cuda:0" if self.settings.device == "cuda" else self.settings.device
        self._runner = Runner(device, files=self.settings.files)
        return self._runner

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

    def _verdict(self, pending: _Pending) -> Verdict | None:
        """The child's verdict; None where the harness failed on the case."""
        if pending.verdict is not None:
            return pending.verdict
        try:
            return self._child().collect()
        except HarnessError as error:
            self._note_fault(pending.case, error)
            return None

    def _judged(self, shard: Shard, pending: _Pending, verdict: Verdict) -> list[Record]:
        """The case's record; none where the harness failed as it looked into a failure."""
        try:
            return [self._record(shard, pending, verdict)]
        except HarnessError as error:
            self._note_fault(pending.case, error)
            return []

    def _note_fault(self, case: Case, error: Exception) -> None:
        """A fault of the harness costs the case on which it shows, and is kept: the next case has a fresh child."""
        self.faults.append(str(error))
        machine = isinstance(error, MachineError)
        write_fault(self.folder, Fault(self.name, str(error), case, time.time(), machine))

    def _submit(self, under_test: Target, case: Case, index: int) -> _Pending:
        began = time.perf_counter()
        pending = _Pending(case, index, began, {"draw": began - self._ended_at})
        refused = refusal(under_test, case)
        if refused is not None and refused.kind == "cannot":
            pending.verdict = Verdict(case.id, "reject", reason=f"cannot express: {refused.why}")
        else:
            child = self._child()
            child.submit(case)
            pending.before = tuple(one for pid, one in self._recent if pid == child.pid)
            self._recent.append((child.pid, case))
        return pending

    def _record(self, shard: Shard, pending: _Pending, verdict: Verdict) -> Record:
        """Recorded, as it was met where it failed."""
        case = pending.case
        if verdict.bad:
            case, verdict = self._known_alone(case, verdict)
        record = Record(
            worker=self.name,
            shard=shard.name,
            target=case.target,
            case_id=case.id,
            index=pending.index,
            outcome=verdict.outcome,
            seconds=verdict.seconds | {name: round(spent, 6) for name, spent in pending.seconds.items()},
            features=_features(case),
            ratio=verdict.ratio,
            reason=verdict.reason,
            calls=verdict.calls,
        )
        if verdict.bad:
            record = self._met(record, case, verdict, pending.before)
        self._recorder.add(record)
        return record

    def _known_alone(self, case: Case, verdict: Verdict) -> tuple[Case, Verdict]:
        """The case and its verdict; or a follow-up case that failed by itself in the same run, where that is known."""
        for plainer, found in failed_alone(verdict):
            if known(signature(plainer, found), self._corpus) is not None:
                return plainer, found
        return case, verdict

    def _met(self, record: Record, case: Case, verdict: Verdict, before: tuple[Case, ...]) -> Record:
        """The record of a failure: known, or met. A hang or a crash counts where it shows again."""
        found = signature(case, verdict)
        entry = known(found, self._corpus)
        if entry is None and verdict.outcome in ("hang", "crash") and not self._causes[cause(found).id]:
            again = self._again(case, verdict)
            if again is None:
                return self._quarantined(record, case, verdict)
            verdict, found = again, signature(case, again)
            entry = known(found, self._corpus)
        key = cause(found).id
        record = msgspec.structs.replace(
            record,
            outcome=verdict.outcome,
            message=root_summary(verdict),
            signature=found,
            case=case,
            verdict=verdict,
            status="met" if entry is None else "known",
            finding="" if entry is None else entry.name,
            before=before if entry is None and self._causes[key] < WITH_BEFORE else (),
            at=time.time(),
        )
        if entry is None:
            self._causes[key] += 1
        return record

    def _again(self, case: Case, verdict: Verdict) -> Verdict | None:
        """The verdict of a hang or a crash that shows again in a fresh process; of another failure where that shows
        instead; None where none does: the process may have been suspended, or killed from outside."""
        other: Verdict | None = None
        for _ in range(runs_for(verdict)):
            left = self._left()
            if left is not None and left <= 0:
                return verdict  # settled as it was met
            self._child().fresh()
            found = self.run_case(case)
            if same_failure(verdict, found):
                return found
            other = other or (found if found.bad else None)
        return other

    def _quarantined(self, record: Record, case: Case, verdict: Verdict) -> Record:
        found = signature(case, verdict)
        entry = Entry.as_met(case, verdict.outcome, found, device=self.settings.device)
        runs = 1 + runs_for(verdict)
        return msgspec.structs.replace(
            record,
            message=f"{root_summary(verdict)} (in 1 of {runs} runs; not again in a fresh process)",
            signature=found,
            case=case,
            verdict=verdict,
            status="unconfirmed",
            finding=str(save(entry, self.folder / "quarantine")),
            at=time.time(),
        )


@lru_cache(maxsize=4)
def _features(case: Case) -> tuple[str, ...]:
    return ordered(features(case))


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
