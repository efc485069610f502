"""Surface coverage of the targets, before and after the adapters gave every parameter: from ci/results."""

from __future__ import annotations

from typing import Any

from docs.generate.results import load

BEFORE, AFTER = "surface_coverage_before", "surface_coverage"


def table() -> str:
    """A row for each function of each target: parameters and pairs of them that a session gave."""
    before, after = load(BEFORE), load(AFTER)
    lines = [
        f"Cases of each target: {before['cases']} before ({before['commit']}), {after['cases']} after, seed "
        f"{after['seed']}. `{after['machine']['command']}`",
        "",
        "| target | function | parameters before | after | pairs before | after | without a reason |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label, rows in sorted(after["targets"].items()):
        for row in rows:
            old = _row(before, label, row["function"])
            unexplained = [name for name, why in row["never"].items() if not why] if row["cases"] else ["not called"]
            unexplained += row["pairs_unexplained"]
            cells = [
                f"`{label}`",
                f"`{row['function']}`",
                _of(old, "given", "parameters"),
                _of(row, "given", "parameters"),
                _of(old, "pairs_given", "pairs"),
                _of(row, "pairs_given", "pairs"),
                ", ".join(unexplained) or "–",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\nNot measured: `{label}`: {why}" for label, why in sorted(after["not_measured"].items())]
    return "\n".join(lines)


def reasons() -> str:
    """The parameters that are never given, by function, with the reasons of the adapters."""
    found: dict[str, dict[str, str]] = {}
    for rows in load(AFTER)["targets"].values():
        for row in rows:
            found.setdefault(row["function"], {}).update({n: why for n, why in row["never"].items() if why})
    lines = []
    for function, never in sorted(found.items()):
        if never:
            lines += [f"**`{function}`**", "", *(f"- `{name}`: {why}" for name, why in never.items()), ""]
    return "\n".join(lines).rstrip()


def _row(result: dict[str, Any], label: str, function: str) -> dict[str, Any] | None:
    return next((row for row in result["targets"].get(label, ()) if row["function"] == function), None)


def _of(row: dict[str, Any] | None, part: str, whole: str) -> str:
    return "–" if row is None or not row["cases"] else f"{row[part]} of {row[whole]}"
