"""The scoreboard for people: a line for each bug, then who finds how many of them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fuzz.score.board import RULES, Board, Bug
from fuzz.score.trial import OURS
from oracles.peers import PEERS


def show(of: Board, console: Console) -> None:
    """Prints a board."""
    console.print(_bugs(of))
    console.print(_who(of))
    console.print(
        f"{of.found} of {of.planted} planted bugs found; median of the medians {of.median:g} cases, worst {of.worst}",
        highlight=False,
    )
    for bug in of.bugs:
        if bug.trials and not bug.found:
            console.print(f"missed: {bug.name}", style="bold red", highlight=False, markup=False)
        for error in bug.errors:
            console.print(f"error: {bug.name}: {error}", style="red", highlight=False, markup=False)
    alarms, asked = of.alarms[OURS]
    console.print(f"failed without a bug: {alarms} of {asked} cases", highlight=False)
    if of.machine_made:
        console.print(of.machine_made["table"], highlight=False, markup=False)


def _bugs(of: Board) -> Table:
    made = Table(
        title="Cases until a planted bug is found", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    made.add_column("bug", no_wrap=True)
    for name in ("found", "median", "worst", "s"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("by", overflow="fold")
    made.add_column("tokens", justify="right", no_wrap=True)
    for name in ("uniform", *PEERS):
        made.add_column(_short(name), justify="right", no_wrap=True)
    looked = [bug for bug in of.bugs if bug.seen]  # the time may have been up before
    for bug in sorted(looked, key=lambda bug: (bug.median, bug.worst, bug.name)):
        made.add_row(*_row(bug))
    made.caption = "s: median of the seconds, without compiling; tokens: of the smallest case; then: trials of others"
    made.caption_justify = "left"
    return made


def _row(bug: Bug) -> list[str]:
    colour = "green" if bug.found == bug.trials else "yellow" if bug.found else "red"
    return [
        bug.name,
        f"[{colour}]{bug.found}/{bug.trials}[/]",
        f"{bug.median:g}",
        str(bug.worst),
        f"{bug.seconds_median:.1f}",
        next(iter(bug.oracles), "·"),
        str(bug.smallest.tokens) if bug.smallest else "·",
        _rate(bug, "uniform", OURS),
        *(_rate(bug, "ours", rule) for rule in PEERS),
    ]


def _rate(bug: Bug, generator: str, rule: str) -> str:
    seen = next((s for s in bug.seen if (s.generator, s.rule) == (generator, rule)), None)
    return f"{seen.found}/{len(seen.cases)}" if seen else "·"


def _who(of: Board) -> Table:
    made = Table(title="Who finds how many", title_justify="left")
    made.add_column("rule")
    for name in ("on our cases", "on uniform cases", "failed without a bug"):
        made.add_column(name, justify="right")
    for rule in RULES:
        cells = [of.by[f"{generator}/{rule}"] for generator in ("ours", "uniform")]
        alarms, asked = of.alarms[rule]
        rate = f"{alarms} of {asked} cases" if asked else "·"
        made.add_row(rule, *(f"{n['found']} of {n['looked_for']}" if n["looked_for"] else "·" for n in cells), rate)
    return made


SHORT = {"uniform": "uni", "flash-attention": "FA", "flag-gems": "Gems", "nsa": "NSA", "flash-dmattn": "dmatt"}


def _short(name: str) -> str:
    return SHORT.get(name, name)
