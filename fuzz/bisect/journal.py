"""The journal of a search: a folder with the question and one line for each run. A search that was killed goes on."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from fuzz.bisect.revisions import BisectError, Result
from fuzz.bisect.search import Tried
from fuzz.core.verdict import Signature

QUESTION = "question.json"
RUNS = "runs.jsonl"


class Question(msgspec.Struct, frozen=True):
    """The question of a search: another one is another search.

    where      the repository, or 'packages'; revisions: the names of all, the good one first
    signature  of the failure that is looked for; None: any failure
    """

    case: str
    where: str
    revisions: tuple[str, ...]
    device: str
    signature: Signature | None


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a revision, or why it cannot be run."""

    revision: str
    result: Result | None = None
    skipped: str = ""


class Journal:
    """Owns the folder while it is open. Raises BisectError where it holds another search, or another process works in
    it."""

    def __init__(self, folder: Path, question: Question) -> None:
        self.tried: dict[str, Tried] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / RUNS, "a+b", buffering=0)  # noqa: SIM115 - owned by this object
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BisectError(f"{folder}: a search is running in it") from None
        self._begin(folder / QUESTION, question)
        self._read()

    def add(self, name: str, result: Result) -> None:
        """One more run of a revision."""
        self._write(Line(name, result))

    def skip(self, name: str, why: str) -> None:
        """A revision cannot be run."""
        self._write(Line(name, skipped=why or "no reason given"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def _begin(self, path: Path, question: Question) -> None:
        text = msgspec.json.format(msgspec.json.encode(question))
        if path.exists() and path.read_bytes() != text:
            self._file.close()
            raise BisectError(f"{path.parent}: holds another search; give another --state, or remove the folder")
        beside = path.with_suffix(".tmp")
        beside.write_bytes(text)
        os.replace(beside, path)

    def _read(self) -> None:
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):  # half a line, of a machine that went down
            os.ftruncate(self._file.fileno(), whole)
        for line in text[:whole].splitlines():
            self._count(msgspec.json.decode(line, type=Line))

    def _write(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        os.fsync(self._file.fileno())
        self._count(line)

    def _count(self, line: Line) -> None:
        tried = self.tried.setdefault(line.revision, Tried())
        if line.result is None:
            tried.skipped = line.skipped
        else:
            setattr(tried, line.result, getattr(tried, line.result) + 1)
