"""The plan of a night before it, the table after it, and its exit code."""

from __future__ import annotations

from ci.nightly.findings import NEWS, known
from ci.nightly.options import Options
from ci.nightly.stages import STAGES
from ci.nightly.state import Done, Kept, Night

OK, FINDINGS, BROKE = 0, 1, 3


def plan(night: Kept, options: Options, last: Kept | None) -> str:
    """Stages with estimated minutes: what the last night took, the fuzzing in proportion to its cases; else a guess."""
    lines = [
        f"night {night.night}, seed {night.seed}: {options.cases} cases on {', '.join(options.devices)}; "
        f"archs {', '.join(options.archs)}; ledger {options.ledger}",
        f"{'stage':<12}{'minutes':>8}  what",
    ]
    total = 0.0
    for stage in STAGES:
        minutes, how = _estimate(stage.name, stage.minutes(options), options, last)
        if (done := night.done.get(stage.name)) is not None:
            minutes, how = 0.0, f"done: {done.status}"
        elif stage.name in options.skip:
            minutes, how = 0.0, "skipped"
        total += minutes
        lines.append(f"{stage.name:<12}{minutes:>8.0f}  {stage.what} ({how})")
    return "\n".join([*lines, f"{'together':<12}{total:>8.0f}"])


def _estimate(name: str, guess: float, options: Options, last: Kept | None) -> tuple[float, str]:
    done = last.done.get(name) if last else None
    if last is None or done is None or done.status == "skipped":
        return guess, "a guess"
    minutes = done.seconds / 60
    if name == "fuzz" and (before := last.settings.get("cases", 0)):
        minutes = min(minutes * options.cases / before, options.minutes or float("inf"))
    return minutes, f"as in night {last.night}"


def table(night: Night) -> str:
    """Table of the stages: how each ended, and its minutes."""
    lines = [f"{'stage':<12}{'result':<10}{'minutes':>8}  note"]
    for stage in STAGES:
        done = night.kept.done.get(stage.name, Done("skipped", "not reached"))
        lines.append(f"{stage.name:<12}{done.status:<10}{done.seconds / 60:>8.1f}  {done.note}")
    return "\n".join(lines)


def news(night: Night, options: Options) -> list[str]:
    """A line for each signature that is new or regressed in this night."""
    traced = {part["uid"]: part for part in night.parts("bisect")}
    lines = []
    for one in known(options):
        if one.life.state in NEWS and one.best.night == night.name:
            first = traced.get(one.uid, {}).get("first_bad")
            since = f", since {first[0]['revision'][:12]} {first[0]['title']}" if first else ""
            lines.append(f"{one.life.state:<10}{one.uid}  {one.signature.target}: {one.best.message}{since}")
    return lines


def exit_code(night: Night, lines: list[str]) -> int:
    """3 where a stage broke; 1 where something is new, or a check failed; else 0."""
    status = {name: done.status for name, done in night.kept.done.items()}
    checks = {"tests", "score"}  # whose failure is a result, not a fault of the night
    if any(one == "failed" for name, one in status.items() if name not in checks):
        return BROKE
    return FINDINGS if lines or {"failed", "findings"} & set(status.values()) else OK
