"""Fills the templates: every page of the site as text, by its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fuzz.dashboard.collect.news import OPEN
from fuzz.dashboard.model import Change, Site
from fuzz.dashboard.render import filters
from fuzz.dashboard.render.chart_pages import coverage_charts, night_charts, performance_charts
from fuzz.dashboard.render.charts import Chart
from fuzz.dashboard.render.heat_map import labels
from fuzz.dashboard.render.listing import listing
from fuzz.dashboard.render.reproduce import script
from fuzz.dashboard.render.rows import Row

PAGES = (
    ("index", "Last night"),
    ("signatures", "Signatures"),
    ("coverage", "Coverage"),
    ("nights", "Nights"),
    ("performance", "Performance"),
)
MOST_NEWS = 50  # signatures that the first page names of each kind of news
DATA = ("news", "signatures", "coverage", "nights", "performance")


@dataclass(frozen=True)
class Page:
    """A page: its path in the site, its text, its charts."""

    path: str
    text: str
    charts: Sequence[Chart] = ()


def pages(
    site: Site, files: Sequence[str] = (), timelines: Mapping[str, str] | None = None
) -> tuple[Site, Iterator[Page]]:
    """The site with what is shown of its signatures (render/listing.py), and its pages.

    files      of users' own targets, for their scripts and commands
    timelines  by signature: path of its timeline in the site
    """
    environment = _environment()
    template = environment.get_template("signature.html.j2")

    def page(row: Row) -> str:
        text, reason = script(row.bug, files)
        shown: dict[str, Any] = {name: getattr(row, name) for name in ("places", "waits", "text", "met")}
        about = {"row": row, "script": text, "no_script": reason, "timeline": (timelines or {}).get(row.bug.uid, "")}
        return template.render(site=site, here="signature", root="../", charts=(), stacks=(), **shown, **about)

    made = listing(site.signatures, files, page)
    news = msgspec.structs.replace(site.news, unlisted=made.left)
    site = msgspec.structs.replace(site, news=news, signatures=tuple(row.bug for row in made.rows))
    environment.globals["site"] = site
    own = (Page(path, text) for path, text in made.pages.items())
    return site, chain(_tables(environment, site, made.rows), _charts(environment, site), own)


def change(one: Change) -> Markup:
    """A change of the environment in a line."""
    name = "attnfuzz" if one.name == "revision" else one.name
    if one.name == "revision":
        before, after = (text[:12] + "+" * text.endswith("+") for text in (one.before, one.after))
    else:
        before, after = one.before, one.after
    line = Markup("<strong>{}</strong> {} → {}").format(name, before or "none", after or "none")
    return line + Markup(' <span class="quiet">on {}</span>').format(", ".join(one.where))


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fuzz.dashboard.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({name: getattr(filters, name) for name in ("moment", "days", "shorten", "figure", "linked")})
    made.tests["match_emulated"] = lambda arch: str(arch).startswith("emulated")
    made.globals.update(most_news=MOST_NEWS, pages=PAGES, data_files=DATA, change=change)
    return made


def _tables(environment: Environment, site: Site, rows: Sequence[Row]) -> Iterator[Page]:
    with_page = [row for row in rows if row.bug.state in OPEN and row.bug.page]
    for name, shown in (("index", with_page), ("signatures", rows)):
        text = environment.get_template(f"{name}.html.j2").render(
            here=name,
            root="",
            charts=(),
            rows=rows,
            open_rows=with_page,
            more_open=site.news.open - len(with_page),
            other=len(rows) + site.news.unlisted - site.news.open,
            by_uid={row.bug.uid: row for row in rows},
            states=list(dict.fromkeys(row.bug.state for row in shown)),
            targets=sorted({row.bug.target for row in shown}),
        )
        yield Page(f"{name}.html", text)


def _charts(environment: Environment, site: Site) -> Iterator[Page]:
    drawn = coverage_charts(site.coverage)
    page = environment.get_template("coverage.html.j2")
    text = page.render(here="coverage", root="", charts=drawn, legend=labels())
    yield Page("coverage.html", text, drawn)
    rule = site.performance.rule + " Dashed lines are change points."
    both = (
        ("nights", "Nights", "What the nights cost and gave.", night_charts(site.nights)),
        ("performance", "Performance", rule, performance_charts(site.performance)),
    )
    page = environment.get_template("charts.html.j2")
    for name, heading, lead, sections in both:
        drawn = [chart for _, part in sections for chart in part]
        text = page.render(here=name, root="", charts=drawn, heading=heading, lead=lead, sections=sections)
        yield Page(f"{name}.html", text, drawn)
