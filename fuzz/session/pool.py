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
from fuzz.session.plan import Lane, Settings, plan, runnable_here
from fuzz.session.precompile import compile_ahead
from fuzz.session.records import Record, write_session
from fuzz.session.report import Progress, show
from fuzz.session.worker import Worker

MAX_WORKERS = 16


def run_session(wanted: Settings, workers: int | None, console: Console) -> list[Record]:
    """Runs a whole session and shows it; returns the records of the new findings.

    Ctrl-C ends it early: the table shows what was run. A worker that dies is named, and its unfinished lanes are lost.
    Raises TargetError for a target that is unknown, or cannot run on this machine, and where none can.
    """
    if not wanted.folder:
        wanted = msgspec.structs.replace(wanted, folder=new_folder())
    runnable_here(wanted)
    lanes = plan(wanted)
    folder = Path(wanted.folder)
    write_session(folder, wanted)
    compile_ahead(wanted, Console(stderr=True))
    count = min(workers or min(len(os.sched_getaffinity(0)), MAX_WORKERS), len(lanes))
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    todo = context.Queue()
    for lane in lanes:
        todo.put(lane)
    hands = [context.Process(target=_work, args=(wanted, f"w{i}", todo), name=f"w{i}") for i in range(count)]
    problems: list[str] = []
    with Progress(folder, wanted.cases, sys.stderr) as progress:
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
    show(records, time.monotonic() - began, console, wanted.files)
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


def _work(wanted: Settings, name: str, todo: multiprocessing.Queue[Lane]) -> None:
    leave_with_parent()
    try:
        ready()
        with Worker(wanted, name) as worker:
            while True:
                try:
                    lane = todo.get(timeout=0.2)
                except queue.Empty:
                    return
                worker.run_lane(lane)
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
