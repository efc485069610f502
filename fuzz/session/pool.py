"""Several worker processes for one session from the command line; pytest-xdist does the same for `pytest fuzz`."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
from rich.console import Console

from fuzz.compiling.pool import auto_jobs
from fuzz.process.forked import may_fork, one_thread
from fuzz.process.parent_death import die_with_parent
from fuzz.process.signals import end, held, ready
from fuzz.session.follow import Follower
from fuzz.session.plan import SHARD_CASES, Shard, plan, runnable_here
from fuzz.session.precompile import BackgroundCompile
from fuzz.session.records import Record, faults_in, write_session
from fuzz.session.report import show
from fuzz.session.settings import Settings
from fuzz.session.worker import Worker

TICK = 0.5  # seconds between two looks at the session's time


@dataclass(frozen=True)
class SessionEnd:
    """End of a session: the records of the failures that count as findings of it, what went wrong in the harness
    itself, one line each, and whether Ctrl-C ended it."""

    new: tuple[Record, ...]
    problems: tuple[str, ...]
    interrupted: bool


def run_session(settings: Settings, jobs: int | None, console: Console) -> SessionEnd:
    """Runs a whole session in `jobs` processes (one per core), and shows it.

    The workers are forks of this process where it has a single thread: first its imports are done, then they start, and
    each opens its device while the session is planned here. Ctrl-C ends it early: the table shows what was run. A
    worker that dies is named, and its unfinished shards are lost.
    Raises TargetError for a target that is unknown, or cannot run on this machine, and where none can; CacheError.
    """
    if not settings.folder:
        settings = msgspec.structs.replace(settings, folder=new_folder())
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)  # before the workers, each of which would fail in it
    began, since = time.monotonic(), time.time()
    ends = began + settings.seconds if settings.seconds else None
    todo, workers = start_workers(settings, min(jobs or auto_jobs(), _most_shards(settings)), ends)
    try:
        runnable_here(settings)
        shards = plan(settings)
        write_session(folder, settings)
    except BaseException:
        end(workers, patience=0.0)
        raise
    left = Countdown(len(shards))

    def hand_out(shard: Shard) -> None:
        """Gives a shard to the workers; after the last one each of them is told that there is no more."""
        todo.put(shard)
        if left.count_down():
            for _ in workers:
                todo.put(None)

    interrupted = False
    compiling = BackgroundCompile(settings, shards, hand_out)
    follower = Follower(folder, settings.cases, Console(stderr=True), compiling.progress, settings.device)
    with follower, compiling:
        compiling.say = follower.line.print
        try:
            compiling.start()
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:
            interrupted = True
            compiling.stop()
            end(workers)
        finally:
            todo.cancel_join_thread()
    problems = tuple(f"worker {worker.name} ended with exit code {worker.exitcode}" for worker in workers
                     if worker.exitcode and not interrupted)  # fmt: skip
    problems += tuple(faults_in(folder, since))
    show(follower.records, time.monotonic() - began, console, settings.files, follower.ended)
    for line in ("interrupted: the table shows what was run",) * interrupted + problems:
        console.print(line, style="bold red")
    console.print(f"records: {folder}", highlight=False)
    return SessionEnd(tuple(record for record in follower.records if record.counts), problems, interrupted)


def start_workers(
    settings: Settings, count: int, ends: float | None = None
) -> tuple[multiprocessing.Queue[Shard | None], list[BaseProcess]]:
    """`count` workers, and the queue that they take shards from, each until it meets a None or the session ends (by
    time.monotonic()); then they settle failures."""
    import_module("fuzz.session.preload")
    context = multiprocessing.get_context("fork") if may_fork() else multiprocessing.get_context("spawn")
    todo: multiprocessing.Queue[Shard | None] = context.Queue()
    workers = [context.Process(target=_work, args=(settings, f"w{i}", todo, ends), name=f"w{i}") for i in range(count)]
    with held(), one_thread():
        for worker in workers:
            worker.start()
    return todo, list(workers)


def _most_shards(settings: Settings) -> int:
    """A number that a session has no more shards than; they are not planned yet."""
    return settings.cases // SHARD_CASES + len(settings.targets) if settings.targets else settings.cases


class Countdown:
    """Counts shards down from several threads."""

    def __init__(self, count: int) -> None:
        self._left, self._lock = count, threading.Lock()

    def count_down(self) -> bool:
        """True if this was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


def new_folder() -> str:
    """A fresh name for a session's records."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return str(Path(".attnfuzz") / "sessions" / f"{now}-{os.getpid()}")


def _work(settings: Settings, name: str, todo: multiprocessing.Queue[Shard | None], ends: float | None) -> None:
    die_with_parent()
    try:
        with Worker(settings, name, ends) as worker:
            if not worker.late():
                worker.open()
            ready()
            while (shard := _next(todo, worker)) is not None:
                worker.run_shard(shard)
            worker.settle()
    except KeyboardInterrupt:
        sys.exit(0)


def _next(todo: multiprocessing.Queue[Shard | None], worker: Worker) -> Shard | None:
    """The next shard; None: there is no more, or no time."""
    while not worker.late():
        with suppress(queue.Empty):
            return todo.get(timeout=TICK)
    return None
