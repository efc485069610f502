"""What users see at the end of a session: the table by target, the findings, the coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fuzz.core.features import FEATURES_OF, NATIVE_SPARSE, feature_pairs
from fuzz.core.target import Device
from fuzz.process.progress import duration
from fuzz.session.records import Record, Settlement
from fuzz.session.summary.findings import findings
from fuzz.session.summary.surface_coverage import surface_lines

if TYPE_CHECKING:
    import pandas as pd

OUTCOMES = ("pass", "fail", "flake", "hang", "crash", "reject")


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per case: target, outcome, status, seconds of the whole case."""
    import pandas as pd  # here, since with pyarrow it starts a thread, after which a session's workers cannot be forked

    rows = [(r.target, r.outcome, r.status, r.seconds.get("total", 0.0) + r.seconds.get("draw", 0.0)) for r in records]
    return pd.DataFrame(rows, columns=["target", "outcome", "status", "seconds"])


def table(records: Sequence[Record]) -> Table:
    """By target: cases, outcomes, cases per second of one worker."""
    data = frame(records)
    made = Table(title="Cases by target", title_justify="left")
    made.add_column("target")
    for name in ("cases", *OUTCOMES, "cases/s·worker"):
        made.add_column(name, justify="right")
    for name, rows in [*data.groupby("target", sort=True), ("all", data)]:
        counts = rows["outcome"].value_counts()
        spent = rows["seconds"].sum()
        cells = [_count(int(counts.get(outcome, 0)), outcome) for outcome in OUTCOMES]
        made.add_row(
            str(name), str(len(rows)), *cells, f"{len(rows) / spent:.1f}" if spent else "–", end_section=name != "all"
        )
    return made


def coverage(records: Sequence[Record]) -> str:
    """Features and pairs of features that the session covered, and those that it never drew."""
    seen: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for record in records:
        seen.update(record.features)
        pairs.update(feature_pairs(record.features))
    sparse = sum(NATIVE_SPARSE in record.features for record in records)
    ops = ["attention"] * (sparse < len(records)) + ["native_sparse_attention"] * (sparse > 0)
    every = list(dict.fromkeys(feature.name for op in ops or ["attention"] for feature in FEATURES_OF[op]))
    never = [name for name in every if not seen[name]]
    covered = sum(1 for name in every if seen[name])
    lines = [f"Features covered: {covered} of {len(every)}; pairs of features: {len(pairs)}"]
    if never:
        lines.append(f"Never drawn: {', '.join(never)}")
    rare = [f"{name} {seen[name]}" for name in sorted(every, key=lambda n: seen[n]) if seen[name]][:10]
    lines.append(f"Rarest: {', '.join(rare)}")
    return "\n".join(lines)


def show(
    records: Sequence[Record],
    seconds: float | None,
    console: Console,
    files: Sequence[str] = (),
    device: Device = "host",
    before: int = 0,
    ended: Settlement | None = None,
) -> None:
    """The end of a session on `device`.

    seconds  how long it took; None: not known
    files    as in `findings.reproduce`
    before   cases that had been run when it was resumed
    ended    what became of its failures
    """
    if not records:
        console.print("no case was run")
        return
    console.print(table(records))
    if seconds is not None:
        now = len(records) - before
        told = f"{now} cases in {duration(seconds)}: {now / max(seconds, 1e-9):.1f} cases/s in all"
        console.print(f"{before} cases before; {told}" if before else told, highlight=False)
    console.print(coverage(records), highlight=False)
    for line in surface_lines(records, tuple(files), device):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in findings(records, files, ended) or ["no new finding"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _count(number: int, outcome: str) -> str:
    if not number:
        return "·"
    colour = {"pass": "green", "reject": "yellow"}.get(outcome, "red")
    return f"[{colour}]{number}[/]"
