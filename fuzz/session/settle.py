"""Settling of failures after a session's cases: each cause is confirmed in a fresh process, minimised and saved.

During the session a failure is recorded as it was met and costs nothing more. When a worker has no case left it claims
a cause (claims.py) among the failures that nobody has looked into, takes the plainest of its cases, and settles it;
what that explains is settled with it. So one cause is minimised once, several are at the same time, and whatever ends
the session early (Ctrl-C, a kill, --max-time) leaves failures that are on record and are saved as they were met.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from fuzz.core.case import Case
from fuzz.core.features import switches
from fuzz.core.refusal import refusal
from fuzz.core.signature import cause, look_alike, root, root_summary, signature
from fuzz.core.target import Target
from fuzz.core.verdict import Signature, Verdict
from fuzz.corpus.entry import CorpusError, Entry
from fuzz.corpus.replay import known
from fuzz.corpus.store import save
from fuzz.judging.follow_up import stand_alone_cases
from fuzz.minimize import minimize
from fuzz.runner import HarnessError
from fuzz.session.claims import Claims
from fuzz.session.confirm import Confirmation, confirm
from fuzz.session.one_bug import merge
from fuzz.session.records import Reader, Record, Recorder, Settled, Settlement, Status, settlement, write_note
from fuzz.session.settings import Settings
from fuzz.targets.registry import load

NOT_LOOKED_INTO = "saved as it was met: the session ended before it was looked into"
TIME_IS_UP = "not minimised further: the session's time was up"
LARGE = 1 << 22  # pairs of query and key over all heads
REST = "rest"  # name of the worker in what `save_rest` writes


class Settler:
    """One worker's part in settling the failures of the session in `folder`.

    run, fresh  the worker's child: the verdict of a case, and a new process for the next one
    corpus      the entries that explain what is known
    late        True: the session's time is up. seconds: what is left of it, None: no limit
    fault       called with a case and an error of the harness
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
        self._settings, self._name, self._corpus = settings, name, corpus
        self._run, self._fresh, self._seconds, self._fault = run, fresh, seconds, fault
        self._folder = Path(settings.folder)
        self._claims = Claims(self._folder)
        self._reader = Reader(self._folder)
        self._met: list[Record] = []

    def work(self) -> list[Settled]:
        """Settles causes until there is none that another worker has not claimed, or the time is up."""
        done: list[Settled] = []
        while not self._late() and (claimed := self._claim()) is not None:
            key, record = claimed
            interrupted = False
            try:
                one, interrupted = self._look_into(record)
                done.append(one)
            finally:
                self._claims.release(key)
            if interrupted:
                raise KeyboardInterrupt
        return done

    def _late(self) -> bool:
        left = self._seconds()
        return left is not None and left <= 0

    def _claim(self) -> tuple[str, Record] | None:
        """The next failure to look into, with the id of its cause."""
        self._met += [record for record in self._reader.new() if record.status == "met"]
        refused = set[str]()
        while True:
            record = _first(self._met, settlement(self._folder), refused)
            if record is None:
                return None
            key = _key(record)
            if self._claims.take(key):
                if settlement(self._folder).of(record) is None:  # else it was settled in the meantime
                    return key, record
                self._claims.release(key)
            else:
                refused.add(key)

    def _look_into(self, record: Record) -> tuple[Settled, bool]:
        """Settles a failure; whether Ctrl-C ended it."""
        under_test = load(record.target, self._settings.files, self._settings.device)
        case, verdict = record.case, record.verdict
        assert case is not None and verdict is not None
        ends = time.monotonic() + self._settings.minimize_seconds
        try:
            case, verdict = self._plainer(under_test, case, verdict)
            found = confirm(case, verdict, record.before, self._run, self._fresh, lambda: self._late_at(ends))
            if found.verdict is None or found.after:
                return self._settled_as_met(record, case, verdict, found), False
            return self._minimised(under_test, record, case, found, ends)
        except KeyboardInterrupt:
            return self._saved_as_met(record, NOT_LOOKED_INTO), True
        except HarnessError as error:
            self._fault(case, error)
            return self._saved_as_met(record, "saved as it was met: the harness failed as it looked into it"), False

    def _late_at(self, ends: float) -> bool:
        return self._late() or time.monotonic() >= ends

    def _plainer(self, under_test: Target, case: Case, verdict: Verdict) -> tuple[Case, Verdict]:
        """The follow-up case that fails by itself, where there is one: plainer than the relation that found it."""
        first = root(verdict)
        if first is not None and first.oracle == "metamorphic":
            for plainer in stand_alone_cases(case, under_test):
                if self._late():
                    break
                found = self._run(plainer)
                if found.bad:
                    return plainer, found
        return case, verdict

    def _minimised(
        self, under_test: Target, record: Record, case: Case, found: Confirmation, ends: float
    ) -> tuple[Settled, bool]:
        """A failure that shows in a fresh process, as the smallest case that fails alike."""
        left = self._seconds()
        seconds = self._settings.minimize_seconds if left is None else min(left, self._settings.minimize_seconds)
        smallest = minimize(
            case,
            self._run,
            verdict=found.verdict,
            max_runs=self._settings.minimize_runs,
            max_seconds=max(seconds, 0.0),
            allowed=lambda candidate: refusal(under_test, candidate) is None,
        )
        cut = smallest.stopped == "seconds" and self._late()
        entry = Entry.of(smallest, device=self._settings.device)
        assert entry.signature is not None
        one = Settled(
            worker=self._name,
            shard=record.shard,
            case_id=record.case_id,
            status="new",
            raw=_raw(record),
            signature=entry.signature,
            message=root_summary(smallest.verdict),
            failed=smallest.failed,
            probed=smallest.probed,
            note=TIME_IS_UP if cut else "",
            minimal=smallest.stopped == "done",
            others=tuple(signature(other, verdict, ()) for other, verdict in smallest.others),
        )
        return self._report(one, entry), smallest.stopped == "interrupted"

    def _settled_as_met(self, record: Record, case: Case, verdict: Verdict, found: Confirmation) -> Settled:
        """A failure that shows only after other cases, or not again."""
        raw = signature(case, verdict)
        entry = Entry.as_met(case, verdict.outcome, raw, device=self._settings.device, after=found.after)
        again = f"1 of {found.probed + 1} runs"
        if found.after:
            count = len(found.after)
            note = f"fails only after {count} other case{'s' if count > 1 else ''} in the same process, not alone"
        elif self._late():
            note = NOT_LOOKED_INTO
        else:
            note = f"failed in {again}: not seen again in a fresh process"
        status: Status = "new" if found.after or self._late() else "unconfirmed"
        one = Settled(
            self._name, record.shard, record.case_id, status, _raw(record), cause(raw), "",
            root_summary(found.verdict or verdict), 1, found.probed + 1, note,
        )  # fmt: skip
        return self._report(one, entry, keep=bool(found.after))

    def _saved_as_met(self, record: Record, note: str) -> Settled:
        with _one_at_a_time(self._folder):
            return save_as_met(self._folder, record, self._settings.device, self._name, note)

    def _report(self, one: Settled, entry: Entry, *, keep: bool = True) -> Settled:
        """Written down, and its case saved: in the session's folder, and in the corpus if `keep`."""
        with _one_at_a_time(self._folder):
            if one.status == "new":
                entry_known = self._known(one.signature)
                if entry_known is not None:
                    one = msgspec.structs.replace(one, status="known", finding=entry_known.name)
                else:
                    one = merge(one, settlement(self._folder).new)
            if one.status == "new":
                where = str(save(entry, self._folder / "findings"))
                if keep:
                    where = self._in_corpus(entry) or where
                one = msgspec.structs.replace(one, finding=where)
                self._withdraw(one.joins)
            elif one.status == "unconfirmed":
                one = msgspec.structs.replace(one, finding=str(save(entry, self._folder / "quarantine")))
            return _write(self._folder, self._name, one)

    def _in_corpus(self, entry: Entry) -> str:
        """The entry's file in the corpus; '' where there is none, or none that can be written."""
        folder = self._settings.corpus
        if not folder or not Path(folder).is_dir():
            return ""
        try:
            return str(save(entry, Path(folder)))
        except CorpusError as error:
            write_note(self._folder, f"{error}; the session keeps its findings in {self._folder / 'findings'}")
            return ""

    def _withdraw(self, findings: Sequence[str]) -> None:
        """Takes findings of this session out of the corpus, for which a plainer one stands. The session's own folder
        keeps them."""
        began = settlement(self._folder).began
        for path in map(Path, findings):
            in_corpus = bool(self._settings.corpus) and path.parent == Path(self._settings.corpus)
            with suppress(OSError):
                if in_corpus and path.stat().st_mtime >= began:
                    path.unlink()

    def _known(self, found: Signature) -> Entry | None:
        """The explained entry of the corpus that accounts for a minimised failure."""
        alike = (e for e in self._corpus if e.known and e.signature is not None and look_alike(e.signature, found))
        return known(found, self._corpus) or next(alike, None)


