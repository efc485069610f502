"""A score's trials in worker processes, each with a killable child as sessions have; every trial is written down whole.

The folder holds settings.json and ended-<worker>.jsonl; a score that was cut short goes on with the same folder and
settings, and does not repeat what is there. A kill loses the trials under way.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from fuzz.core.case import to_json
from fuzz.process.forked import one_thread
from fuzz.process.imports import freeze, importing
from fuzz.process.parent_death import die_with_parent
from fuzz.process.signals import end, held, ready
from fuzz.runner import Runner, RunnerError
from fuzz.runner.errors import HarnessError
from fuzz.score.settings import Settings, Trial
from fuzz.score.trial import Ended, search
from fuzz.score.trial_plan import bugs, trials

JUDGE = "fuzz.score.criteria_judge:execute"
TICK = 0.5


def run(
    settings: Settings,
    folder: Path,
    jobs: int,
    seconds: float = 0.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Ended]:
    """Runs what the folder has not yet, in `jobs` processes; returns everything that ended, in the folder at last.

    seconds  no case begins after so many (0: no limit)
    Ctrl-C leaves as KeyboardInterrupt, the trials that had ended in the folder; those under way are lost. Raises
    ValueError where the folder holds a score of other settings.
    """
    _claim(folder, settings)
    planned = trials(settings)
    names = {trial.name: trial for trial in planned}
    there = {
        one.trial.name for one in ended(folder) if names.get(one.trial.name) == one.trial and not (one.error or one.cut)
    }
    todo = [trial for trial in planned if trial.name not in there]
    if not todo:
        return ended(folder)
    context = multiprocessing.get_context("spawn")
    waiting = context.Queue()
    for trial in todo:
        waiting.put(trial)
    ends = time.time() + seconds if seconds else None
    first = len(list(folder.glob("ended-*.jsonl")))
    workers = [
        context.Process(target=_work, args=(settings, folder / f"ended-{first + i}.jsonl", waiting, ends))
        for i in range(min(jobs, len(todo)))
    ]
    try:
        with held(), one_thread():
            for worker in workers:
                worker.start()
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(TICK / len(workers))
            if progress is not None:
                done = ended(folder)
                progress(len(done), len(planned), _note(done))
    except KeyboardInterrupt:
        end(workers)
        raise
    finally:
        waiting.cancel_join_thread()
    lost = [str(worker.exitcode) for worker in workers if worker.exitcode]
    if lost:
        print(f"attnfuzz: workers ended with exit code {', '.join(lost)}; go on with --resume", file=sys.stderr)
    return ended(folder)


def ended(folder: Path) -> list[Ended]:
    """Everything that is written down, the last of each trial; a line that a kill cut off is left out."""
    found: dict[str, Ended] = {}
    for path in sorted(folder.glob("ended-*.jsonl")):
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                one = msgspec.json.decode(line, type=Ended)
                found[one.trial.name] = one
    return list(found.values())


def _claim(folder: Path, settings: Settings) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / "settings.json", to_json(settings)
    if path.exists() and path.read_text() != text:
        raise ValueError(f"folder: {folder} holds a score of other settings; give another folder, or the same settings")
    path.write_text(text)


def _work(settings: Settings, path: Path, waiting: multiprocessing.Queue[Trial], ends: float | None) -> None:
    def late() -> bool:
        return ends is not None and time.time() >= ends

    device = "cuda:0" if settings.device == "cuda" else settings.device
    die_with_parent()
    try:
        with Runner(device) as plain, Runner(device, execute=JUDGE) as watched, open(path, "ab", buffering=0) as file:
            with importing():
                import_module("fuzz.session.preload")
            freeze()
            plain.fork_zygote()
            watched.fork_zygote()
            ready()
            known, met = bugs(settings), set[str]()
            while not late():
                try:
                    trial = waiting.get(timeout=0.5)
                except queue.Empty:
                    return
                # what a mutant did to its process, as to fill a cache, may hide it from the next seed
                if trial.bug in met:
                    for runner in (plain, watched):
                        runner.close()
                        runner.fork_zygote()
                    met.clear()
                met.add(trial.bug)
                try:
                    found = search(trial, known[trial.bug], settings, plain.run, watched.run, late)
                except (RunnerError, HarnessError, ValueError) as error:
                    lines = str(error).strip().splitlines()
                    found = Ended(trial, 0, {}, 0.0, 0.0, error=f"{type(error).__name__}: {lines[-1] if lines else ''}")
                file.write(msgspec.json.encode(found) + b"\n")
                os.fsync(file.fileno())
    except KeyboardInterrupt:
        sys.exit(0)


def _note(done: Sequence[Ended]) -> str:
    """Mutants found and cases run so far."""
    ours = [one for one in done if one.trial.generator == "ours" and not (one.error or one.cut)]
    seen, known = {one.trial.bug for one in ours}, {one.trial.bug for one in ours if "ours" in one.found}
    return f"{len(known)} of {len(seen)} mutants found · {sum(one.run for one in done)} cases"
