"""Fills the templates: every page of the site as text, by its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fuzz.dashboard.collect.news import OPEN
from fuzz.dashboard.model import Change, Site
from fuzz.dashboard.render import filters
from fuzz.dashboard.render.chart_pages import coverage_charts, night_charts, performance_charts
from fuzz.dashboard.render.charts import Chart
from fuzz.dashboard.render.heat_map import labels
from fuzz.dashboard.render.reproduce import script
from fuzz.dashboard.render.rows import Row

PAGES = (
    ("index", "Last night"),
    ("signatures", "Signatures"),
    ("coverage", "Coverage"),
    ("nights", "Nights"),
    ("performance", "Performance"),
)
DATA = ("news", "signatures", "coverage", "nights", "performance")


def pages(
    site: Site, files: Sequence[str] = (), timelines: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, Sequence[Chart]]]:
    """Path, text and charts of every page.

    files      of users' own targets, for their scripts and commands
    timelines  by signature: path of its timeline in the site
    """
    rows = [Row(bug, files) for bug in site.signatures]
    environment = _environment(site)
    yield from _tables(environment, site, rows)
    yield from _charts(environment, site)
    page = environment.get_template("signature.html.j2")
    for row in rows:
        text, reason = script(row.bug, files)
        shown: dict[str, Any] = {name: getattr(row, name) for name in ("places", "waits", "text", "met")}
        about = {"row": row, "script": text, "no_script": reason, "timeline": (timelines or {}).get(row.bug.uid, "")}
        where = f"signature/{row.page}.html"
        yield where, page.render(here="signature", root="../", charts=(), stacks=(), **shown, **about), ()


def change(one: Change) -> Markup:
    """A change of the environment in a line."""
    name = "attnfuzz" if one.name == "revision" else one.name
    if one.name == "revision":
        before, after = (text[:12] + "+" * text.endswith("+") for text in (one.before, one.after))
    else:
        before, after = one.before, one.after
    line = Markup("<strong>{}</strong> {} → {}").format(name, before or "none", after or "none")
    return line + Markup(' <span class="quiet">on {}</span>').format(", ".join(one.where))


def _environment(site: Site) -> Environment:
    made = Environment(
        loader=PackageLoader("fuzz.dashboard.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({name: getattr(filters, name) for name in ("moment", "days", "shorten", "figure", "linked")})
    made.tests["match_emulated"] = lambda arch: str(arch).startswith("emulated")
    made.globals.update(site=site, pages=PAGES, data_files=DATA, change=change)
    return made


def _tables(environment: Environment, site: Site, rows: Sequence[Row]) -> Iterator[tuple[str, str, Sequence[Chart]]]:
    still = [row for row in rows if row.bug.state in OPEN]
    for name, shown in (("index", still), ("signatures", rows)):
        text = environment.get_template(f"{name}.html.j2").render(
            here=name,
            root="",
            charts=(),
            rows=rows,
            open_rows=still,
            other=len(rows) - len(still),
            by_uid={row.bug.uid: row for row in rows},
            states=list(dict.fromkeys(row.bug.state for row in shown)),
            targets=sorted({row.bug.target for row in shown}),
        )
        yield f"{name}.html", text, ()


def _charts(environment: Environment, site: Site) -> Iterator[tuple[str, str, Sequence[Chart]]]:
    drawn = coverage_charts(site.coverage)
    page = environment.get_template("coverage.html.j2")
    yield "coverage.html", page.render(here="coverage", root="", charts=drawn, legend=labels()), drawn
    rule = site.performance.rule + " Dashed lines are change points."
    both = (
        ("nights", "Nights", "What the nights cost and gave.", night_charts(site.nights)),
        ("performance", "Performance", rule, performance_charts(site.performance)),
    )
    page = environment.get_template("charts.html.j2")
    for name, heading, lead, sections in both:
        drawn = [chart for _, part in sections for chart in part]
        text = page.render(here=name, root="", charts=drawn, heading=heading, lead=lead, sections=sections)
        yield f"{name}.html", text, drawn
