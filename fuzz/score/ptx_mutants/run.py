"""`run`: draws mutants, tries them, writes down each result, and gives the score."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fuzz.score.ptx_mutants.bench import ARCH
from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.pool import Unchanged, results
from fuzz.score.ptx_mutants.results import PtxMutant, PtxScore, Result, score
from fuzz.score.ptx_mutants.sampling import sample
from fuzz.score.ptx_mutants.survey import KernelConfig, Survey, lists_of
from fuzz.score.ptx_mutants.targets import configs

RESULTS, SETTINGS = "machine.jsonl", "machine.json"
Progress = Callable[[int, int, str], None]


def run(
    count: int,
    seed: int = 1,
    jobs: int = 1,
    max_time: float = 0.0,
    progress: Progress | None = None,
    folder: Path | None = None,
    target: str = "blocksparse",
    arch: str = ARCH,
    only: str = "",
) -> PtxScore:
    """The score of the first `count` PTX mutants of `seed`, of a target's kernels on the emulated GPU. Each is tried,
    and looked at more closely where it was missed.

    max_time  seconds after which it ends, whatever still runs (0: no limit); the score is of the mutants that ended
    progress  is called after each: how many are done, of how many, and what came out so far
    folder    where results are kept, one JSON line each, the last of a mutant counts, and what the unchanged kernels
              do: what is there of the same target and seed is not run again; the kernels' PTX is there to be read
    arch      that Triton's kernels are compiled for
    only      configurations whose name has this
    Raises ValueError for another target or a name that none has, and where the folder holds another one's results;
    CompileError, WorkerError.
    """
    ends = time.monotonic() + max_time if max_time else None
    chosen = tuple(one for one in configs(target) if only in one.name)
    if not chosen:
        raise ValueError(f"only: must be in one of {', '.join(one.name for one in configs(target))}, got {only!r}")
    found = {one.id: one for one in _kept(folder, seed, target, arch)}
    with tempfile.TemporaryDirectory(prefix="attnfuzz-ptx-") as made:
        place = folder or Path(made)
        failures = _survey(Survey(seed, place, arch), target, chosen, jobs, ends, progress)
        if ends is not None and time.monotonic() >= ends:
            return score([], count, seed, failures)
        survey = Survey(seed, place, arch)
        kernels = {(one.name, kind): kernel for one in chosen for kind, kernel in one.kernels(survey).items()}
        for (config, kind), kernel in kernels.items():
            path = place / "kernels" / f"{config}-{kind}.ptx"
            path.parent.mkdir(exist_ok=True)
            path.write_text(kernel.text)

        def text_of(bug: PtxMutant) -> str:
            return kernels[bug.config, bug.kind].text

        drawn: list[PtxMutant] = []

        def tasks() -> Iterator[PtxMutant | Result]:
            for bug in sample(count, seed, target, {at: kernel.text for at, kernel in kernels.items()}):
                drawn.append(bug)
                known = found.get(bug.id)
                if known is None:
                    yield bug
                elif (looked := look(known)) is not None:
                    yield looked

        def look(result: Result) -> Result | None:
            return result if _open(result) and _arguable(result, text_of) else None

        def rest() -> Iterator[Result]:
            yield from [found[bug.id] for bug in drawn if bug.id in found and _open(found[bug.id])]

        first = results(tasks(), seed, jobs, ends, place, look, arch)
        for result in chain(first, results(rest(), seed, jobs, ends, place, arch=arch)):
            found[result.id] = result
            if folder is not None:
                with (folder / RESULTS).open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
            if progress is not None:
                now = [judged(found[bug.id], text_of) for bug in drawn if bug.id in found]
                progress(len(now), count, _note(now))
        return score([judged(found[bug.id], text_of) for bug in drawn if bug.id in found], count, seed, failures)


def _open(result: Result) -> bool:
    return result.status != "found" and not result.looked


def _arguable(result: Result, text_of: Callable[[PtxMutant], str]) -> bool:
    """True if a closer look may find it equivalent: such mutants are looked at first."""
    best = replace(result, looked=True, same_values=True, same_bits=True)
    return result.status == "not_reached" or judged(best, text_of).status == "equivalent"


def _survey(
    survey: Survey,
    target: str,
    chosen: tuple[KernelConfig, ...],
    jobs: int,
    ends: float | None,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Runs every case with the unchanged kernels; what failed."""
    tasks = [
        Unchanged(target, one.name, number)
        for number in range(lists_of(target).most)
        for one in chosen
        if number < len(survey.cases(one))
    ]
    failures = []
    for done, ended in enumerate(results(tasks, survey.seed, jobs, ends, survey.folder, arch=survey.arch), 1):
        failures += [ended.failure] * bool(ended.failure)
        if progress is not None:
            progress(done, len(tasks), "cases with the unchanged kernels")
    return tuple(sorted(failures))


def _kept(folder: Path | None, seed: int, target: str = "blocksparse", arch: str = ARCH) -> list[Result]:
    """Results that the folder holds; a line that a kill cut off is left out."""
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / SETTINGS
    here = {"seed": seed, "target": target, "arch": arch}
    if settings.exists():
        there = {"target": "blocksparse", "arch": ARCH} | msgspec.json.decode(settings.read_bytes())
        if there != here:
            theirs, mine = (f"{one['target']}, {one['arch']} and seed {one['seed']}" for one in (there, here))
            whose = f"the bugs of {theirs}, not of {mine}"
            raise ValueError(f"folder: {folder} holds {whose}")
    settings.write_bytes(msgspec.json.encode(here) + b"\n")
    found = []
    if (folder / RESULTS).exists():
        for line in (folder / RESULTS).read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=Result))
    return found


def _note(found: list[Result]) -> str:
    statuses = [one.status for one in found]
    return ", ".join(f"{statuses.count(name)} {name}" for name in ("found", "equivalent", "missed", "not_reached"))