def save_rest(folder: Path, device: str, records: Sequence[Record]) -> list[Settled]:
    """Saves the failures among `records` that nobody has looked into as they were met, one of each cause."""
    done = []
    with _one_at_a_time(folder):
        while (record := _first(records, settlement(folder), frozenset())) is not None:
            done.append(save_as_met(folder, record, device, REST, NOT_LOOKED_INTO))
    return done


def save_as_met(folder: Path, record: Record, device: str, worker: str, note: str) -> Settled:
    """Saves a failure as it was met, and writes that down; it stands for all failures of its raw cause."""
    raw = _raw(record)
    assert record.case is not None
    entry = Entry.as_met(record.case, record.outcome, raw, device=device)
    where = str(save(entry, folder / "findings"))
    one = Settled(
        worker, record.shard, record.case_id, "new", raw, cause(raw), where, record.message, 1, 1, note
    )  # fmt: skip
    return _write(folder, worker, one)


def _write(folder: Path, worker: str, one: Settled) -> Settled:
    one = msgspec.structs.replace(one, at=time.time())
    recorder = Recorder(folder, worker, "settled")
    recorder.add(one)
    recorder.close()
    return one


def _first(records: Sequence[Record], ended: Settlement, refused: frozenset[str] | set[str]) -> Record | None:
    """The plainest failure that is not settled, of a cause that is not `refused`."""
    met = (record for record in records if record.status == "met")
    left = [record for record in met if _key(record) not in refused and ended.of(record) is None]
    return min(left, key=_plainness, default=None)


def _plainness(record: Record) -> tuple[bool, bool, int, int]:
    """Sorts failures: first cases that are not large, which are quick to minimise, then those with the cases before
    them on record, then by features in use, then by size."""
    assert record.case is not None
    problem = record.case.problem
    large = problem.pairs > LARGE
    return large, not record.before, len(switches(record.case)), sum(problem.lengths_q) + sum(problem.lengths_k)


def _raw(record: Record) -> Signature:
    assert record.signature is not None
    return record.signature


def _key(record: Record) -> str:
    return cause(_raw(record)).id


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Keeps two workers from reporting one finding each at the same moment."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".report", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
