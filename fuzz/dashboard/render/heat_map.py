"""Feature x feature: a cell is a pair of features, its colour the share of its cases that failed."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d

from fuzz.dashboard.model import Coverage
from fuzz.dashboard.render.charts import Chart, Grid, as_json, blank

PASSING = "#9ecae1"
FAILING = ("#fee391", "#fec44f", "#fe9929", "#d95f0e", "#993404")  # ColorBrewer YlOrBr
STEPS = (0.01, 0.05, 0.2, 0.5)  # shares at which the colours change
CELL, MARGIN = 13, 170
MOST_ROWS = 50


def colour(cases: int, failed: int) -> str:
    """The colour of a pair that was covered."""
    if not failed:
        return PASSING
    return FAILING[sum(failed / cases > step for step in STEPS)]


def labels() -> list[tuple[str, str]]:
    """The legend: colour and meaning."""
    ends = [f"up to {step:.0%} of the cases fail" for step in STEPS] + ["more"]
    return [(PASSING, "none fails"), *zip(FAILING, ends, strict=True)]


def heat_map(name: str, coverage: Coverage) -> Chart:
    """The lower triangle of all pairs; on the diagonal features alone. Its table has the pairs that fail most."""
    names, count = coverage.features, len(coverage.features)
    known = {(a, b): (cases, failed) for a, b, cases, failed in coverage.pairs}
    every = [(a, b) for b in range(count) for a in range(b + 1)]
    covered = [pair for pair in every if pair in known]
    height = max(count * CELL + MARGIN, 240)
    made = blank(height=height, x_range=_range(-0.5, count - 0.5), y_range=_range(count - 0.5, -0.5))
    made.grid.grid_line_color = None
    source = ColumnDataSource(
        {
            "x": [a for a, _ in covered],
            "y": [b for _, b in covered],
            "a": [names[a] for a, _ in covered],
            "b": [names[b] for _, b in covered],
            "cases": [known[pair][0] for pair in covered],
            "failed": [known[pair][1] for pair in covered],
            "colour": [colour(*known[pair]) for pair in covered],
        }
    )
    cells = made.rect("x", "y", 0.92, 0.92, source=source, fill_color="colour", line_color=None)
    tips = [("", "@a × @b"), ("cases", "@cases{0,0}"), ("failed", "@failed{0,0}")]
    made.add_tools(HoverTool(renderers=[cells], tooltips=tips))
    never = [pair for pair in every if pair not in known]
    gaps = ColumnDataSource(
        {"x": [a for a, _ in never], "y": [b for _, b in never], "a": [names[a] for a, _ in never],
         "b": [names[b] for _, b in never]}
    )  # fmt: skip
    blanks = made.scatter("x", "y", source=gaps, marker="x", size=5, color="#888888", alpha=0.8)
    made.add_tools(HoverTool(renderers=[blanks], tooltips=[("", "@a × @b"), ("cases", "never covered")]))
    for axis in (made.xaxis, made.yaxis):
        axis.ticker = FixedTicker(ticks=list(range(count)))
        axis.major_label_overrides = dict(enumerate(names))
        axis.major_label_text_font_size = "10px"
    made.xaxis.major_label_orientation = "vertical"
    failing = sum(known[pair][1] > 0 for pair in covered)
    summary = (
        f"{count} features: of {len(every)} pairs {len(covered)} were run, {len(never)} never; "
        f"in {failing} at least one case failed."
    )
    return Chart(name, "Features by features", summary, as_json(made, name), height, _worst(coverage))


def _range(start: float, end: float) -> Range1d:
    return Range1d(start=start, end=end)


def _worst(coverage: Coverage) -> Grid:
    """The pairs of which the largest share fails, of those with at least five cases."""
    rows = [(failed / cases, cases, failed, a, b) for a, b, cases, failed in coverage.pairs if failed and cases >= 5]
    rows.sort(reverse=True)
    names = coverage.features
    return Grid(
        ("feature", "and", "cases", "failed", "share"),
        tuple(
            (names[a], names[b] if a != b else "(alone)", cases, failed, f"{share:.1%}")
            for share, cases, failed, a, b in rows[:MOST_ROWS]
        ),
    )
