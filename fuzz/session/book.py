"""Book: where a worker's records go. A worker on the machine of its session writes into the session's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fuzz.corpus.entry import Entry
from fuzz.corpus.store import save
from fuzz.session.records import Fault, Record, Recorder, write_fault


class Book(Protocol):
    """Sink of what a worker tells of its cases."""

    def add(self, record: Record) -> None:
        """A case that was judged."""

    def fault(self, fault: Fault) -> None:
        """A case that was not judged."""

    def quarantine(self, entry: Entry) -> str:
        """Keeps a failure that did not show again; returns its file, '' where that is not known yet."""

    def close(self) -> None:
        """There is no more."""


class FolderBook:
    """The files of one worker in a session's folder."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._recorder = Recorder(folder, worker)

    def add(self, record: Record) -> None:
        """Appends a record. Raises OSError where the disk is full."""
        self._recorder.add(record)

    def fault(self, fault: Fault) -> None:
        """Appends a fault."""
        write_fault(self._folder, fault)

    def quarantine(self, entry: Entry) -> str:
        """Saves the entry."""
        return str(save(entry, self._folder / "quarantine"))

    def close(self) -> None:
        """Closes the file of records."""
        self._recorder.close()
