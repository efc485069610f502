"""Messages between the process of a session and its workers; they travel as JSON, the form of records in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from fuzz.corpus.entry import Entry
from fuzz.session.failures.look_into import Looked
from fuzz.session.plan import Shard
from fuzz.session.records import Fault, Record
from fuzz.session.resume import Ran
from fuzz.session.settings import Settings

State: TypeAlias = Literal["starting", "idle", "working", "unfit", "ended"]
_Message = TypeVar("_Message")


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker is to be.

    device    name of what it runs on where it has no GPU; with a GPU it names that itself
    corpus    the entries that explain what is known
    seconds   what is left of the session; 0: no limit
    health    target of the health check; '': there is none
    """

    settings: Settings
    name: str
    device: str
    corpus: tuple[Entry, ...] = ()
    seconds: float = 0.0
    health: str = ""


class Introduction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of itself once its device has passed the health check.

    device   name of what it runs on, which no other worker has: a GPU's UUID
    code     what decides which cases a shard has, by name (versions.py)
    missing  why a target of the session cannot run there
    archs    by target: what its kernels are compiled for
    machine  as in session.json
    """

    device: str
    code: dict[str, str] = {}
    missing: dict[str, str] = {}
    archs: dict[str, str] = {}
    builds: dict[str, str] = {}  # by target that is compiled ahead: its arch
    machine: dict[str, Any] = {}


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """News of a worker, each record once.

    state     'unfit': its device is not to be trusted, or it cannot go on; 'ended': it was stopped
    records   of cases before a health check that was right
    finished  names of shards whose cases are all in `records`, of this and of earlier news
    why       it is unfit
    suspect   where it is unfit: the last of its cases that failed
    dropped   where it is unfit: how many of its cases are not to be counted
    steps     grows while it gets ahead
    """

    state: State
    introduction: Introduction | None = None
    records: tuple[Record, ...] = ()
    faults: tuple[Fault, ...] = ()
    looked: tuple[Looked, ...] = ()
    finished: tuple[str, ...] = ()
    why: str = ""
    suspect: Record | None = None
    dropped: int = 0
    steps: int = 0


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shard to run, but for the cases in `ran`, by their places; or a failure to look into."""

    shard: Shard | None = None
    ran: Mapping[int, Ran] = {}
    failure: Record | None = None


def encode(message: Order | News | Job) -> bytes:
    """Bytes that travel."""
    return msgspec.json.encode(message)


def decode(data: bytes, kind: type[_Message]) -> _Message:
    """The message of some bytes."""
    return msgspec.json.decode(data, type=kind)
