"""Source mutants: what sessions found of one-line changes of the kernels' Python source, from ci/results."""

from __future__ import annotations

from collections import Counter
from typing import Any

from docs.generate.results import load

RESULTS = {  # by name of the result: where its sessions ran
    "source_mutants_sdpa_host": "Triton's interpreter",
    "source_mutants_blocksparse_h200": "H200",
    "source_mutants_blocksparse_host": "emulated GPU",
}


def table() -> str:
    """A row for each measurement, and one of all."""
    total = Counter[str]()
    lines = [
        "| source | where | mutants | found | missed | not reached | cases until found | result |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, where in RESULTS.items():
        result = load(name)
        counts = result["statuses"]
        total.update(counts)
        until = f"median {result['median_cases']:g}, worst {result['worst_cases']}"
        cells = [f"`{result['target']}`", where, str(result["count"]), *_counts(counts), until]
        lines.append(f"| {' | '.join(cells)} | `ci/results/{name}.json` |")
    return "\n".join([*lines, "", f"{summary(total)} {_again()}".strip()])


def summary(counts: Counter[str]) -> str:
    """'200 mutants: 130 found, 55 missed, 15 not reached: 70% of those that a session comes to.'"""
    found, missed, not_reached = _counts(counts)
    others = "".join(f", {counts[name]} {name}" for name in ("stillborn", "fault") if counts[name])
    share = counts["found"] / (counts["found"] + counts["missed"])
    return (
        f"{counts.total()} mutants: {found} found, {missed} missed, {not_reached} not reached{others}. Of those that a "
        f"session comes to, {share:.0%} were found."
    )


def _again() -> str:
    """The missed ones that whole sessions find, on the emulated GPU, as cases are drawn since."""
    tried = [one for name in RESULTS for one in load(name).get("again", ())]
    found = [one["cases"] for one in tried if one["status"] == "found"]
    if not found:
        return ""
    return (
        f"{len(tried)} of the others were tried again in whole sessions on the emulated GPU, with the gaps below "
        f"closed: {len(found)} were found, after {min(found)} to {max(found)} cases."
    )


def readings() -> str:
    """The survivors by what their reading says, each measurement's own."""
    lines = []
    for name, where in RESULTS.items():
        result = load(name)
        read: dict[str, str] = result.get("survivors_by_reading", {})
        places = [_place(one) for one in result["survivors"]]
        counts = Counter(read.get(place, "not examined") for place in places)
        lines.append(f"- `{result['target']}`, {where}:")
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        lines += [f"    - {count} {text}" for text, count in ordered]
    return "\n".join(lines)


def _place(survivor: dict[str, Any]) -> str:
    return f"{survivor['mutant']['file']}:{survivor['mutant']['line']}"


def _counts(counts: dict[str, int]) -> list[str]:
    return [str(counts.get(status, 0)) for status in ("found", "missed", "not_reached")]
