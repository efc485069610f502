"""GitHub Actions: the step's summary in Markdown, and annotations, which stand beside a pull request's checks."""

from __future__ import annotations

import html
import re

from fuzz.dashboard.checks.junit import met_in
from fuzz.dashboard.collect.news import OPEN
from fuzz.dashboard.model import SignatureItem, Site
from fuzz.dashboard.render.filters import days, shorten
from fuzz.dashboard.render.reproduce import command

MOST = 50  # rows of the summary's table: GitHub takes 1 MiB
MOST_ANNOTATIONS = 10  # of a step, that GitHub shows
_SPECIAL = re.compile(r"([\\`*_\[\]()#!|~])")


def summary(site: Site, files: tuple[str, ...] = ()) -> str:
    """The step's summary. files: of users' own targets, for the commands."""
    news, by_uid = site.news, {bug.uid: bug for bug in site.signatures}
    lines = [f"## attnfuzz, night {_plain(news.night or '–')}", ""]
    lines += [
        f"{news.cases:,} cases in {news.sessions} sessions, {news.failing:,} failed; {news.open} open signatures.",
        "",
    ]
    for one in news.stages:
        if one.status == "failed":
            lines += [f"**Stage {_plain(one.name)} failed**: {_plain(shorten(one.note, 300))}", ""]
    for name, uids in (("New", news.new), ("Regressed", news.regressed), ("Fixed", news.fixed)):
        lines += [f"**{name}**: {', '.join(_name(by_uid[uid]) for uid in uids) or 'none'}", ""]
    changed = [
        f"{_plain(one.name)} {_plain(one.before or 'none')} → {_plain(one.after or 'none')}" for one in news.environment
    ]
    lines += [f"**Environment**: {'; '.join(changed[:20]) or 'unchanged'}", ""]
    still = [bug for bug in site.signatures if bug.state in OPEN]
    if still:
        lines += ["| signature | state | age | fails | archs |", "| --- | --- | --- | --- | --- |"]
        lines += [_row(bug) for bug in still[:MOST]]
        lines += [f"\n{len(still) - MOST} more are open." * (len(still) > MOST), ""]
    for bug in still[:MOST]:
        if text := command(bug, files):
            body = html.escape(text, quote=False)
            lines += [f"<details><summary>Reproduce {html.escape(bug.target)}: {html.escape(bug.title)}</summary>", ""]
            lines += [f"<pre>{body}</pre>", "</details>", ""]
    return "\n".join(lines) + "\n"


def workflow_commands(site: Site) -> list[str]:
    """Workflow commands: an error for what is new or regressed, a warning for what was met again; the first of them."""
    found = []
    for bug in site.signatures:
        if bug.state not in OPEN or not met_in(bug, site.news.night):
            continue
        level = "error" if bug.state in ("new", "regressed") else "warning"
        title = _property(f"attnfuzz: {bug.state}: {bug.target}: {bug.title}")
        rate = f"{bug.failed} of {bug.runs} runs"
        found.append(f"::{level} title={title}::{_data(f'{bug.message} ({rate}; signature {bug.uid})')}")
    return found[:MOST_ANNOTATIONS]


def _row(bug: SignatureItem) -> str:
    rate = f"{bug.failed} of {bug.runs} ({100 * bug.low:.0f}–{100 * bug.high:.0f} %)"
    return f"| {_name(bug)} | {bug.state} | {days(bug.age)} | {rate} | {_plain(', '.join(bug.archs))} |"


def _name(bug: SignatureItem) -> str:
    return f"{_plain(shorten(f'{bug.target}: {bug.title}', 140))} `{re.sub('[^0-9a-z]', '', bug.uid)}`"


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
