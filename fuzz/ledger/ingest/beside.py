"""The ledger beside a session: a thread that writes into it what comes into the session's folder.

Imports nothing heavy, and starts nothing before it is entered: a session's workers are forks of this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.ledger.place import NONE, chosen, named
from fuzz.process.signals import held
from fuzz.session.pool import Beside


class Feeder:
    """Writes into the ledger at `place` what comes into a session's folder; `close` writes the rest, and ends."""

    def __init__(self, place: str, folder: Path) -> None:
        self._place, self._folder = place, folder
        self._said = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        with held():  # Ctrl-C is the main thread's
            self._thread.start()

    def close(self) -> None:
        """Writes what is left."""
        self._stop.set()
        self._thread.join()

    def line(self) -> str:
        """The line that users read at the end of the session."""
        return self._said

    def _work(self) -> None:
        try:
            from fuzz.ledger.ingest.feed import FeedError, feed
        except ImportError as error:
            self._said = f"no ledger: {error}; where it is installed: attnfuzz import {self._folder}"
            return
        try:
            self._said = f"ledger: {feed(self._place, self._folder, self._stop.wait)}"
        except FeedError as error:
            self._said = f"the ledger is not up to date: {error}; later: attnfuzz import {self._folder}"


def beside(option: str | None) -> Beside:
    """For `run_session(beside=…)`: feeds the ledger that `--ledger` or the environment chose.

    Raises LedgerError where one was asked for that cannot be opened: before the session has run a case.
    """
    place = chosen(option)
    if named(option):
        from fuzz.ledger.tables.database import Ledger

        Ledger(place).close()

    @contextmanager
    def feeding(folder: Path) -> Iterator[Callable[[], str]]:
        if place in NONE:
            yield str
            return
        feeder = Feeder(place, folder)
        try:
            yield feeder.line
        finally:
            feeder.close()

    return feeding
