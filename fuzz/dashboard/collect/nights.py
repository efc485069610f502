"""Figures of each night by device: cases, seconds, hangs, kernels out of the cache; flakes by target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.dashboard.model import Flakes, Nights, Throughput

if TYPE_CHECKING:
    import pandas as pd


def nights(sessions: pd.DataFrame, tallies: pd.DataFrame, compiles: pd.DataFrame) -> Nights:
    """All nights, the oldest first. The frames are those of fuzz.ledger.query.read."""
    device = dict(zip(sessions["session"], sessions["device"], strict=True))
    tallies = tallies.assign(device=tallies["session"].map(device))
    compiles = compiles.assign(device=compiles["session"].map(device))
    hung = tallies[tallies["outcome"] == "hang"].groupby(["night", "device"])[["cases", "seconds"]].sum()
    asked = compiles.groupby(["night", "device"])[["kernels", "seconds"]].sum()
    cached = compiles[compiles["status"] == "cached"].groupby(["night", "device"])["kernels"].sum()
    found = []
    for (night, where), rows in sessions.groupby(["night", "device"], sort=False):
        key, cases, seconds = (night, where), int(rows["cases"].sum()), float(rows["seconds"].sum())
        hangs = hung.loc[key] if key in hung.index else {"cases": 0, "seconds": 0.0}
        kernels = asked.loc[key] if key in asked.index else {"kernels": 0, "seconds": 0.0}
        found.append(
            Throughput(
                night=str(night),
                device=str(where) or "unknown",
                sessions=len(rows),
                cases=cases,
                failing=int(rows["failing"].sum()),
                seconds=round(seconds, 2),
                per_second=round(cases / seconds, 3) if seconds else 0.0,
                hangs=int(hangs["cases"]),
                hang_seconds=round(float(hangs["seconds"]), 2),
                kernels=int(kernels["kernels"]),
                cached=int(cached.get(key, 0)),
                compile_seconds=round(float(kernels["seconds"]), 2),
            )
        )
    return Nights(tuple(found), _flakes(tallies))


def _flakes(tallies: pd.DataFrame) -> tuple[Flakes, ...]:
    """By night and target, of the targets that ever had one."""
    ran = tallies[tallies["outcome"] != "reject"]
    flaky = ran[ran["outcome"] == "flake"]
    ran = ran[ran["target"].isin(set(flaky["target"]))]
    counts = flaky.groupby(["night", "target"])["cases"].sum()
    return tuple(
        Flakes(str(night), str(target), int(counts.get((night, target), 0)), int(cases))
        for (night, target), cases in ran.groupby(["night", "target"], sort=False)["cases"].sum().items()
    )
