"""Crew: the worker processes of a session, and the shards that they take (shard_pipe.py).

A worker that dies costs the case in its hand and leaves its shard unfinished. Another one takes its place; when all
shards are handed out, what is unfinished is handed out once more, as long as such rounds run cases.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from fuzz.process.exits import exit_name
from fuzz.process.forked import may_fork, one_thread
from fuzz.process.imports import freeze, importing
from fuzz.process.parent_death import die_with_parent
from fuzz.process.signals import end, held, interrupt_once, ready
from fuzz.runner import RunnerError
from fuzz.session.cores import keep_to, own_core
from fuzz.session.plan import Shard, archs, runnable_here
from fuzz.session.precompile.background_compile import BackgroundCompile
from fuzz.session.records import Session, add_machine
from fuzz.session.resume import AlreadyRan, unfinished
from fuzz.session.settings import Settings
from fuzz.session.shard_pipe import ShardWriter, take
from fuzz.session.worker import Worker


class Crew:
    """`count` workers, started at once: as forks of this process where it has a single thread. ends: of the session, by
    time.monotonic(); None: when every case was run."""

    def __init__(self, settings: Settings, count: int, ran: AlreadyRan, ends: float | None = None) -> None:
        with importing():
            import_module("fuzz.session.preload")
        freeze()
        self._settings, self._count, self._ran = settings, count, ran
        self._names = (f"w{number}" for number in itertools.count())
        self.replaced: list[str] = []  # a line for each worker that died and whose cases others have run
        self.seconds_of: Callable[[str], float] = lambda target: 0.0  # of workers: as ShardWriter has it
        self._ends = ends
        self._begin()

    def check_targets(self) -> None:
        """Raises TargetError for a target of the session that this machine cannot run, and where there is none."""
        runnable_here(self._settings)

    def compiling(self, todo: list[Shard]) -> BackgroundCompile:
        """Compiler of the kernels for the shards of `todo`, which hands each of them out."""
        return BackgroundCompile(self._settings, todo, self.hand_out_of(todo))

    def add_machine(self, session: Session, shards: list[Shard]) -> None:
        """Adds what the workers run on to session.json."""
        used = archs((shard.target for shard in shards), self._settings)
        add_machine(Path(self._settings.folder), session, used)

    def hand_out_of(self, todo: list[Shard]) -> Callable[[Shard], None]:
        """A function that hands out one of `todo`, from any thread; after the last of them there are no more."""
        pipe, left, lock = self._pipe, len(todo), threading.Lock()
        if not todo:
            pipe.finish()

        def hand_out(shard: Shard) -> None:
            nonlocal left
            pipe.put(shard)
            with lock:
                left -= 1
                if not left:
                    pipe.finish()

        return hand_out

    def work(self, shards: list[Shard], ran: Callable[[], AlreadyRan]) -> list[str]:
        """Waits until the workers have ended and every case of `shards` was run, as `ran` tells of the session so far.
        Returns a line for each worker that died, where cases are left undone."""
        dead, done, idle = self._watch(), -1, 0
        died = list(dead)
        while dead and idle < MOST_IDLE and (self._ends is None or time.monotonic() < self._ends):
            self._ran = ran()
            todo, count = unfinished(shards, self._ran), sum(map(len, self._ran.values()))
            if not todo:
                self.replaced = [f"{line}; others have run its cases" for line in died]
                return []
            idle = idle + 1 if count == done else 0
            done = count
            self._begin()
            hand_out = self.hand_out_of(todo)
            with held():
                for shard in todo:
                    hand_out(shard)
            dead = self._watch()
            died += dead
        self.replaced = [f"{line}; others have run its cases" for line in died if line not in dead]
        return dead

    def interrupt(self) -> None:
        """Ctrl-C for the workers, whom a terminal's has reached already; those that do not end are killed."""
        for worker in self._workers:
            with suppress(ProcessLookupError, TypeError):
                os.kill(worker.pid, signal.SIGINT)  # type: ignore[arg-type]
        self.end()

    def end(self, patience: float | None = None) -> None:
        """Waits for the workers' end, then kills them."""
        self._pipe.close()
        end(self._workers) if patience is None else end(self._workers, patience)

    def _begin(self) -> None:
        """A new pipe, with `count` workers at its other end."""
        self._context: Any = multiprocessing.get_context("fork" if may_fork() else "spawn")
        self._reading, writing = self._context.Pipe(duplex=False)
        self._writing: Connection = writing
        self._pipe = ShardWriter(writing, None if self._ends is None else self._seconds_of)
        self._workers: list[BaseProcess] = []
        with held(), one_thread():
            for _ in range(self._count):
                self._start(next(self._names))

    def _seconds_of(self, target: str) -> float:
        """Seconds of workers by `seconds_of`, which is set after the pipe was made."""
        return self.seconds_of(target)

    def _start(self, name: str) -> None:
        forked = self._context.get_start_method() == "fork"
        writing, core = self._writing if forked else None, own_core(self._settings.device, self._count, name)
        given = (self._settings, name, self._ran, self._ends, self._reading, writing, core)
        worker = self._context.Process(target=_work, args=given, name=name)
        worker.start()
        self._workers.append(worker)

    def _watch(self) -> list[str]:
        """Replaces workers that die until all have ended; a line for each that died."""
        dead: list[str] = []
        alive = list(self._workers)
        while alive:
            connection.wait([worker.sentinel for worker in alive])
            for worker in [one for one in alive if one.exitcode is not None]:
                alive.remove(worker)
                if worker.exitcode == GAVE_UP:
                    dead.append(f"worker {worker.name} could not go on")
                elif worker.exitcode:
                    dead.append(f"worker {worker.name} ended with exit code {worker.exitcode}")
                    dead[-1] += f" ({exit_name(worker.exitcode)})" if worker.exitcode < 0 else ""
                    if worker.exitcode < 0 and not self._pipe.closed:  # an exception would come again
                        self._context = multiprocessing.get_context("spawn")  # this process has threads by now
                        with held(), one_thread():
                            self._start(next(self._names))
                        alive.append(self._workers[-1])
        self._pipe.close()  # nobody takes what still waits
        self._reading.close()
        return dead


