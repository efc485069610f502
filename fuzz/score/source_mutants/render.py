"""A SourceScore for users: tables in Markdown."""

from __future__ import annotations

from fuzz.score.source_mutants.results import SourceScore

STATUSES = ("found", "missed", "not_reached", "stillborn", "fault")


def table(score: SourceScore) -> str:
    """Tables by operator, by package, by what found them; the survivors; and a line of the whole."""
    rows = [*_counts("operator", score.operators), "", *_counts("package", score.packages)]
    rows += ["", "| found by | mutants |", "| --- | --- |", *(f"| {name} | {n} |" for name, n in score.checks.items())]
    rows += ["", "| not found | place | line | with |", "| --- | --- | --- | --- |"]
    for one in score.survivors:
        m = one.mutant
        rows.append(f"| {one.status.replace('_', ' ')} | {m.file}:{m.line} | `{m.before}` | `{m.after}` |")
    return "\n".join([*rows, "", line(score)])


def line(score: SourceScore) -> str:
    """The whole score in a sentence."""
    found, missed = score.statuses.get("found", 0), score.statuses.get("missed", 0)
    left = ", ".join(f"{score.statuses.get(name, 0)} {name.replace('_', ' ')}" for name in STATUSES[2:])
    return (
        f"{found} of {found + missed} one-line changes of {score.target} that a session of {score.cases} cases comes "
        f"to were found ({score.rate:.1%}), after {score.median_cases:g} cases in the median and {score.worst_cases} "
        f"at worst; besides {left}. {score.seconds:.0f} s in all."
    )


def _counts(title: str, counts: dict[str, dict[str, int]]) -> list[str]:
    head = [f"| {title} | " + " | ".join(name.replace("_", " ") for name in STATUSES) + " |", "| --- " * 6 + "|"]
    return head + [
        f"| {name} | " + " | ".join(str(row.get(status, 0)) for status in STATUSES) + " |"
        for name, row in counts.items()
    ]
