"""Sums up session folders as JSON: cases, outcomes, status of what failed, cases per second, median phases.

    python ci/summarise_sessions.py FOLDER … --out ci/results/sessions_h100.json

A worker's first case is left out of the rate: it starts the child, which takes about 10 s on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.session.records import Reader, Record

PHASES = ("draw", "inputs", "reference", "prepare", "run", "judge", "total")


def summary(folder: Path) -> dict[str, Any]:
    """One session."""
    records = list(Reader(folder).new())
    by: dict[str, list[Record]] = {}
    for record in records:
        by.setdefault(record.worker, []).append(record)
    after_first = [record for mine in by.values() for record in mine[1:]]
    passed = [record for record in after_first if record.outcome == "pass"]
    run = [record for record in after_first if record.outcome != "reject"]
    return {
        "targets": sorted({record.target for record in records}),
        "workers": len(by),
        "cases": len(records),
        "outcomes": dict(Counter(record.outcome for record in records)),
        "failures": dict(Counter(record.status for record in records if record.status)),
        "known": dict(Counter(record.finding for record in records if record.status == "known")),
        "executed_per_s_steady": round(len(run) / max(_busiest(by), 1e-9), 1),
        "median_ms_of_passing": {
            name: round(1e3 * statistics.median(r.seconds.get(name, 0.0) for r in passed), 2) for name in PHASES
        }
        if passed
        else {},
    }


def _busiest(by: dict[str, list[Record]]) -> float:
    return max(sum(r.seconds["total"] + r.seconds["draw"] for r in mine[1:]) for mine in by.values())


def publish(result: dict[str, Any], out: Path | None) -> None:
    """Prints a result as JSON, and writes it where a file is named."""
    text = json.dumps(result, indent=2)
    if out:
        out.write_text(text + "\n")
    print(text)


def main() -> None:
    """Prints and writes the summaries."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = json.loads((options.folders[0] / "session.json").read_text())["machine"]
    machine.pop("command", None)
    result = {"machine": machine, "sessions": [summary(folder) for folder in options.folders]}
    publish(result, options.out)


if __name__ == "__main__":
    main()
