"""Feeds a ledger from a session's folder: while the session runs, at its end, or long after it.

A ledger that cannot be written to costs no case: the folder has all of them, and `attnfuzz import` sends it later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from fuzz.ledger.database import Ledger
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.folder import Folder
from fuzz.ledger.place import NONE
from fuzz.ledger.write import write
from fuzz.process.signals import held
from fuzz.session.pool import Beside

PERIOD = 2.0  # seconds between two looks at the folder
SUMS = 30.0  # seconds between two times that the sums are written


def take_in(ledger: Ledger, folder: Path) -> str:
    """Writes the session of a folder into a ledger, as far as it is recorded; returns the session's id. What the ledger
    has already is written over with the same. Raises LedgerError for a folder that is no session's."""
    source = Folder(folder)
    for batch in source.more():
        write(ledger, batch)
    end = source.end()
    write(ledger, end)
    return end.session.uid


class Feeder:
    """A thread that writes into the ledger what comes into a session's folder; `close` writes the rest.

    problem  why it gave up, in one line; '': it did not
    """

    def __init__(self, place: str, folder: Path) -> None:
        self.place, self.problem = place, ""
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        with held():  # Ctrl-C is the main thread's
            self._thread.start()

    def close(self) -> None:
        """Writes what is left, and ends."""
        self._stop.set()
        self._thread.join()

    def line(self) -> str:
        """What users are told at the end of the session."""
        if not self.problem:
            return f"ledger: {self.place}"
        return f"the ledger is not up to date: {self.problem}; later: attnfuzz import {self._folder}"

    def _work(self) -> None:
        try:
            with Ledger(self.place) as ledger:
                self._feed(ledger, Folder(self._folder))
                self.place = ledger.shown
        except (LedgerError, OSError) as error:
            self.problem = str(error)
        except SQLAlchemyError as error:
            self.problem = str(error).split("\n")[0]

    def _feed(self, ledger: Ledger, source: Folder) -> None:
        summed = monotonic()
        while True:
            ending = self._stop.wait(PERIOD)
            for batch in source.more():
                write(ledger, batch)
            if ending:
                write(ledger, source.end())
                return
            if monotonic() - summed > SUMS:
                write(ledger, source.sums())
                summed = monotonic()


def feeding(place: str) -> Beside:
    """For `run_session(beside=…)`: feeds the ledger at `place`; 'none' or '': none."""

    @contextmanager
    def beside(folder: Path) -> Iterator[Callable[[], str]]:
        if place in NONE:
            yield str
            return
        feeder = Feeder(place, folder)
        try:
            yield feeder.line
        finally:
            feeder.close()

    return beside
