"""Labelled race suites: found of labelled bugs, and false alarms, from ci/results/race_suites_host.json."""

from __future__ import annotations

from typing import Any

from docs.generate.results import load

RESULT = "race_suites_host"
# Races found by each tool in Table I of HiRace's artifact (results/paper_figures), by input.
PUBLISHED = {
    "DAG_100n_200e": (346, 298, 92),
    "DAG_200n_400e": (346, 298, 92),
    "DAG_5n_5e": (182, 118, 92),
    "counterDAG_200n_1000e": (346, 298, 56),
    "counterDAG_5n_5e": (295, 148, 92),
    "power_law_200n_1000e": (346, 297, 128),
}


def suites() -> str:
    """A row for each suite and set of checks, over all its inputs."""
    result = load(RESULT)
    lines = [
        "| suite, checks | kernels | races found | false alarms | out of bounds found | false alarms | launches | "
        "minutes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, one in result["suites"].items():
        cells = [
            title,
            str(one["kernels"]),
            *_cells(one["counts"]),
            f"{one['launches']:,}",
            f"{one['seconds'] / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    machine = result["machine"]
    lines += [
        "",
        f"{machine['date'][:10]}, commit `{result['commit']}`, {machine['cpu']}, one core; NVRTC "
        f"{machine['nvidia-cuda-nvrtc']}, numba {machine['numba']}, Python {machine['python']}. `{machine['command']}`",
    ]
    return "\n".join(lines)


def inputs() -> str:
    """A row for each of Indigo's inputs alone, beside what other tools found on it."""
    grades = {title: one for title, one in load(RESULT)["suites"].items() if title.startswith("Indigo")}
    lines = [
        f"| input | {' | '.join(f'races: {title[8:]}' for title in grades)} | HiRace | iGUARD | Compute Sanitizer | "
        "false alarms | out of bounds found |",
        f"| --- |{' --- |' * (len(grades) + 5)}",
    ]
    for name, others in PUBLISHED.items():
        here = [one["on_input"][name] for one in grades.values()]
        alarms = max(count["alarms"] for counts in here for count in counts.values())
        cells = [f"`{name}`", *(str(counts["data race"]["found"]) for counts in here), *map(str, others), str(alarms)]
        lines.append(f"| {' | '.join(cells)} | {here[0]['out of bounds']['found']} |")
    return "\n".join(lines)


def differences() -> str:
    """The kernels whose label and findings differ, by the reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for title, one in load(RESULT)["suites"].items():
        for differs in one["differs"]:
            by_reason.setdefault((title, differs["reason"] or "not examined"), []).append(differs["kernel"])
    lines = [f"- *{title}*: {why} ({_names(names)})" for (title, why), names in by_reason.items()]
    return "\n".join(lines) or "There is none."


def _cells(counts: dict[str, Any]) -> list[str]:
    cells = []
    for what in ("data race", "out of bounds"):
        count = counts.get(what)
        cells += ["–", "–"] if count is None else [
            f"{count['found']} of {count['buggy']}", f"{count['alarms']} of {count['correct']}",
        ]  # fmt: skip
    return cells


def _names(names: list[str]) -> str:
    return f"{len(names)} kernels: {', '.join(f'`{name}`' for name in names)}" if len(names) > 1 else f"`{names[0]}`"