MOST_IDLE = 3  # rounds in a row in which no case was run
GRACE = 4.0  # seconds after the session's time in which a failure that is being looked into may end
LAST = 10.0  # seconds after the session's time in which a case that is being run may end; it has no record otherwise
SLICES = 10  # time slices of a session that ends by time, of at least and at most so many seconds
LEAST_SLICE, MOST_SLICE = 10.0, 60.0
GAVE_UP = 2  # exit code of a worker that has said why it ends


def _work(
    settings: Settings,
    name: str,
    ran: AlreadyRan,
    ends: float | None,
    reading: Connection,
    writing: Connection | None,
    core: int | None,
) -> NoReturn:
    die_with_parent()
    if core is not None:
        keep_to(core)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    interrupt_once()
    if writing is not None:
        writing.close()
    try:
        with Worker(settings, name, ran, ends) as worker:
            if not worker.late():
                worker.open()
            ready()
            if ends is not None:
                _interrupt_after(ends - time.monotonic() + LAST)
            run_shards(worker, reading, slice_of(settings))
            if ends is not None:
                _interrupt_after(ends - time.monotonic() + GRACE)
            worker.settle()
    except KeyboardInterrupt:
        sys.exit(0)
    except (OSError, RunnerError, ValueError) as error:  # a full disk; no child; the user's mistake
        print(f"attnfuzz: worker {name}: {str(error).strip().splitlines()[0]}", file=sys.stderr, flush=True)
        sys.exit(GAVE_UP)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an interrupt of the process's own exit would print a traceback
    sys.exit(0)


def slice_of(settings: Settings) -> float | None:
    """Seconds of a shard's time slice, in a session that ends by time: it should come to every target."""
    return min(max(settings.seconds / SLICES, LEAST_SLICE), MOST_SLICE) if settings.seconds else None


def run_shards(worker: Worker, reading: Connection, seconds: float | None) -> None:
    """Runs the shards from a pipe until there are no more. seconds: of each at a time; what is left of it then is run,
    in such slices, while the pipe has no other, as long as slices end cases."""
    left: deque[Shard] = deque()
    while (shard := take(reading, worker.late, waits=not left) or (left.popleft() if left else None)) is not None:
        cases = worker.left_of(shard)
        worker.run_shard(shard, seconds=seconds)
        if 0 < worker.left_of(shard) < cases and seconds is not None:
            left.append(shard)
        if worker.late():
            return


def _interrupt_after(seconds: float) -> None:
    """KeyboardInterrupt in this process after so many seconds, in place of one that was to come: a case that it runs
    then has no record, a failure that it settles is saved as it was met."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
