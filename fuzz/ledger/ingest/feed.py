"""Feeds a ledger from a session's folder: while the session runs, at its end, or long after it.

A ledger that cannot be written to costs no case: the folder has all of them, and `attnfuzz import` sends it later.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from sqlalchemy.exc import SQLAlchemyError

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.ingest.folder import Folder
from fuzz.ledger.ingest.write import write
from fuzz.ledger.tables.database import Ledger

PERIOD = 2.0  # seconds between two looks at the folder
SUMS = 30.0  # seconds between two times that the sums are written


class FeedError(Exception):
    """Why a ledger does not have all of a session; one line."""


def take_in(ledger: Ledger, folder: Path) -> str:
    """Writes the session of a folder into a ledger, as far as it is recorded; returns the session's id. What the ledger
    has already is written over with the same. Raises LedgerError for a folder that is no session's."""
    source = Folder(folder)
    for batch in source.more():
        write(ledger, batch)
    end = source.end()
    write(ledger, end)
    return end.session.uid


def feed(place: str, folder: Path, ending: Callable[[float], bool]) -> str:
    """Writes what comes into a session's folder into the ledger at `place`, until `ending`, which waits for so many
    seconds, says True: then all of it is there. Returns the ledger's place for readers. Raises FeedError."""
    try:
        with Ledger(place) as ledger:
            _feed(ledger, Folder(folder), ending)
            return ledger.shown
    except (LedgerError, OSError) as error:
        raise FeedError(str(error)) from error
    except SQLAlchemyError as error:
        raise FeedError(str(error).split("\n")[0]) from error


def _feed(ledger: Ledger, source: Folder, ending: Callable[[float], bool]) -> None:
    summed = monotonic()
    while True:
        last = ending(PERIOD)
        for batch in source.more():
            write(ledger, batch)
        if last:
            write(ledger, source.end())
            return
        if monotonic() - summed > SUMS:
            write(ledger, source.sums())
            summed = monotonic()
