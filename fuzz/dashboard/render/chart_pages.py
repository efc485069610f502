"""The charts of each page, out of the site's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.dashboard.model import Coverage, Nights, Performance, Series, Shift, Throughput
from fuzz.dashboard.render.charts import Chart, bars, lines
from fuzz.dashboard.render.heat_map import heat_map

MOST_SERIES = 24  # charts of a section
MOST_FLAKY = 6  # targets in the chart of flakes


def coverage_charts(coverage: Coverage) -> list[Chart]:
    """The heat map, and the curve of covered pairs over cases."""
    if not coverage.features:
        return []
    growth = coverage.growth
    last = growth[-1] if growth else None
    curve = lines(
        "growth",
        "Covered pairs over cases",
        f"{last.pairs:,} pairs of {last.features:,} features after {last.cases:,} cases; options of targets count too."
        if last
        else "",
        [one.night for one in growth],
        {"pairs": [one.pairs for one in growth]},
        number="0,0",
        x=[one.cases for one in growth],
        x_label="cases",
        unit="pairs",
    )
    return [heat_map("heat", coverage), curve]


def night_charts(nights: Nights) -> list[tuple[str, list[Chart]]]:
    """Throughput, cache and hangs by device; flakes by target."""
    if not nights.throughput:
        return []
    places = list(dict.fromkeys(one.night for one in nights.throughput))

    def by_device(value: Callable[[Throughput], float | None]) -> dict[str, list[float | None]]:
        known = {(one.night, one.device): value(one) for one in nights.throughput}
        devices = dict.fromkeys(one.device for one in nights.throughput)
        return {device: [known.get((night, device)) for night in places] for device in devices}

    def sums(value: Callable[[Throughput], float]) -> dict[str, list[float]]:
        return {device: [v or 0.0 for v in values] for device, values in by_device(value).items()}

    newest = [one for one in nights.throughput if one.night == places[-1]]
    lost = sum(one.hang_seconds for one in newest)
    spent = sum(one.seconds for one in newest)
    kernels, cached = sum(one.kernels for one in newest), sum(one.cached for one in newest)
    rate = ", ".join(f"{one.per_second:.2g} on {one.device}" for one in newest)
    cost = [
        lines("rate", "Throughput", f"Cases in a second of one worker; in the newest night {rate}.", places,
              by_device(lambda one: one.per_second or None), unit="cases/s", from_zero=True),
        bars("cases", "Cases", f"{sum(one.cases for one in newest):,} in the newest night.", places,
             sums(lambda one: one.cases), number="0,0", unit="cases"),
        bars("hangs", "Seconds lost to hangs",
             f"{lost:,.0f} s of {spent:,.0f} s in the newest night ({lost / max(spent, 1e-9):.0%}).", places,
             sums(lambda one: one.hang_seconds), unit="s"),
        lines("cache", "Kernels out of the cache",
              f"{cached} of {kernels} in the newest night." if kernels else "The newest night compiled none ahead.",
              places, by_device(lambda one: one.cached / one.kernels if one.kernels else None), number="0%",
              from_zero=True),
        bars("failing", "Cases that failed", f"{sum(one.failing for one in newest):,} in the newest night.", places,
             sums(lambda one: one.failing), number="0,0", unit="cases"),
    ]  # fmt: skip
    if not any(one.kernels for one in nights.throughput):
        cost = [chart for chart in cost if chart.id != "cache"]
    return [("Cost and yield", cost), ("Flakes", _flakes(nights, places))]


def performance_charts(found: Performance) -> list[tuple[str, list[Chart]]]:
    """A chart for each series, those with a change point first."""
    named = (
        ("kernel", "Bundled kernels in sessions: median seconds of a case's kernel"),
        ("benchmark", "Benchmarks"),
        ("scoreboard", "Scoreboard: mutants"),
    )
    sections = []
    for group, title in named:
        mine = [one for one in found.series if one.group == group]
        mine.sort(key=lambda one: -len(one.shifts))
        sections.append((title, [_series(f"{group}{i}", one) for i, one in enumerate(mine[:MOST_SERIES])]))
    return sections


def _flakes(nights: Nights, places: Sequence[str]) -> list[Chart]:
    totals: dict[str, int] = {}
    for one in nights.flakes:
        totals[one.target] = totals.get(one.target, 0) + one.flakes
    worst = sorted(totals, key=lambda target: -totals[target])[:MOST_FLAKY]
    if not worst:
        return []
    share = {(one.night, one.target): one.flakes / one.cases for one in nights.flakes if one.cases}
    summary = "Share of a target's cases whose repeats did not agree, or that failed in some runs only."
    series = {target: [share.get((night, target)) for night in places] for target in worst}
    return [lines("flakes", "Flake rate by target", summary, places, series, number="0.[0]%", from_zero=True)]


def _series(name: str, one: Series) -> Chart:
    last = one.points[-1]
    shifts = [_shift(one, shift) for shift in one.shifts]
    told = f"Change points: {'; '.join(shifts)}." if shifts else "No change point."
    return lines(
        name,
        one.name,
        f"{len(one.points)} values, the newest {last.value:.4g} {one.unit}. {told}",
        [point.place for point in one.points],
        {one.name: [point.value for point in one.points]},
        number="0.[000]",
        marks=[shift.index for shift in one.shifts],
        unit=one.unit,
    )


def _shift(one: Series, shift: Shift) -> str:
    """'2026-11-20: 1.2 to 1.5 s (+25%, p 0.003)'."""
    change = f"{shift.after / shift.before - 1:+.0%}, " if shift.before else ""
    place = one.points[shift.index].place
    return f"{place}: {shift.before:.4g} to {shift.after:.4g} {one.unit} ({change}p {shift.p:.1g})"
