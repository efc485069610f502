"""Figures over time with their change points: kernels in sessions, benchmarks, the scoreboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.dashboard.collect.change_points import RULE, change_points
from fuzz.dashboard.collect.when import iso
from fuzz.dashboard.model import Performance, Point, Series

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"  # the phase of a case in which the kernel runs
BUNDLED = ("sdpa", "blocksparse")
SCOREBOARD = "scoreboard"


def performance(timings: pd.DataFrame, measurements: pd.DataFrame) -> Performance:
    """All series, each with at least two points. The frames are those of fuzz.ledger.query.read."""
    return Performance(RULE, (*_kernels(timings), *_measured(measurements)))


def _kernels(timings: pd.DataFrame) -> list[Series]:
    """Bundled kernels in sessions: the median over a night's cases of the `run` phase; of several sessions the mean of
    their medians, by cases. Cases differ from night to night, so small steps are no news."""
    bundled = timings["target"].str.split("!").str[0].isin(BUNDLED) & ~timings["target"].str.contains("!")
    rows = timings[bundled & (timings["phase"] == RUN)].fillna({"arch": "an unknown arch"})
    found = []
    for (target, arch), part in rows.groupby(["target", "arch"], sort=True):
        weighed = part.assign(sum=part["p50"] * part["cases"]).groupby("night", sort=False)[["sum", "cases"]].sum()
        points = tuple(
            Point(str(night), float(f"{row['sum'] / row['cases']:.4g}"), str(night))
            for night, row in weighed.iterrows()
            if row["cases"]
        )
        if len(points) > 1:
            shifts = change_points([point.value for point in points])
            found.append(Series(f"{target} on {arch}", "kernel", "s", points, shifts))
    return found


def _measured(measurements: pd.DataFrame) -> list[Series]:
    found = []
    for (name, unit), rows in measurements.groupby(["series", "unit"], sort=True):
        points = tuple(
            Point(iso(at), float(value), str(commit)[:12])
            for at, value, commit in zip(rows["at"], rows["value"], rows["commit"], strict=True)
        )
        if len(points) > 1:
            group = SCOREBOARD if str(name).startswith(SCOREBOARD) else "benchmark"
            shifts = change_points([point.value for point in points])
            found.append(Series(str(name), group, str(unit), points, shifts))
    return found
