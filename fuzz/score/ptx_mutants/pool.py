"""Worker processes that run unchanged kernels, try mutants, or look closer at those that were missed.

One that dies, or takes too long over a mutant, is a finding and is replaced. Workers are spawned: torch and the
emulator are loaded in each, and the unchanged kernels' runs are made in each once.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fuzz.process.signals import held, ready
from fuzz.score.ptx_mutants.bench import ARCH
from fuzz.score.ptx_mutants.results import PtxMutant, Result


class Unchanged(NamedTuple):
    """Case `number` of a configuration, to be run with the unchanged kernels. failure: what came out, "" if nothing."""

    target: str
    config: str
    number: int
    failure: str = ""


Task: TypeAlias = Unchanged | PtxMutant | Result  # the others: to be tried, or to be looked at more closely
LIMIT = 1800.0  # seconds that a mutant may take
FIRST = 2400.0  # and one that a worker begins a configuration with, for the unchanged kernels' runs
TICK = 1.0


class WorkerError(RuntimeError):
    """A worker failed in a way that is not the mutant's: the message is its traceback."""


class _Worker:
    """One process, and the task that it has."""

    def __init__(self, seed: int, folder: Path | None, arch: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed, folder, arch), daemon=True)
        with held():
            self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.ends = 0.0
        self._met: set[str] = set()

    def give(self, task: Task) -> None:
        """Sends a task; the clock starts."""
        self.task = task
        subject = task if isinstance(task, Unchanged) else mutant_of(task)
        new = f"{type(task).__name__} {subject.target} {subject.config}"
        self.ends = time.monotonic() + (LIMIT if new in self._met else FIRST)
        self._met.add(new)
        self.pipe.send(task)

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def mutant_of(task: PtxMutant | Result) -> PtxMutant:
    """The mutant that a task is about."""
    return task if isinstance(task, PtxMutant) else task.bug


def results(
    tasks: Iterable[Task],
    seed: int,
    jobs: int,
    ends: float | None = None,
    folder: Path | None = None,
    follow: Callable[[Any], Task | None] | None = None,
    arch: str = ARCH,
) -> Iterator[Any]:
    """Results as they come: of an Unchanged itself, else Result. Ends at `ends` (time.monotonic), whatever still runs.

    tasks   taken one by one, when a worker is free
    folder  of the survey, if it is kept
    follow  the task that a result makes, if any: it comes after the others, which a run that ends early shall have done
    arch    of Triton's kernels

    Raises WorkerError.
    """
    todo, more = iter(tasks), deque[Task]()
    workers: list[_Worker] = []

    def next_task() -> Task | None:
        task = next(todo, None)
        return more.popleft() if task is None and more else task

    def late() -> bool:
        return ends is not None and time.monotonic() >= ends

    try:
        while not late():
            free = [worker for worker in workers if worker.task is None]
            while (free or len(workers) < jobs) and not late() and (task := next_task()) is not None:
                if not free:
                    workers.append(_Worker(seed, folder, arch))
                    free.append(workers[-1])
                free.pop().give(task)
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], TICK)
            for worker in busy:
                found = _outcome(worker, worker.pipe in ready)
                if found is None:
                    continue
                worker.task = None
                if isinstance(found, Result) and found.by.startswith("runner:"):
                    worker.stop()
                    workers.remove(worker)
                following = follow(found) if follow is not None else None
                if following is not None:
                    more.append(following)
                yield found
    finally:
        for worker in workers:
            worker.stop()


def _outcome(worker: _Worker, ready: bool) -> Unchanged | Result | None:
    """Result of the worker's task, None while it runs."""
    assert worker.task is not None
    if isinstance(worker.task, Unchanged):
        return _outcome_unchanged(worker, worker.task, ready)
    bug = mutant_of(worker.task)
    if ready:
        try:
            answer: Any = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            message = f"the process of the emulator died: {worker.process.exitcode}"
            return Result(bug.id, bug, "found", by="runner:crash", message=message)
        if isinstance(answer, str):
            raise WorkerError(f"bug {bug.id}: {answer}")
        return answer
    if time.monotonic() > worker.ends:
        return Result(bug.id, bug, "found", by="runner:endless", message="the process of the emulator does not answer")
    return None


def _outcome_unchanged(worker: _Worker, task: Unchanged, ready: bool) -> Unchanged | None:
    """The task when it is done, None while it runs. Raises WorkerError: without the clean run there is nothing to
    compare with."""
    if ready:
        answer: Any = worker.pipe.recv()
        if isinstance(answer, str):
            raise WorkerError(f"{task.target}, {task.config}, case {task.number}: {answer}")
        return answer
    if time.monotonic() > worker.ends:
        raise WorkerError(f"{task.target}, {task.config}, case {task.number}: the unchanged kernels do not end")
    return None


def _work(pipe: Connection, seed: int, folder: Path | None, arch: str) -> None:
    import traceback

    import torch

    torch.set_num_threads(1)
    while True:
        try:
            ready()
            task = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(_done(task, seed, folder, arch))
        except (KeyboardInterrupt, BrokenPipeError):  # the parent process is gone
            return
        except BaseException:
            pipe.send(traceback.format_exc())


def _done(task: Task, seed: int, folder: Path | None, arch: str) -> Unchanged | Result:
    """Does a task."""
    from fuzz.score.ptx_mutants.targets import config
    from fuzz.score.ptx_mutants.trial import look_closer, survey_of, try_mutant

    survey = survey_of(seed, folder, arch)
    if isinstance(task, Unchanged):
        clean = survey.clean(config(task.target, task.config), task.number)
        return task._replace(failure=clean.fails)
    return try_mutant(task, survey) if isinstance(task, PtxMutant) else look_closer(task, survey)
