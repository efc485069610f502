"""Writing down what became of failures: in the session's folder, and their cases in the corpus.

One at a time over all workers of a session, so that each is compared with all that were written before it.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from fuzz.core.signature import look_alike
from fuzz.core.verdict import Signature
from fuzz.corpus.entry import CorpusError, Entry
from fuzz.corpus.replay import known
from fuzz.corpus.store import save
from fuzz.session.failures.look_into import Looked
from fuzz.session.failures.one_bug import merge
from fuzz.session.records import Recorder, Settled, settlement, write_note
from fuzz.session.settings import Settings


class Reporter:
    """Writes into settings.folder, as the worker `name`. corpus: the entries that explain what is known."""

    def __init__(self, settings: Settings, name: str, corpus: Sequence[Entry]) -> None:
        self._settings, self._name, self._corpus = settings, name, corpus
        self._folder = Path(settings.folder)

    def write(self, looked: Looked) -> Settled:
        """Writes a failure down, and saves its case: in the session's folder, and in the corpus if it is to keep it."""
        with one_at_a_time(self._folder):
            if looked.as_met:
                return write_as_met(self._folder, looked, self._name)
            one, entry = looked.settled, looked.entry
            if one.status == "new":
                entry_known = self._known(one.signature)
                if entry_known is not None:
                    one = msgspec.structs.replace(one, status="known", finding=entry_known.name)
                else:
                    one = merge(one, settlement(self._folder).new)
            if one.status == "new":
                where = str(save(entry, self._folder / "findings"))
                if looked.keep:
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


def write_as_met(folder: Path, looked: Looked, worker: str) -> Settled:
    """Writes down a failure that stands for all of its raw cause; needs `one_at_a_time`."""
    where = str(save(looked.entry, folder / "findings"))
    return _write(folder, worker, msgspec.structs.replace(looked.settled, finding=where))


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keeps two workers from reporting one finding each at the same moment."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".report", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(folder: Path, worker: str, one: Settled) -> Settled:
    one = msgspec.structs.replace(one, at=time.time())
    recorder = Recorder(folder, worker, "settled")
    recorder.add(one)
    recorder.close()
    return one
