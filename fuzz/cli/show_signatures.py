"""Signatures of the ledger for readers: the table, one in full, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from fuzz.core.features import ordered
from fuzz.core.signature import needs
from fuzz.ledger.life import Expected, Life, Replayed, Seen, Step
from fuzz.ledger.query.signatures import Known
from fuzz.session.summary.findings import what

DAY = 86400.0
_COLOURS = {
    "regressed": "bold red",
    "new": "red",
    "open": "red",
    "flaky": "yellow",
    "expected": "cyan",
    "fixed": "green",
}


def table(found: Sequence[Known]) -> Table:
    """One row for each signature."""
    made = Table(title="Signatures", title_justify="left")
    for name in ("id", "state", "age", "rate", "nights", "archs", "target", "what"):
        made.add_column(name)
    for known in found:
        life = known.life
        made.add_row(
            known.uid,
            f"[{_COLOURS[life.state]}]{life.state}[/]",
            age(life),
            str(life.rate),
            str(known.sessions),
            ", ".join(life.archs),
            known.signature.target,
            what(known.signature),
        )
    return made


def age(life: Life, now: float | None = None) -> str:
    """Days since the first failure."""
    days = ((time.time() if now is None else now) - life.first) / DAY
    return f"{days:.0f} d" if days >= 1 else "today"


def lines(known: Known) -> list[str]:
    """A signature in full."""
    life, best = known.life, known.best
    said = [
        f"{known.uid} {known.signature.target}: {what(known.signature)}",
        f"    {life.state} since {_day(life.since)}; first failed {_day(life.first)}, last {_day(life.last)}; "
        f"{known.met} cases in {known.sessions} session{'' if known.sessions == 1 else 's'}",
        f"    rate of its saved case: {life.rate}, {'flaky' if life.flaky else 'every time'}; "
        f"on {', '.join(life.archs)}",
        f"    {best.message}",
    ]
    if life.state == "expected":
        said.append(f"    expected{f' until {life.until}' if life.until else ''}: {life.link}")
    elif life.state != "fixed":
        passes = ", ".join(f"{count} of {life.passes_needed} passes on {arch}" for arch, count in life.passes.items())
        said.append(f"    until it is fixed: {passes}")
    if options := needs(known.signature):
        said.append(f"    needs {', '.join(ordered(options))}")
    if best.note:
        said.append(f"    {best.note}")
    said.append(f"    saved as {best.file}, in session {best.session} of {best.night}, revision {best.commit[:12]}")
    return said + [f"    {_day(step.at)} {_told(step)}" for step in known.history]


def as_json(found: Sequence[Known]) -> str:
    """A list of objects, one for each signature."""
    return json.dumps([_object(known) for known in found], indent=2)


def _object(known: Known) -> dict[str, object]:
    life = known.life
    return {
        "signature": known.uid,
        "state": life.state,
        "since": life.since,
        "first": life.first,
        "last": life.last,
        "failed": life.rate.failed,
        "runs": life.rate.runs,
        "interval": life.rate.interval,
        "archs": life.archs,
        "passes": life.passes,
        "passes_needed": life.passes_needed,
        "link": life.link,
        "until": life.until,
        "sessions": known.sessions,
        "cases": known.met,
        "target": known.signature.target,
        "what": what(known.signature),
        "message": known.best.message,
        "file": known.best.file,
    }


def _told(step: Step) -> str:
    match step:
        case Seen():
            why = f"; the corpus explains it ({step.link})" if step.known else ""
            return f"{step.night}: {step.failed} of {step.runs} runs failed on {step.arch}{why}"
        case Replayed():
            return f"replayed: {step.failed} of {step.runs} runs failed on {step.arch}"
        case Expected():
            where = f" on {', '.join(step.archs)}" if step.archs else ""
            return f"expected{where}{f' until {step.until}' if step.until else ''}: {step.link}"
        case _:
            return "not expected"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
