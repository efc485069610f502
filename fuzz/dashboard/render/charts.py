"""Charts as Bokeh's JSON, each with a summary in words and the same figures as a table.

Bokeh, since the script in its wheel is 1.3 MB (plotly's: 4.6 MB, half of what the site may take) and draws from JSON
without a server. Colours are Okabe and Ito's, which the colour-blind tell apart; series also differ by marker. The
site's script gives texts and grids the colours of the theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "star", "x")
TICKS = 8
HEIGHT = 260


@dataclass(frozen=True)
class Grid:
    """A table: its columns' names, and rows of cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Chart:
    """id: of its element; summary: what it shows, in words; item: for Bokeh; height: pixels; grid: the same figures."""

    id: str
    title: str
    summary: str
    item: dict[str, Any]
    height: int
    grid: Grid


def lines(
    name: str,
    title: str,
    summary: str,
    places: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    number: str = "0.[00]",
    marks: Sequence[int] = (),
    unit: str = "",
    x: Sequence[float] = (),
    x_label: str = "",
    from_zero: bool = False,
) -> Chart:
    """Lines over places (nights, commits), with a break where there is no value.

    number  format of values, of numbro. marks: places of vertical lines (change points). x: positions of the places on
    the axis, where those are numbers; else they are put side by side under their names. from_zero: of the values' axis
    """
    at = list(x) or list(range(len(places)))
    made = _figure(at, places if not x else (), number, unit, x_label)
    for i, (label, values) in enumerate(series.items()):
        source = ColumnDataSource(
            {"x": at, "y": [float("nan") if v is None else v for v in values], "at": list(places)}
        )
        colour = COLOURS[i % len(COLOURS)]
        legend = {"legend_label": label} if len(series) > 1 else {}
        made.line("x", "y", source=source, color=colour, line_width=2, **legend)
        dots = made.scatter(
            "x",
            "y",
            source=source,
            marker=MARKERS[i % len(MARKERS)],
            size=5 if len(at) > 60 else 7,
            color=colour,
            **legend,
        )
        shown = f"@y{{{number}}} {unit}".strip()
        made.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@at"), (label, shown)]))
    if marks:
        made.vspan(x=[place - 0.5 for place in marks], line_dash="dashed", line_color=COLOURS[1])
    if from_zero:
        made.y_range.start = 0
    _legend(made, len(series))
    grid = Grid(("", *series), tuple((place, *(v[i] for v in series.values())) for i, place in enumerate(places)))
    return Chart(name, title, summary, as_json(made, name), HEIGHT, grid)


def bars(
    name: str,
    title: str,
    summary: str,
    places: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    number: str = "0.[0]",
    unit: str = "",
) -> Chart:
    """Stacked bars over places."""
    at = list(range(len(places)))
    made = _figure(at, places, number, unit, "")
    made.y_range.start = 0
    data = {"x": at, "at": list(places), **{f"v{i}": list(values) for i, values in enumerate(series.values())}}
    drawn = made.vbar_stack(
        [f"v{i}" for i in range(len(series))],
        x="x",
        width=0.8,
        source=ColumnDataSource(data),
        color=list(COLOURS[: len(series)]),
        **({"legend_label": list(series)} if len(series) > 1 else {}),
    )
    for i, (label, one) in enumerate(zip(series, drawn, strict=True)):
        shown = f"@v{i}{{{number}}} {unit}".strip()
        made.add_tools(HoverTool(renderers=[one], tooltips=[("", "@at"), (label, shown)]))
    _legend(made, len(series))
    grid = Grid(("", *series), tuple((place, *(v[i] for v in series.values())) for i, place in enumerate(places)))
    return Chart(name, title, summary, as_json(made, name), HEIGHT, grid)


def blank(**options: Any) -> Any:
    """A figure without toolbar, title and background."""
    made = figure(
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **options,
    )
    made.axis.axis_line_color = made.axis.major_tick_line_color = "#888888"
    made.axis.minor_tick_line_color = None
    made.axis.major_label_text_font_size = "12px"
    made.axis.axis_label_text_font_style = "normal"
    made.grid.grid_line_alpha = 0.5
    return made


def as_json(made: Any, name: str) -> dict[str, Any]:
    """A figure as what the site's script gives to Bokeh, for the element of that id."""
    found: Any = json_item(made, name)  # type: ignore[arg-type]
    return dict(found)


def _figure(at: Sequence[float], places: Sequence[str], number: str, unit: str, x_label: str) -> Any:
    made = blank(height=HEIGHT, x_axis_label=x_label or None, y_axis_label=unit or None)
    made.xgrid.grid_line_color = None
    made.yaxis.formatter = NumeralTickFormatter(format=number)
    if places:
        step = max(1, -(-len(places) // TICKS))
        ticks = list(range(len(places) - 1, -1, -step))[::-1]  # the newest has a label
        made.xaxis.ticker = FixedTicker(ticks=ticks)
        made.xaxis.major_label_overrides = {i: _short(places[i]) for i in ticks}
        made.x_range = Range1d(start=-0.6, end=len(places) - 0.4)
    else:
        made.xaxis.formatter = NumeralTickFormatter(format="0,0")
    return made


def _short(place: str) -> str:
    """'11-23' of a date, else at most ten characters."""
    return place[5:] if len(place) == 10 and place[4] == place[7] == "-" else place[:10]


def _legend(made: Any, series: int) -> None:
    if series > 1:
        made.legend.orientation = "horizontal"
        made.legend.background_fill_color = None
        made.legend.border_line_color = None
        made.legend.padding = 0
        made.add_layout(made.legend[0], "above")
