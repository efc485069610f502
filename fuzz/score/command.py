"""`attnfuzz mutation-score`: its options, and what it does with them."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from fuzz.process.progress import ProgressLine
from fuzz.score.settings import Settings
from fuzz.session.settings import DEVICES

if TYPE_CHECKING:
    from fuzz.score.regression_check import Lost
    from fuzz.score.scoreboard import Scoreboard

INTERRUPTED = 130  # what a shell makes of Ctrl-C
SUMMARY = "how many mutants are found, after how many cases; beside other projects' acceptance rules"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `attnfuzz mutation-score`, but for `--jobs`."""
    plain = Settings()
    add = parser.add_argument
    add("--check", action="store_true", help="what the committed scoreboard found has to be found again (minutes)")
    add("--rotate", type=int, metavar="N",
        help="of --check: which quarter of the mutants comes first, 0 the cheapest, in "
        "case there is no time for all (the day's)")  # fmt: skip
    add("--add", metavar="FILE.json", help="only mutants that this scoreboard lacks, with its settings; shown and "
        "written is the scoreboard of both")  # fmt: skip
    add("--filter", default="*", metavar="GLOB", help="only these mutants, such as 'blocksparse!*'")
    add("--seeds", type=int, default=plain.seeds, help=f"trials of each mutant ({plain.seeds})")
    add("--cases", type=int, default=plain.cases, help=f"the most cases of a trial ({plain.cases})")
    add("--repeats", type=int, default=plain.repeats, help=f"runs that must agree bit for bit ({plain.repeats})")
    add("--peer-seeds", type=int, default=plain.peer_seeds, metavar="N",
        help="trials of each mutant in which the others' "
        f"criteria judge too, and as many with uniform cases ({plain.peer_seeds})")  # fmt: skip
    add("--peer-cases", type=int, default=plain.peer_cases, metavar="N", help=f"cases of those ({plain.peer_cases})")
    add("--keys", type=int, default=plain.keys, help=f"kernels of each target that may be compiled ({plain.keys})")
    add("--no-minimize", action="store_true", help="leave what is found as large as it was")
    add("--ptx-mutants", type=int, default=0, metavar="N", help="number of PTX mutants to run too (0)")
    add("--max-time", type=float, default=0.0, metavar="SECONDS", help="begin no case after so many seconds (no limit)")
    add("--seed", type=int, default=0, help="the first seed (0)")
    add("--device", choices=DEVICES, default="host", help="where the kernels run (host); see run")
    add("--output-dir", default="", metavar="DIR", help="where trials are written down (.attnfuzz/scores/<time>)")
    add("--resume", action="store_true", help="go on with the last folder, or with --output-dir")
    add("--out", metavar="FILE.json", help="write the scoreboard")
    add("--plot", metavar="FILE.svg", help="draw the survival curve (needs matplotlib)")


