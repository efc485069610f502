"""python -m fuzz.score.source_mutants: one-line changes of a bundled kernel's source, a session for each."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from fuzz.score.source_mutants.render import line, table
from fuzz.score.source_mutants.results import Result, SourceMutant, score
from fuzz.score.source_mutants.sampling import PACKAGES, sample
from fuzz.score.source_mutants.trial import Plan, TimeIsUp, clean, probe, try_mutant


def main() -> None:
    """Draws mutants, tries them side by side, prints the tables; with --folder goes on where it was."""
    given = _parser().parse_args()
    ends = time.monotonic() + given.max_time if given.max_time else math.inf
    plan = Plan(given.target, given.device, given.cases, given.session_seed, given.session_seconds, ends)
    drawn = sample(given.target, given.count, given.seed)[given.skip :]
    drawn = [mutant for mutant in drawn if not given.only or mutant.id in given.only]
    results = _all(drawn, plan, given)
    made = score(results, seed=given.seed, cases=given.cases, target=given.target)
    print(table(made))
    if len(results) < len(drawn):
        print(f"{len(drawn) - len(results)} mutants were not tried: the time was up")
    if given.json:
        from fuzz.session.records import machine

        about = {"command": "python -m fuzz.score.source_mutants " + " ".join(sys.argv[1:]), "commit": _commit()}
        body = about | {"machine": machine(), "summary": line(made)} | msgspec.to_builtins(made)
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz.score.source_mutants", description=__doc__)
    add = parser.add_argument
    add("--target", choices=sorted(PACKAGES), default="blocksparse", help="whose source is changed (blocksparse)")
    add(
        "--device",
        choices=("host", "cuda", "interpreter", "emulator"),
        default="host",
        help="where the sessions run (host)",
    )
    add("--count", type=int, default=200, help="mutants (200)")
    add("--skip", type=int, default=0, help="how many of them, the first ones, are left out: tried elsewhere (0)")
    add("--only", nargs="+", metavar="ID", default=(), help="of these, those with such an id, as results name them")
    add("--seed", type=int, default=1, help="of the choice of mutants (1)")
    add("--cases", type=int, default=60, help="of each session (60)")
    add("--session-seed", type=int, default=0, help="seed of each session (0)")
    add("--session-seconds", type=float, default=300.0, help="at most, of each session (300)")
    add("--jobs", type=int, default=1, help="sessions side by side (1)")
    add("--max-time", type=float, default=0.0, help="seconds after which it ends, whatever still runs; 0: no limit")
    add("--folder", type=Path, help="keeps results, to go on after a stop")
    add("--json", type=Path, help="where the score is written")
    return parser


def _all(drawn: list[SourceMutant], plan: Plan, given: argparse.Namespace) -> list[Result]:
    """Results in the order drawn: those kept in the folder, and those of the mutants that it lacks. Raises SystemExit
    where the session fails without a mutant, and where the time is up before its end."""
    kept = _kept(given.folder)

    def keep(work: Callable[[], Result]) -> None:
        try:
            result = work()
        except TimeIsUp:
            return
        mutant, kept[result.id] = result.mutant, result
        if given.folder:
            given.folder.mkdir(parents=True, exist_ok=True)
            (given.folder / f"{result.id}.json").write_bytes(msgspec.json.encode(result))
        note = f"{result.status} {result.by} after {result.cases} cases, {result.seconds:.0f} s"
        print(f"{len(kept)}/{len(drawn)} {note}: {mutant.file}:{mutant.line} {mutant.operator}", file=sys.stderr)

    def one(mutant: SourceMutant) -> None:
        if mutant.id not in kept:
            keep(partial(try_mutant, mutant, plan))
        result = kept.get(mutant.id)
        if result is not None and result.status == "missed" and not result.probed:
            keep(partial(probe, result, plan))

    def whole(mutant: SourceMutant) -> bool:
        return mutant.id in kept and (kept[mutant.id].status != "missed" or kept[mutant.id].probed)

    with ThreadPoolExecutor(given.jobs) as pool:
        before = pool.submit(clean, plan)
        list(pool.map(one, [mutant for mutant in drawn if not whole(mutant)]))
        try:
            end = before.result()
        except TimeIsUp:
            raise SystemExit("the time was up before the session without a mutant had ended") from None
    if end.failure is not None or end.code != 0:
        raise SystemExit(f"the session fails without a mutant: {end.failure or end.said}")
    print(f"without a mutant: {end.cases} cases, none fails", file=sys.stderr)
    return [kept[mutant.id] for mutant in drawn if mutant.id in kept]


def _kept(folder: Path | None) -> dict[str, Result]:
    found = [msgspec.json.decode(path.read_bytes(), type=Result) for path in folder.glob("*.json")] if folder else []
    return {result.id: result for result in found}


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
