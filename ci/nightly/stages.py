"""The stages of a night, in their order. Each may be run again: what it did already is found, and not done twice."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.nightly import findings, fuzzing, passed
from ci.nightly.commands import output, run
from ci.nightly.options import Options, attnfuzz, pytest, target_files
from ci.nightly.state import FILE, Done, Night
from ci.nightly.unfinished import unfinished

NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True)
class Stage:
    """One stage. minutes: a guess for a machine of 16 cores and these options, until a night has measured it."""

    name: str
    what: str
    run: Callable[[Night, Options], Done]
    minutes: Callable[[Options], float]


def tests(night: Night, options: Options) -> Done:
    """The project's own tests, nightly ones too, for so many minutes: those first that ended longest ago. Those that
    passed before a cut are not run again."""
    folder = night.folder / "passed"
    folder.mkdir(exist_ok=True)
    before = passed.files(folder)
    count, number = sum(1 for _ in passed.names(before)), len(before) + 1
    command = pytest("-v", "-p", passed.__name__, "-n", options.jobs, "--dist", "worksteal", "tests")
    variables = {passed.VARIABLE: str(folder / f"{number}.txt"), passed.NIGHTS: str(night.folder.parent)}
    if options.test_minutes:
        rest = 60 * options.test_minutes - night.kept.spent.get("tests", 0.0)
        variables[passed.UNTIL] = str(time.time() + rest)
    code = run(night, "tests", [*command, *options.pytest_args], variables=variables)
    left = passed.left(folder, number)
    if code == NO_TESTS and (count or left):  # every test had passed, or there was no time for another
        code = 0
    note = f"exit code {code}: see {night.log('tests')}" if code else "passed"
    note += (
        f"; {left} tests did not begin within {options.test_minutes:g} minutes, and come first in the next night"
        * bool(left)
    )
    return Done("ok" if code == 0 else "failed", note + f"; {count} of them passed before a cut" * bool(count))


def compile_(night: Night, options: Options) -> Done:
    """Compiles the kernels of the first session for each GPU architecture of the fleet, on CPU workers."""
    from ci.nightly.budget import Budget

    cases = Budget(options.devices, options.cases).per_round
    asked = ["--cases", str(min(cases, 300)), "--seed", str(night.seed * 1000), "--jobs", options.jobs]
    targets = [part for name in options.targets or ("blocksparse",) for part in ("--target", name)] + target_files(
        options
    )
    archs = [part for arch in options.archs for part in ("--arch", arch)]
    code = run(night, "compile", attnfuzz("compile", "--device", "cuda", *archs, *targets, *asked))
    return Done("ok" if code == 0 else "failed", f"{', '.join(options.archs)}" + f": exit code {code}" * bool(code))


def replay(night: Night, options: Options) -> Done:
    """Every saved case, those of the ledger too, which closes and reopens signatures."""
    saved = run(night, "replay", pytest("-n", options.jobs, "corpus"))
    known = run(night, "replay", attnfuzz("ledger", "replay", *target_files(options), "--ledger", options.ledger))
    notes = ["corpus " + ("passes" if saved in (0, NO_TESTS) else f"fails (exit code {saved})")]
    notes.append({0: "ledger's cases pass", 1: "ledger's cases fail still"}.get(known, f"ledger: exit code {known}"))
    broke = saved > 1 and saved != NO_TESTS
    return Done("failed" if broke else "findings" if saved == 1 else "ok", "; ".join(notes))


def conformance(night: Night, options: Options) -> Done:
    """The published configurations."""
    codes = {name: run(night, "conformance", attnfuzz("conformance", name)) for name in options.conformance}
    bad = [f"{name}: exit code {code}" for name, code in codes.items() if code]
    worst = max(codes.values(), default=0)
    return Done("ok" if not worst else "findings" if worst == 1 else "failed", "; ".join(bad) or ", ".join(codes))


def score(night: Night, options: Options) -> Done:
    """Planted bugs that the scoreboard has as found are found again; the figures go to the ledger."""
    out, trials = night.folder / "score.json", str(night.folder / "score")
    again = ["--resume"] if Path(trials).is_dir() else []
    command = attnfuzz("mutation-score", "--check", "--jobs", options.jobs, "--out", str(out), "--output-dir", trials)
    code = run(night, "score", [*command, *again])
    kept = measured(night, options, "score", [out]) if out.exists() else False
    note = "as the scoreboard says" if code == 0 else f"exit code {code}"
    return Done("ok" if code == 0 else "failed", note + ", figures in the ledger" * kept)


def measured(night: Night, options: Options, stage: str, files: Sequence[Path]) -> bool:
    """True if the figures of these results are in the ledger."""
    command = [sys.executable, "-m", "ci.measurements", *map(str, files), "--ledger", options.ledger]
    return run(night, stage, command) == 0


def ledger(night: Night, options: Options) -> Done:
    """Sessions whose last lines the ledger lacks, those of killed processes too; the night as JSON Lines for other
    machines."""
    mine = sorted(path.parent for path in (night.folder / "sessions").glob("*/session.json"))
    cut, elsewhere = unfinished(night.folder.parent, options)
    folders = list(dict.fromkeys([*mine, *cut]))
    out = night.folder / "night.jsonl.gz"
    code = run(night, "ledger", attnfuzz("import", *map(str, folders), "--ledger", options.ledger)) if folders else 0
    if not code:
        where = ["--night", night.name, "--ledger", options.ledger]
        code = run(night, "ledger", attnfuzz("export", str(out), *where))
    for place in elsewhere:
        print(f"    not finished, on another machine: {place} (there: attnfuzz run --resume, or attnfuzz import)")
    others = len(folders) - len(mine)
    note = f"{len(mine)} sessions" + f", {others} of before that were cut off" * bool(others)
    return Done("ok", f"{note}; {out}") if code == 0 else Done("failed", f"exit code {code}")


def report(night: Night, options: Options) -> Done:
    """The site, where this version has the command."""
    code, _ = output(night, "report", attnfuzz("report", "--help"))
    if code:
        return Done("skipped", "this version has no `attnfuzz report`")
    stages = ["--stages", str(night.folder / FILE)]
    code = run(night, "report", attnfuzz("report", "--ledger", options.ledger, "--out", options.site, *stages))
    return Done("ok", str(Path(options.site) / "index.html")) if code == 0 else Done("failed", f"exit code {code}")


STAGES = (
    Stage(
        "tests", "the project's tests, nightly ones too", tests, lambda options: min(20.0, options.test_minutes or 20.0)
    ),
    Stage("compile", "kernels for every arch, on CPU workers", compile_, lambda options: 4 * len(options.archs)),
    Stage(
        "fuzz",
        "sessions on each device: coverage first, then new findings",
        fuzzing.fuzz,
        lambda options: min(options.cases / 300, options.minutes or 1e9),
    ),
    Stage("replay", "saved cases, and those of the ledger", replay, lambda options: 10),
    Stage("conformance", "the published configurations", conformance, lambda options: 3 * len(options.conformance)),
    Stage("score", "planted bugs are found again", score, lambda options: 10),
    Stage("minimise", "findings that no session reduced", findings.minimise, lambda options: 3),
    Stage("bisect", "the commit that each new finding came with", findings.bisect, lambda options: 10),
    Stage("ledger", "sessions that the ledger lacks; the night as JSON Lines", ledger, lambda options: 1),
    Stage("report", "the site", report, lambda options: 1),
)
NAMES = tuple(stage.name for stage in STAGES)
