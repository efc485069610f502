"""The loop: draw, run, record; the same for pytest, the command line and a cluster.

A session is a list of shards: one target, a share of its cases, a seed of its own. Any process may run any shard, so
a session gives the same cases however many workers run it. Hypothesis draws; it never sees a failure (reduction is
ours, fuzz/minimize), only the events and the error ratio that it is to climb on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
from hypothesis import event, target

from fuzz.core.case import Case
from fuzz.core.features import features, ordered
from fuzz.core.refusal import refusal
from fuzz.core.signature import explains, look_alike, root, signature
from fuzz.core.target import Target
from fuzz.core.verdict import Signature, Verdict, summary
from fuzz.corpus.entry import Entry
from fuzz.corpus.replay import known
from fuzz.corpus.store import load_all, save
from fuzz.judging.follow_up import failed_alone, stand_alone_cases
from fuzz.minimize import minimize
from fuzz.runner import HarnessError, Runner
from fuzz.session.claims import Claims
from fuzz.session.draw import CLIMBING_CASES, Stop, cases_of, explore, seed_cases
from fuzz.session.plan import Shard
from fuzz.session.records import Fault, Record, Recorder, write_fault
from fuzz.session.settings import Settings
from fuzz.targets.registry import load


@dataclass
class _Pending:
    """A case that the child has, or whose verdict is known without it.

    seconds  draw: from the verdict before until the child had this case; the child was idle. total: from there to its
             verdict, or until the next case was drawn, where that took longer.
    """

    case: Case
    began: float
    seconds: dict[str, float]
    verdict: Verdict | None = None


class Worker:
    """Runs shards one after the other with one persistent child; records every case, reports every bug once."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.folder = Path(settings.folder)
        self._recorder = Recorder(self.folder, name)
        self._claims = Claims(self.folder)
        self._claimed: Signature | None = None  # of the failure in hand
        kept = load_all(Path(settings.corpus)) if settings.corpus and Path(settings.corpus).is_dir() else []
        self._corpus = [entry for entry in kept if entry.found is None or entry.found.device == settings.device]
        self._runner: Runner | None = None
        self.faults: list[str] = []  # of the harness itself: a message each
        self._interrupted = False  # while minimising: the best so far is saved, then the session ends
        self._pending: _Pending | None = None
        self._ended_at = time.perf_counter()  # the last case
        self._ends = time.monotonic() + settings.seconds if settings.seconds else None

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
        """Runs a shard to its end; returns the records of the new findings. Nothing is run once the time is up."""
        if self._late():
            return []
        under_test = load(shard.target, self.settings.files, self.settings.device)
        new: list[Record] = []
        broken: list[Exception] = []

        climbs = shard.cases >= CLIMBING_CASES

        def loop(case: Case | None) -> None:
            """Takes in the case before, and sends `case` off; None: there is no other."""
            if case is not None and self._late():
                raise Stop
            try:
                records = self._turn(under_test, shard, case)
                if climbs:  # Hypothesis is to learn of this very case before it draws the next one
                    records += self._turn(under_test, shard, None)
            except Exception as error:  # ours, not the target's: Hypothesis must not replay and shrink it
                broken.append(error)
                raise Stop from None
            new.extend(record for record in records if record.status == "new")
            if case is None:
                return
            for name in _features(case):
                event(name)
            for record in records if climbs else ():
                if record.outcome == "pass":  # failures that are known would hold Hypothesis where they are
                    target(record.ratio, label=f"error / budget of {shard.target}")

        self._ended_at = time.perf_counter()
        explore(shard, cases_of(under_test, self.settings), loop, seed_cases(shard, under_test, self.settings))
        with suppress(Stop):
            if not broken:
                loop(None)
        if broken:
            raise broken[0]
        return new

    def _late(self) -> bool:
        return self._ends is not None and time.monotonic() > self._ends

    def run_case(self, case: Case) -> Verdict:
        """The one function that everything is built on; here with this worker's persistent child."""
        return self._child().run(case)

    def _child(self) -> Runner:
        return self._new_runner() if self._runner is None else self._runner

    def _new_runner(self) -> Runner:
        device = "cuda:0" if self.settings.device == "cuda" else "host"
        self._runner = Runner(device, files=self.settings.files)
        return self._runner

    def _turn(self, under_test: Target, shard: Shard, case: Case | None) -> list[Record]:
        """The records of the case that the child had; it has `case` from now on, which it judges while this process
        draws. A case that failed is looked into first, for which the child is needed."""
        pending, self._pending = self._pending, None
        verdict, records = None, list[Record]()
        if pending is not None:
            verdict = self._verdict(pending)
            pending.seconds["total"] = time.perf_counter() - pending.began
            self._ended_at = time.perf_counter()
            if verdict is not None and verdict.bad:
                records += self._judged(shard, under_test, pending, verdict)
                self._ended_at = time.perf_counter()
        if case is not None:
            self._pending = self._submit(under_test, case)
        if pending is not None and verdict is not None and not verdict.bad:
            records += self._judged(shard, under_test, pending, verdict)
        if self._interrupted:
            raise KeyboardInterrupt
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

    def _judged(self, shard: Shard, under_test: Target, pending: _Pending, verdict: Verdict) -> list[Record]:
        """The case's record; none where the harness failed as it looked into a failure."""
        try:
            return [self._record(shard, under_test, pending, verdict)]
        except HarnessError as error:
            self._note_fault(pending.case, error)
            return []

    def _note_fault(self, case: Case, error: HarnessError) -> None:
        """A fault of the harness costs the case on which it shows, and is kept: the next case has a fresh child."""
        self.faults.append(str(error))
        write_fault(self.folder, Fault(self.name, str(error), case, time.time()))

    def _submit(self, under_test: Target, case: Case) -> _Pending:
        began = time.perf_counter()
        pending = _Pending(case, began, {"draw": began - self._ended_at})
        refused = refusal(under_test, case)
        if refused is not None and refused.kind == "cannot":
            pending.verdict = Verdict(case.id, "reject", reason=f"cannot express: {refused.why}")
        else:
            self._child().submit(case)
        return pending

    def _record(self, shard: Shard, under_test: Target, pending: _Pending, verdict: Verdict) -> Record:
        """Recorded; what failed is reported first, as its plainer case where there is one."""
        case = pending.case
        if verdict.bad:
            case, verdict = self._plainer(under_test, case, verdict)
        record = Record(
            worker=self.name,
            shard=shard.name,
            target=case.target,
            case_id=case.id,
            outcome=verdict.outcome,
            seconds=verdict.seconds | {name: round(spent, 6) for name, spent in pending.seconds.items()},
            features=_features(case),
            ratio=verdict.ratio,
            reason=verdict.reason,
        )
        if verdict.bad:
            record = self._report(record, under_test, case, verdict)
        self._recorder.add(record)
        if self._claimed is not None:
            self._claims.settle(self._claimed)
            self._claimed = None
        return record

    def _plainer(self, under_test: Target, case: Case, verdict: Verdict) -> tuple[Case, Verdict]:
        """The case and its verdict. Where only a follow-up case fails, and fails by itself too, it is that plainer
        case which is reported: as it failed in the same run where that is known, else as it fails again."""
        for plainer, found in failed_alone(verdict):
            if known(signature(plainer, found), self._corpus) is not None:
                return plainer, found
        first = root(verdict)
        if first is not None and first.oracle == "metamorphic":
            for plainer in stand_alone_cases(case, under_test):
                found = self.run_case(plainer)
                if found.bad:
                    return plainer, found
        return case, verdict

    def _report(self, record: Record, under_test: Target, case: Case, verdict: Verdict) -> Record:
        """Known, met before in this session, or new: then it is minimised and saved."""
        found = signature(case, verdict)
        record = msgspec.structs.replace(record, message=summary(verdict), signature=found, case=case, verdict=verdict)
        status, where = self._status(found)
        if status == "new":
            if self._claims.take(found, self._as_met(case, verdict, found), record):
                self._claimed = found
            else:
                status = "again"
        if status != "new":
            return msgspec.structs.replace(record, status=status, finding=where)
        entry = self._minimized(under_test, case, verdict, found)
        assert entry.signature is not None
        status, where = self._status(entry.signature, minimized=True)
        if status == "new":
            where = str(self._save(entry))
        return msgspec.structs.replace(record, status=status, finding=where, signature=entry.signature)

    def _as_met(self, case: Case, verdict: Verdict, found: Signature) -> Entry:
        return Entry.as_met(case, verdict.outcome, found, device=self.settings.device)

    def _status(self, found: Signature, *, minimized: bool = False) -> tuple[str, str]:
        """'known' with the corpus file, 'again' with the session's file, or 'new'."""
        entry = known(found, self._corpus)
        if entry is not None:
            return "known", entry.name
        if minimized:
            for entry in self._corpus:
                if entry.known and entry.signature is not None and look_alike(entry.signature, found):
                    return "known", entry.name
        for path, before in self._findings():
            same = before.signature
            if same and (explains(same, found) or (minimized and look_alike(same, found))):
                return "again", str(path)
        return "new", ""

    def _findings(self) -> Iterable[tuple[Path, Entry]]:
        folder = self.folder / "findings"
        return [(folder / entry.name, entry) for entry in load_all(folder)] if folder.is_dir() else []

    def _minimized(self, under_test: Target, case: Case, verdict: Verdict, found: Signature) -> Entry:
        """The entry of the smallest case that fails alike; where the harness fails meanwhile, of the case itself."""
        try:
            smallest = minimize(
                case,
                self.run_case,
                verdict=verdict,
                max_runs=self.settings.minimize_runs,
                max_seconds=self.settings.minimize_seconds,
                allowed=lambda candidate: refusal(under_test, candidate) is None,
            )
        except HarnessError as error:
            self._note_fault(case, error)
            return self._as_met(case, verdict, found)
        self._interrupted = smallest.stopped == "interrupted"
        return Entry.of(smallest, device=self.settings.device)

    def _save(self, entry: Entry) -> Path:
        """In the session's folder always, in the corpus where there is one."""
        kept = save(entry, self.folder / "findings")
        if self.settings.corpus and Path(self.settings.corpus).is_dir():
            return save(entry, Path(self.settings.corpus))
        return kept


@lru_cache(maxsize=4)
def _features(case: Case) -> tuple[str, ...]:
    return ordered(features(case))


def run(
    settings: Settings, shards: Iterable[Shard], worker: str, done: Callable[[Shard], None] | None = None
) -> list[Record]:
    """Runs `shards` in this process; returns the new findings."""
    new: list[Record] = []
    with Worker(settings, worker) as hands:
        for shard in shards:
            new += hands.run_shard(shard)
            if done is not None:
                done(shard)
    return new
