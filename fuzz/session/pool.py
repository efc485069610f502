"""Several worker processes for one session from the command line; pytest-xdist does the same for `pytest fuzz`."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import queue
import sys
import threading
import time
from pathlib import Path

import msgspec
from rich.console import Console

from fuzz.process.signals import end, held, ready
from fuzz.session.plan import Shard, plan, runnable_here
from fuzz.session.precompile import compile_ahead
from fuzz.session.records import Record, write_session
from fuzz.session.report import Progress, show
from fuzz.session.settings import Settings
from fuzz.session.worker import Worker

MAX_WORKERS = 16


def run_session(settings: Settings, workers: int | None, console: Console) -> list[Record]:
    """Runs a whole session and shows it; returns the records of the new findings.

    Ctrl-C ends it early: the table shows what was run. A worker that dies is named, and its unfinished shards are lost.
    Raises TargetError for a target that is unknown, or cannot run on this machine, and where none can.
    """
    if not settings.folder:
        settings = msgspec.structs.replace(settings, folder=new_folder())
    runnable_here(settings)
    shards = plan(settings)
    folder = Path(settings.folder)
    write_session(folder, settings)
    compile_ahead(settings, Console(stderr=True))
    count = min(workers or min(len(os.sched_getaffinity(0)), MAX_WORKERS), len(shards))
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    todo = context.Queue()
    for shard in shards:
        todo.put(shard)
    hands = [context.Process(target=_work, args=(settings, f"w{i}", todo), name=f"w{i}") for i in range(count)]
    problems: list[str] = []
    with Progress(folder, settings.cases, sys.stderr) as progress:
        try:
            with held():
                for hand in hands:
                    hand.start()
            for hand in hands:
                hand.join()
        except KeyboardInterrupt:
            problems.append("interrupted: the table shows what was run")
            end(hands)
    problems += [f"worker {hand.name} ended with exit code {hand.exitcode}" for hand in hands if hand.exitcode]
    records = progress.tally.records
    show(records, time.monotonic() - began, console, settings.files)
    for problem in problems:
        console.print(problem, style="bold red")
    console.print(f"records: {folder}", highlight=False)
    new = [record for record in records if record.status == "new"]
    if problems and not new:
        raise SystemExit(1)
    return new


def new_folder() -> str:
    """A fresh name for a session's records."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return str(Path(".attnfuzz") / "sessions" / f"{now}-{os.getpid()}")


def _work(settings: Settings, name: str, todo: multiprocessing.Queue[Shard]) -> None:
    leave_with_parent()
    try:
        ready()
        with Worker(settings, name) as worker:
            while True:
                try:
                    shard = todo.get(timeout=0.2)
                except queue.Empty:
                    return
                worker.run_shard(shard)
    except KeyboardInterrupt:
        sys.exit(0)


def leave_with_parent() -> None:
    """A worker process does not outlive who started it, however that ends; its child goes with it
    (runner/lifeline.py)."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
