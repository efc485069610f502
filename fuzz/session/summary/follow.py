"""Follows a running session: reads its records as they grow, and keeps the progress line up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fuzz.core.signature import cause
from fuzz.process.progress import ProgressLine
from fuzz.process.signals import held
from fuzz.session.failures.settle import save_rest
from fuzz.session.records import Reader, Record, Settlement, settlement, skipped
from fuzz.session.summary.lean import Lean

PERIOD = 0.5  # seconds between two looks at the records


class Follower:
    """The records of a session so far, made lean, as they come into its folder, and its progress line on `console`.

    skip       records that are of a session before (records.Session.skip)
    planned    cases of the session
    device     that it runs on
    compiling  what is being compiled at this moment, in words, or ''
    seconds    after which the session draws no further case; 0: no limit

    At its end failures that nobody has looked into are saved as they were met, those of a session before in this folder
    too, and `records` say what became of each.
    """

    def __init__(
        self,
        folder: Path,
        skip: dict[str, int],
        planned: int,
        console: Console,
        compiling: Callable[[], str] = str,
        device: str = "host",
        seconds: float = 0.0,
    ) -> None:
        self.line = ProgressLine("attnfuzz", "cases", console)
        self.ended: Settlement | None = None
        self._folder, self._device = folder, device
        self._planned, self._compiling = planned, compiling
        self._until = time.monotonic() + seconds if seconds else None
        self._reader, self._lean = Reader(folder, skip), Lean()
        before = settlement(folder)
        self.records = [one for one in skipped(folder, skip) if one.status == "met" and before.of(one) is None]
        self._seconds: dict[str, float] = {}  # of workers, by target
        self._old = len(self.records)  # of a session before in this folder
        self._open = _Open()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def __enter__(self) -> Follower:
        self.line.__enter__()
        with held():  # Ctrl-C is the main thread's
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.records += self._lean(self._reader.new())
        save_rest(self._folder, self._device, self.records)
        self.ended = settlement(self._folder)
        self.records = self.ended.apply(self.records)
        self.line.__exit__(None, None, None)
        if self._reader.unreadable:
            self.line.print(
                f"{self._reader.unreadable} lines of {self._reader.folder}/records-*.jsonl are no records of this "
                "version: they are left out"
            )

    def seconds_of(self, target: str) -> float:
        """Seconds of workers for the cases of a target that have ended."""
        return self._seconds.get(target, 0.0)

    def _follow(self) -> None:
        self._open.add(self.records)
        while True:
            more = list(self._lean(self._reader.new()))
            self.records += more
            self._open.add(more)
            for record in more:
                self._seconds[record.target] = self.seconds_of(record.target) + record.seconds.get("total", 0.0)
            new, left = self._open.look(settlement(self._folder))
            hangs = sum(record.outcome == "hang" for record in self.records)
            compiling, cases = self._compiling(), len(self.records) - self._old
            note = progress_note(compiling, cases, new, left, hangs)
            most = None if self._until is None else self._until - time.monotonic()
            self.line.show(cases, self._planned, note, most, begun=bool(cases or not compiling))
            if self._stop.wait(PERIOD):
                return


class _Open:
    """The failures of a session that nobody has looked into yet, by the id of the raw cause."""

    def __init__(self) -> None:
        self._by_cause: dict[str, list[Record]] = {}
        self._settled = 0

    def add(self, records: list[Record]) -> None:
        """Takes in the failures among some records."""
        for record in records:
            if record.status == "met" and record.signature is not None:
                self._by_cause.setdefault(cause(record.signature).id, []).append(record)

    def look(self, ended: Settlement) -> tuple[int, int]:
        """How many findings are new, and of how many raw causes there are failures that nothing explains yet."""
        if len(ended.settled) != self._settled:
            self._settled = len(ended.settled)
            left = {key: [r for r in records if ended.of(r) is None] for key, records in self._by_cause.items()}
            self._by_cause = {key: records for key, records in left.items() if records}
        return sum(one.status == "new" for one in ended.new), len(self._by_cause)


def progress_note(compiling: str, cases: int, new: int, left: int, hangs: int) -> str:
    """'compiling 81 kernels, 34 done · 2 new findings, 3 failures to look into · 1 hang', as far as there is something
    to say."""
    open_ = f", {_count(left, 'failure')} to look into" if left else ""
    found = f"{_count(new, 'new finding')}{open_}" if cases else ""
    return " · ".join(part for part in (compiling, found, _count(hangs, "hang") if hangs else "") if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
