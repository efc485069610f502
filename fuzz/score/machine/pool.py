"""Worker processes that try bugs. One that dies, or takes too long over a bug, is a finding and is replaced.

Workers are spawned: torch and the emulator are loaded in each, and the unchanged kernels' runs are made in each once.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from fuzz.score.machine.values import Bug, Result

LIMIT = 300.0  # seconds that a bug may take
FIRST = 600.0  # and one that a worker begins a configuration with, for the unchanged kernels' runs
TICK = 1.0


class WorkerError(RuntimeError):
    """A worker failed in a way that is not the bug's: the message is its traceback."""


class _Worker:
    """One process, and the bug that it has."""

    def __init__(self, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed), daemon=True)
        self.process.start()
        theirs.close()
        self.bug: Bug | None = None
        self.ends = 0.0
        self._met: set[str] = set()

    def give(self, bug: Bug) -> None:
        """Sends a bug; the clock starts."""
        self.bug = bug
        self.ends = time.monotonic() + (LIMIT if bug.config in self._met else FIRST)
        self._met.add(bug.config)
        self.pipe.send(bug)

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def results(bugs: list[Bug], seed: int, jobs: int, ends: float | None = None) -> Iterator[Result]:
    """Results as they come. No bug is begun after `ends` (time.monotonic). Raises WorkerError."""
    todo = list(reversed(bugs))
    workers: list[_Worker] = []
    try:
        while True:
            for worker in workers:
                if worker.bug is None and todo and (ends is None or time.monotonic() < ends):
                    worker.give(todo.pop())
            while todo and len(workers) < jobs and (ends is None or time.monotonic() < ends):
                workers.append(_Worker(seed))
                workers[-1].give(todo.pop())
            busy = [worker for worker in workers if worker.bug is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], TICK)
            for worker in busy:
                found = _outcome(worker, worker.pipe in ready)
                if found is None:
                    continue
                worker.bug = None
                if found.by.startswith("runner:"):
                    worker.stop()
                    workers.remove(worker)
                yield found
    finally:
        for worker in workers:
            worker.stop()


def _outcome(worker: _Worker, ready: bool) -> Result | None:
    """What came of the worker's bug, None when it is still at it."""
    bug = worker.bug
    assert bug is not None
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

    from fuzz.score.machine.trial import try_bug

    torch.set_num_threads(1)
    while True:
        try:
            bug = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(try_bug(bug, seed))
        except KeyboardInterrupt:
            return
        except BaseException:
            pipe.send(traceback.format_exc())
