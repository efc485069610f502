"""The table of measurements, and the README's headlines, from ci/results/*.json."""

from __future__ import annotations

from docs.generate.results import Row, load
from docs.generate.rows import SECTIONS, SPEEDS, row
from docs.generate.rows import speed as spread_of


def table(rows: tuple[Row, ...]) -> str:
    """A section: values with their machine, commit, date and age, then the commands."""
    lines = ["| what | value | machine | commit, date | code since |", "| --- | --- | --- | --- | --- |"]
    for r in rows:
        mark = r.age if r.age in ("current", "unknown") else f"**{r.age}**"
        commit = f"`{r.measured_commit}`<br>{r.measured_date}"
        lines.append(f"| {r.what} | {r.shown} | {r.measured_machine} | {commit} | {mark} |")
    lines += ["", '??? note "Commands and results"', ""]
    for result in dict.fromkeys(r.result for r in rows):
        first = next(r for r in rows if r.result == result)
        lines.append(f"    - `{first.file}`: `{first.measured_command}`")
    return "\n".join(lines)


def page() -> str:
    """Every section."""
    return "\n\n".join(f"## {name}\n\n{table(rows)}" for name, rows in SECTIONS.items())


def headlines() -> str:
    """Six figures for the README. Their age is in the full table, so that this text changes with results only."""
    chosen = (
        (
            "mutants found in cases as a session draws them, one to five seeds each",
            row("score_host", "mutants found, one"),
        ),
        (
            "the same in 20 cases of one seed, and by other projects' rules",
            row("score_host", "mutants found in 20"),
        ),
        ("mutants of the kernels' PTX found, without a GPU", row("ptx_mutants_host", "one-line")),
        ("false alarms since the last one", row("no_false_alarm_host", "false alarms")),
        (
            "emulated GPU and H100: cases with the same verdict; largest error / budget",
            row("emulator_vs_sm_90", "cases"),
        ),
        (
            "`blocksparse` backward, speed over compiled FlexAttention's",
            row("blocksparse_speed_h200", "backward, atomic"),
        ),
    )
    lines = ["| what | measured | machine | result |", "| --- | --- | --- | --- |"]
    lines += [f"| {what} | {r.shown} | {r.measured_machine} | `{r.file}` |" for what, r in chosen]
    return "\n".join(lines)


def speed() -> str:
    """Table of the block-sparse kernels' speed, by head dim."""
    name = "blocksparse_speed_h200"
    lines = ["| speed as a multiple of compiled FlexAttention's | head dim 64 | head dim 128 |", "| --- | --- | --- |"]
    for text, direction, ratio in SPEEDS:
        values = [spread_of(direction, ratio, dim)(load(name)) for dim in (64, 128)]
        lines.append(f"| {text} | {values[0]} | {values[1]} |")
    return "\n".join(lines)
