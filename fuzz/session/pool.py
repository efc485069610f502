"""A whole session from the command line, with workers on this machine or elsewhere (`Workers`); pytest-xdist does the
same for `pytest fuzz`."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
from rich.console import Console

from fuzz.compiling.cache import Cache
from fuzz.compiling.pool import auto_jobs
from fuzz.corpus.store import unreadable_in
from fuzz.process.signals import terminated_as_interrupted
from fuzz.session.crew import Crew
from fuzz.session.plan import SHARD_CASES, Shard, compiled, plan
from fuzz.session.precompile.background_compile import BackgroundCompile
from fuzz.session.records import Record, Session, faults_in, notes_in, write_session
from fuzz.session.resume import AlreadyRan, already_ran, owned, read_session, unfinished
from fuzz.session.settings import Settings
from fuzz.session.summary.follow import Follower
from fuzz.session.summary.report import show

Beside: TypeAlias = Callable[[Path], AbstractContextManager[Callable[[], str]]]


class Workers(Protocol):
    """Those who run the cases of a session and settle its failures: session.crew.Crew, fleet.crew.FleetCrew.

    replaced  a line for each worker that was lost, and whose cases others have run
    """

    replaced: list[str]

    def check_targets(self) -> None:
        """Raises TargetError for a target of the session that cannot be run, and where there is none."""

    def compiling(self, todo: list[Shard]) -> BackgroundCompile:
        """Compiler of the kernels for the shards of `todo`, which hands each of them out."""

    def add_machine(self, session: Session, shards: list[Shard]) -> None:
        """Adds what the workers run on to session.json."""

    def work(self, shards: list[Shard], ran: Callable[[], AlreadyRan]) -> list[str]:
        """Waits until every case of `shards` was run, as `ran` tells of the session so far, and failures are settled.
        Returns a line for each problem that left cases undone."""

    def interrupt(self) -> None:
        """Ends them early; what they have run is recorded."""

    def end(self, patience: float | None = None) -> None:
        """Ends them, after so many seconds; None: a default."""


Hire: TypeAlias = Callable[[Settings, AlreadyRan, float | None], Workers]  # float: the end, by time.monotonic()


@contextmanager
def _nothing(folder: Path) -> Iterator[Callable[[], str]]:
    yield str


@dataclass(frozen=True)
class SessionEnd:
    """End of a session: the records of the failures that count as findings of it, what went wrong in the harness
    itself, one line each, and whether Ctrl-C ended it. unusable: a line for each file of the corpus that cannot be
    read, which the session did without, and for cases that this machine kept from being run."""

    new: tuple[Record, ...]
    problems: tuple[str, ...]
    interrupted: bool
    unusable: tuple[str, ...] = ()


def run_session(
    settings: Settings,
    jobs: int | None,
    console: Console,
    *,
    resume: bool = False,
    beside: Beside = _nothing,
    hire: Hire | None = None,
    command: str = "run",
) -> SessionEnd:
    """Runs a whole session in `jobs` processes (one per core), and shows it.

    resume  goes on with the session of settings.folder: its cases that have no record yet are run, and the table shows
            all of them
    beside  called with the folder once the workers have started: entered then, and left when all is recorded. What it
            gives is called last, and says a line for users, or ''
    hire    gives the workers; None: `jobs` processes
    command the command of `attnfuzz` that goes on with it

    The workers are forks of this process where it has a single thread: first its imports are done, then they start, and
    each opens its device while the session is planned here. Ctrl-C and SIGTERM end it early: the table shows what was
    run. A worker that dies is replaced, and the cases that it leaves are run at the end; it is named where some are
    not. Raises TargetError for a target that is unknown, or cannot run on this machine, and where none can; CacheError;
    SessionError.
    """
    if not settings.folder:
        settings = msgspec.structs.replace(settings, folder=new_folder())
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)  # before the workers, each of which would fail in it
    with owned(folder), terminated_as_interrupted():
        ended = _run(settings, console, resume, beside, hire or partial(_processes, jobs or auto_jobs()), command)
    console.print(f"records: {folder}", highlight=False)
    return ended


def _processes(jobs: int, settings: Settings, ran: AlreadyRan, ends: float | None) -> Crew:
    return Crew(settings, min(jobs, _most_shards(settings)), ran, ends)


def _run(settings: Settings, console: Console, resume: bool, beside: Beside, hire: Hire, command: str) -> SessionEnd:
    folder = Path(settings.folder)
    ran: AlreadyRan = {}
    if resume:
        ran = already_ran(read_session(folder))
    began, since = time.monotonic(), time.time()
    ends = began + settings.seconds if settings.seconds else None
    crew = hire(settings, ran, ends)
    try:
        crew.check_targets()
        shards = plan(settings)
        session = read_session(folder).session if resume else write_session(folder, settings)
        if any(compiled(name, settings) is not None for name in {shard.target for shard in shards}):
            Cache()  # a user's mistake in its place is said now
    except BaseException:
        crew.end(patience=0.0)
        raise
    todo = unfinished(shards, ran)
    before = sum(map(len, ran.values()))
    interrupted = False
    compiling = crew.compiling(todo)
    stderr = Console(stderr=True)
    follower = Follower(
        folder, session.skip, settings.cases, stderr, compiling.progress, settings.device, settings.seconds
    )
    if isinstance(crew, Crew):
        crew.seconds_of = follower.seconds_of
    with beside(folder) as last_line, follower, compiling:
        compiling.say = follower.line.print
        try:
            compiling.start()
            with suppress(OSError):  # a full disk, which the workers meet too
                crew.add_machine(session, shards)
            problems = crew.work(shards, lambda: already_ran(read_session(folder)))
        except KeyboardInterrupt:
            interrupted = True
            compiling.stop()
            crew.interrupt()
            problems = []
    problems += faults_in(folder, since)
    notes = notes_in(folder)
    unusable = (*unreadable_in(settings.corpus), *faults_in(folder, since, machine=True))
    spent = time.monotonic() - began
    show(follower.records, spent, console, settings.files, settings.device, before, follower.ended)
    for line in (*("interrupted: the table shows what was run",) * interrupted, *problems, *notes, *unusable):
        console.print(line, style="bold red", highlight=False, markup=False, soft_wrap=True)
    for line in crew.replaced:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if line := last_line():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        console.print(f"go on: attnfuzz {command} --resume {folder}", highlight=False, markup=False, soft_wrap=True)
    new = tuple(record for record in follower.records if record.counts)
    return SessionEnd(new, tuple(problems), interrupted, unusable)


def _most_shards(settings: Settings) -> int:
    """A number that a session has no more shards than; they are not planned yet."""
    return settings.cases // SHARD_CASES + len(settings.targets) if settings.targets else settings.cases


def new_folder() -> str:
    """A fresh name for a session's records."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return str(Path(".attnfuzz") / "sessions" / f"{now}-{os.getpid()}")
