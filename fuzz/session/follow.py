"""Follows a running session: reads its records as they grow, and keeps the progress line up to date."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fuzz.process.progress import ProgressLine
from fuzz.process.signals import held
from fuzz.session.claims import Claims
from fuzz.session.records import Reader, Record

PERIOD = 0.5  # seconds between two looks at the records


class Follower:
    """The records of a session so far, as they come into its folder, and its progress line on `console`.

    skip       records that are of a session before (records.Session.skip)
    planned    cases of the session
    compiling  what is being compiled at this moment, in words, or ''
    """

    def __init__(
        self,
        folder: Path,
        skip: dict[str, int],
        planned: int,
        console: Console,
        compiling: Callable[[], str] = str,
    ) -> None:
        self.records: list[Record] = []
        self.line = ProgressLine("attnfuzz", "cases", console)
        self._planned, self._compiling = planned, compiling
        self._reader = Reader(folder, skip)
        self._claims = Claims(folder)
        self._claims.recover()  # of a session before in this folder
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
        self._claims.recover()  # of workers that were killed
        self.records += self._reader.new()
        self.line.__exit__(None, None, None)
        if self._reader.unreadable:
            self.line.print(
                f"{self._reader.unreadable} lines of {self._reader.folder}/records-*.jsonl are no records of this "
                "version: they are left out"
            )

    def _follow(self) -> None:
        while True:
            self.records += self._reader.new()
            self.line.show(len(self.records), self._planned, note(self.records, self._compiling()))
            if self._stop.wait(PERIOD):
                return


def note(records: list[Record], compiling: str) -> str:
    """'compiling 81 kernels, 34 done · 2 new findings · 1 hang', as far as there is something to say."""
    new = sum(record.status == "new" for record in records)
    hangs = sum(record.outcome == "hang" for record in records)
    parts = [compiling, _count(new, "new finding") if records else "", _count(hangs, "hang") if hangs else ""]
    return " · ".join(part for part in parts if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
