"""`run`: draws mutants, tries them, writes down each result, and gives the score."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.pool import Task, results
from fuzz.score.ptx_mutants.results import PtxScore, Result, score
from fuzz.score.ptx_mutants.sampling import sample

RESULTS, SETTINGS = "machine.jsonl", "machine.json"


def run(
    count: int,
    seed: int = 1,
    jobs: int = 1,
    seconds: float = 0.0,
    progress: Callable[[int, int, str], None] | None = None,
    folder: Path | None = None,
) -> PtxScore:
    """The score of the first `count` PTX mutants of `seed`, on the emulated GPU: all are tried, then those that
    were missed are looked at more closely.

    seconds   nothing is begun after so many (0: no limit); the score is of those that ended
    progress  is called after each mutant: how many are done, of how many, and what came out so far
    folder    where results are kept, one JSON line each, the last of a mutant counts: what is there of the same seed is
              not run again
    Raises ValueError where the folder holds another seed's, CompileError, WorkerError.
    """
    began = time.monotonic()
    bugs = sample(count, seed)
    ids = {bug.id for bug in bugs}
    found = {one.id: one for one in _kept(folder, seed) if one.id in ids}
    ends = began + seconds if seconds else None

    def work(tasks: Sequence[Task]) -> None:
        for result in results(list(tasks), seed, jobs, ends):
            found[result.id] = result
            if folder is not None:
                with (folder / RESULTS).open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
            if progress is not None:
                progress(len(found), len(bugs), _note(list(found.values())))

    work([bug for bug in bugs if bug.id not in found])
    work([one for bug in bugs if (one := found.get(bug.id)) and one.status != "found" and not one.looked])
    return score([judged(found[bug.id]) for bug in bugs if bug.id in found], count, seed)


def _kept(folder: Path | None, seed: int) -> list[Result]:
    """Results that the folder holds; a line that a kill cut off is left out."""
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / SETTINGS
    if settings.exists():
        there = msgspec.json.decode(settings.read_bytes())["seed"]
        if there != seed:
            raise ValueError(f"folder: {folder} holds the bugs of seed {there}, not of {seed}")
    settings.write_bytes(msgspec.json.encode({"seed": seed}) + b"\n")
    found = []
    if (folder / RESULTS).exists():
        for line in (folder / RESULTS).read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=Result))
    return found


def _note(found: list[Result]) -> str:
    statuses = [judged(one).status for one in found]
    return ", ".join(f"{statuses.count(name)} {name}" for name in ("found", "equivalent", "missed", "not_reached"))
