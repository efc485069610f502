"""The table of what bounds each pass on Hopper: blocksparse_units_h200.json."""

from __future__ import annotations

from typing import Any

from docs.generate.results import load

UNITS = {
    "tensor": "tensor cores",
    "shared": "shared memory",
    "l1": "L1",
    "exponentials": "exponentials",
    "l2": "L2",
    "issue": "issue slots",
}


def table() -> str:
    """One line a pass: ours, and FlashAttention-4 behind a slash; percent, the busiest unit in bold."""
    lines = [
        "| pass, problem | us of the main kernel | " + " | ".join(UNITS.values()) + " |",
        "| --- | --- |" + " --- |" * len(UNITS),
    ]
    rows = load("blocksparse_units_h200")["rows"]
    found = {(row["pass"], row["problem"], row["name"]): row for row in rows}
    for which, problem in sorted({(row["pass"], row["problem"]) for row in rows}, reverse=True):
        both = [found.get((which, problem, name)) for name in ("ours", "FlashAttention-4")]
        cells = [" / ".join(_share(row, unit) for row in both) for unit in UNITS]
        times = " / ".join(f"{row['us']:,.0f}" if row else "-" for row in both)
        lines.append(f"| {which}, {problem} | {times} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(row: dict[str, Any] | None, unit: str) -> str:
    """A unit's share; '-' where the pass was not counted."""
    if row is None:
        return "-"
    shares = row["units"]
    text = f"{shares[unit]:.0f}"
    return f"**{text}**" if unit == max(UNITS, key=lambda one: shares[one]) else text
