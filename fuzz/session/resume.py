"""A session's folder after its end, whatever ended it: what was run, and who may go on.

with owned(folder):                       # one process at a time
    ran = already_ran(read_session(folder))  # each worker draws the same cases again, and runs those that are missing
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

import msgspec

from fuzz.session.plan import Shard
from fuzz.session.records import Reader, Record, Session
from fuzz.session.settings import Settings

LOCK = "lock"
PATIENCE = 5.0  # seconds for the workers of a controller that was killed to end
TICK = 0.05


class SessionError(ValueError):
    """A session's folder that cannot be read, or that another process works in; one line."""


@dataclass(frozen=True)
class Ran:
    """A case that was run: what the search needs of its record to draw the cases after it."""

    case_id: str
    passed: bool
    ratio: float


AlreadyRan: TypeAlias = dict[str, dict[int, Ran]]  # by the shard's name, then by the case's place in it


class _Place(msgspec.Struct):
    """Fields of a Record that say where it belongs and how it ended."""

    shard: str
    case_id: str
    outcome: str
    index: int = -1
    ratio: float = 0.0


@dataclass(frozen=True)
class Kept:
    """A session as its folder has it. settings.folder is that folder, wherever it lies now."""

    settings: Settings
    session: Session

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The cases that were run, read when first asked for: a session of 100,000 takes seconds."""
        return tuple(self.reader().new())

    def reader(self) -> Reader:
        """A reader of the records."""
        return Reader(Path(self.settings.folder), self.session.skip)


def read_session(folder: Path) -> Kept:
    """The session of a folder. Raises SessionError."""
    path = folder / "session.json"
    try:
        session = msgspec.json.decode(path.read_bytes(), type=Session)
        settings = msgspec.convert(session.settings, Settings)
    except OSError as error:
        raise SessionError(f"{folder}: no session's folder: {path.name} {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise SessionError(f"{path}: not of a session that this version can read: {error}") from None
    settings = msgspec.structs.replace(settings, folder=str(folder))
    return Kept(settings, session)


def already_ran(kept: Kept) -> AlreadyRan:
    """The cases with a record. A case that the harness failed on has none, and is run again."""
    ran: AlreadyRan = {}
    for place in kept.reader().decoded(_Place):
        if place.index >= 0:
            one = Ran(place.case_id, place.outcome == "pass", place.ratio)
            ran.setdefault(place.shard, {})[place.index] = one
    return ran


def unfinished(shards: list[Shard], ran: AlreadyRan) -> list[Shard]:
    """The shards of which a case is missing."""
    return [shard for shard in shards if len(ran.get(shard.name, ())) < shard.cases]


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which this process's forks hold too: it is free once all of them have ended. Raises
    SessionError where others hold it."""
    number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > until:
                    raise SessionError(f"{folder}: a session is running in it") from None
                sleep(TICK)
        yield
    finally:
        os.close(number)
