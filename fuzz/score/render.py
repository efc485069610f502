"""The scoreboard for users: a line for each mutant, then who finds how many of them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fuzz.score.scoreboard import RULES, Bug, Scoreboard
from fuzz.score.trial import OURS
from oracles.other_projects import CRITERIA


def print_scoreboard(scores: Scoreboard, console: Console) -> None:
    """Prints a board; of others who look only where one of them looked on."""
    console.print(_bugs(scores))
    if _others(scores):
        console.print(_who(scores))
    console.print(
        f"{scores.found} of {scores.mutants} mutants found; "
        f"median of the medians {scores.median:g} cases, worst {scores.worst}",
        highlight=False,
    )
    for bug in scores.bugs:
        if bug.trials and not bug.found:
            console.print(f"missed: {bug.name}", style="bold red", highlight=False, markup=False)
        for error in bug.errors:
            console.print(f"error: {bug.name}: {error}", style="red", highlight=False, markup=False)
    alarms, judged = scores.alarms[OURS]
    console.print(f"failed without a bug: {alarms} of {judged} cases", highlight=False)
    if scores.ptx_mutants:
        console.print(scores.ptx_mutants["table"], highlight=False, markup=False)


def _others(scores: Scoreboard) -> dict[str, tuple[str, str]]:
    """Generator and rule of those columns in which there is anything, by heading."""
    known = {"uniform": ("uniform", OURS)} | {rule: ("ours", rule) for rule in CRITERIA}
    there = {(seen.generator, seen.rule) for bug in scores.bugs for seen in bug.seen}
    return {name: pair for name, pair in known.items() if pair in there}


def _bugs(scores: Scoreboard) -> Table:
    made = Table(title="Cases until a mutant is found", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    others, smaller = _others(scores), any(bug.smallest for bug in scores.bugs)
    made.add_column("bug", no_wrap=True)
    for name in ("found", "median", "worst", "s"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("by", overflow="fold")
    for name in ["tokens"] * smaller + [_short(name) for name in others]:
        made.add_column(name, justify="right", no_wrap=True)
    tried = [bug for bug in scores.bugs if bug.seen]  # of others no trial could run
    for bug in sorted(tried, key=lambda bug: (bug.median, bug.worst, bug.name)):
        tokens = [str(bug.smallest.tokens) if bug.smallest else "·"] * smaller
        made.add_row(*_row(bug), *tokens, *(_rate(bug, *pair) for pair in others.values()))
    notes = ["s: median of the seconds, without compiling"]
    notes += ["tokens: of the smallest case"] * smaller + ["then: trials of others"] * bool(others)
    made.caption, made.caption_justify = "; ".join(notes), "left"
    return made


def _row(bug: Bug) -> list[str]:
    if not bug.trials:
        return [bug.name, "·", "·", "·", "·", "·"]
    colour = "green" if bug.found == bug.trials else "yellow" if bug.found else "red"
    return [
        bug.name,
        f"[{colour}]{bug.found}/{bug.trials}[/]",
        f"{bug.median:g}",
        str(bug.worst),
        f"{bug.seconds_median:.1f}",
        next(iter(bug.oracles), "·"),
    ]


def _rate(bug: Bug, generator: str, rule: str) -> str:
    seen = next((s for s in bug.seen if (s.generator, s.rule) == (generator, rule)), None)
    return f"{seen.found}/{len(seen.cases)}" if seen else "·"


def _who(scores: Scoreboard) -> Table:
    made = Table(title="Who finds how many", title_justify="left")
    made.add_column("rule")
    for name in ("on our cases", "on uniform cases", "failed without a bug"):
        made.add_column(name, justify="right")
    for rule in RULES:
        cells = [scores.by[f"{generator}/{rule}"] for generator in ("ours", "uniform")]
        alarms, judged = scores.alarms[rule]
        rate = f"{alarms} of {judged} cases" if judged else "·"
        made.add_row(rule, *(f"{n['found']} of {n['looked_for']}" if n["looked_for"] else "·" for n in cells), rate)
    return made


SHORT = {"uniform": "uni", "flash-attention": "FA", "flag-gems": "Gems", "nsa": "NSA", "flash-dmattn": "dmatt"}


def _short(name: str) -> str:
    return SHORT.get(name, name)
