"""Worker processes that try mutants, or look closer at those that were missed.

One that dies, or takes too long over a mutant, is a finding and is replaced. Workers are spawned: torch and the
emulator are loaded in each, and the unchanged kernels' runs are made in each once.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from fuzz.process.signals import held, ready
from fuzz.score.ptx_mutants.results import PtxMutant, Result

Task: TypeAlias = PtxMutant | Result  # to be tried, or to be looked at more closely
LIMIT = 300.0  # seconds that a mutant may take
FIRST = 600.0  # and one that a worker begins a configuration with, for the unchanged kernels' runs
TICK = 1.0


class WorkerError(RuntimeError):
    """A worker failed in a way that is not the mutant's: the message is its traceback."""


class _Worker:
    """One process, and the task that it has."""

    def __init__(self, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed), daemon=True)
        with held():
            self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.ends = 0.0
        self._met: set[str] = set()

    def give(self, task: Task) -> None:
        """Sends a task; the clock starts."""
        self.task = task
        new = f"{type(task).__name__} {mutant_of(task).config}"
        self.ends = time.monotonic() + (LIMIT if new in self._met else FIRST)
        self._met.add(new)
        self.pipe.send(task)

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def mutant_of(task: Task) -> PtxMutant:
    """The mutant that a task is about."""
    return task if isinstance(task, PtxMutant) else task.bug


def results(tasks: list[Task], seed: int, jobs: int, ends: float | None = None) -> Iterator[Result]:
    """Results as they come. None is begun after `ends` (time.monotonic). Raises WorkerError."""
    todo = list(reversed(tasks))
    workers: list[_Worker] = []
    try:
        while True:
            for worker in workers:
                if worker.task is None and todo and (ends is None or time.monotonic() < ends):
                    worker.give(todo.pop())
            while todo and len(workers) < jobs and (ends is None or time.monotonic() < ends):
                workers.append(_Worker(seed))
                workers[-1].give(todo.pop())
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], TICK)
            for worker in busy:
                found = _outcome(worker, worker.pipe in ready)
                if found is None:
                    continue
                worker.task = None
                if found.by.startswith("runner:"):
                    worker.stop()
                    workers.remove(worker)
                yield found
    finally:
        for worker in workers:
            worker.stop()


def _outcome(worker: _Worker, ready: bool) -> Result | None:
    """Result of the worker's task, None while it runs."""
    assert worker.task is not None
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


def _work(pipe: Connection, seed: int) -> None:
    import traceback

    import torch

    from fuzz.score.ptx_mutants.trial import look_closer, try_mutant

    torch.set_num_threads(1)
    while True:
        try:
            ready()
            task = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(try_mutant(task, seed) if isinstance(task, PtxMutant) else look_closer(task, seed))
        except (KeyboardInterrupt, BrokenPipeError):  # the parent process is gone
            return
        except BaseException:
            pipe.send(traceback.format_exc())