def score(options: argparse.Namespace, console: Console) -> int:
    """Runs the command; returns the exit code. Raises ValueError for options that make no sense."""
    from fuzz.core.case import to_json
    from fuzz.score import regression_check
    from fuzz.score.render import print_scoreboard
    from fuzz.score.run import ended, run
    from fuzz.score.scoreboard import joined, make_scoreboard
    from fuzz.score.trial_plan import bugs

    settings = settings_of(options)
    known: dict[str, regression_check.Known] = {}
    board = _board(options.add) if options.add else None
    if board is not None:
        settings = msgspec.structs.replace(
            board.settings, pattern=options.filter, skip=tuple(bug.name for bug in board.bugs if bug.trials)
        )
    seconds = options.max_time
    if options.check:
        if board is not None:
            raise ValueError("--add: not together with --check")
        there, keys = regression_check.before()
        known = {name: bug for name, bug in there.items() if name in bugs(settings)}
        if not known:
            raise ValueError(f"--check: needs a scoreboard to compare with in {regression_check.SCOREBOARD}")
        turn = regression_check.turn_of_today() if options.rotate is None else options.rotate
        settings = regression_check.short_settings(settings, known, keys, turn)
        seconds = seconds or regression_check.SECONDS
    if not bugs(settings):
        raise ValueError(f"--filter: no mutant that can run here is called {options.filter!r}")
    if options.plot and Path(options.plot).suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--plot: needs a name that ends in .svg, .png or .pdf, got {options.plot!r}")
    folder = _folder(options)
    stopped = False
    try:
        with ProgressLine("attnfuzz mutation-score", "trials", Console(stderr=True)) as line:
            run(settings, folder, options.jobs, seconds, line.show)
    except KeyboardInterrupt:
        stopped = True
        console.print("interrupted; go on with --resume", style="yellow", markup=False)
    found = ended(folder)
    if stopped and not found:
        return INTERRUPTED
    made = make_scoreboard(settings, found)
    if board is not None:
        made = joined(board, made)
    if options.ptx_mutants:
        made = msgspec.structs.replace(made, ptx_mutants=_ptx_mutants(options, folder))
    print_scoreboard(made, console)
    console.print(f"trials: {folder}", highlight=False)
    if options.out:
        Path(options.out).write_text(to_json(made))
    if options.plot:
        from fuzz.score.score_plot import plot

        plot(made, Path(options.plot))
    if options.check:
        lost = regression_check.lost(made, known)
        why = "interrupted" if stopped else f"no time within {seconds:g} s"
        _show_lost(lost, settings, len(known), f"{why}, --rotate {turn % regression_check.QUARTERS}", console)
        return INTERRUPTED if stopped else int(lost.bad)
    return INTERRUPTED if stopped else int(bool(made.missed))


def _show_lost(lost: Lost, settings: Settings, known: int, why_late: str, console: Console) -> None:
    for name in lost.missed:
        text = f"not found any more: {name} (within {settings.limits[name]} cases, from seed {settings.starts[name]})"
        console.print(text, style="bold red", markup=False, soft_wrap=True)
    for name, why in lost.failed.items():
        console.print(f"could not be looked for: {name}: {why}", style="bold red", markup=False, soft_wrap=True)
    if lost.late:
        text = f"not looked for, {why_late}: {len(lost.late)} of {known}: {', '.join(lost.late)}"
        console.print(text, style="yellow", markup=False)


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for. Raises ValueError."""
    return Settings(
        pattern=options.filter,
        seeds=options.seeds,
        cases=options.cases,
        seed=options.seed,
        repeats=options.repeats,
        peer_seeds=options.peer_seeds,
        peer_cases=options.peer_cases,
        keys=options.keys,
        minimize_runs=0 if options.no_minimize else Settings().minimize_runs,
        device=options.device,
    )


def _board(path: str) -> Scoreboard:
    """A scoreboard that was written. Raises ValueError for another file."""
    from fuzz.score.scoreboard import Scoreboard

    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Scoreboard)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"--add: {path} is no scoreboard: {error}") from None


def _folder(options: argparse.Namespace) -> Path:
    if options.output_dir:
        return Path(options.output_dir)
    scores = Path(".attnfuzz") / "scores"
    if options.resume:
        there = sorted(scores.glob("*")) if scores.is_dir() else []
        if not there:
            raise ValueError(f"--resume: there is no score in {scores}")
        return there[-1]
    return scores / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")


def _ptx_mutants(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The score of PTX mutants, with its table as 'table'; its results lie beside the trials."""
    from fuzz.score.ptx_mutants.render import table
    from fuzz.score.ptx_mutants.run import run

    place = folder / "machine"
    place.mkdir(parents=True, exist_ok=True)
    with ProgressLine("attnfuzz mutation-score", "PTX mutants", Console(stderr=True)) as line:
        found = run(options.ptx_mutants, options.seed, options.jobs, options.max_time, line.show, place)
    return msgspec.to_builtins(found) | {"table": table(found)}


__all__ = ["SUMMARY", "add_options", "score", "settings_of"]
