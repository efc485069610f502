"""`attnfuzz report`: the ledger as a site, as JUnit XML, as GitHub's step summary and annotations."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from fuzz.cli.command import command
from fuzz.cli.exit_codes import OK
from fuzz.ledger import place
from fuzz.session import settings


def add_report(sub: Any) -> None:
    """Adds the command to the parser's commands."""
    made = command(
        sub,
        "report",
        report,
        "show the ledger as static pages, as JUnit XML, and where a pull request shows it",
        "attnfuzz report --out site",
        "attnfuzz report --junit results.xml --github",
    )
    add = made.add_argument
    place.add_option(add)
    add("--out", metavar="DIR", help="write the site there: pages that open from a file, and their data as JSON")
    add("--junit", metavar="OUT.xml", help="write the newest night as JUnit XML: a test case for each signature")
    add(
        "--github",
        action="store_true",
        help="add the newest night to GitHub's step summary ($GITHUB_STEP_SUMMARY, else standard output), and print "
        "annotations",
    )
    add(
        "--timelines",
        type=settings.positive,
        default=0,
        metavar="N",
        help="run the saved cases of up to N deadlocks again on the emulated GPU, and draw their timelines (none)",
    )
    add("--stages", metavar="FILE.json", help="stages of the night, its state.json: those that failed stand first")
    settings.add_options(add, only=("target-file",))


def report(options: argparse.Namespace) -> int:
    from fuzz.dashboard.collect.site import collect
    from fuzz.dashboard.collect.stages import stages
    from fuzz.ledger.errors import LedgerError
    from fuzz.ledger.tables.database import Ledger

    if not (options.out or options.junit or options.github):
        raise LedgerError("report: needs --out, --junit or --github")
    where = place.chosen(options.ledger)
    if where in place.NONE:
        raise LedgerError("--ledger: this command needs one, got 'none'")
    ended = stages(Path(options.stages)) if options.stages else ()
    with Ledger(where, create=False) as ledger:
        site = collect(ledger, stages=ended)
    files = tuple(options.target_file)
    if options.out:
        _write(site, options)
    if options.junit:
        from fuzz.dashboard.checks.junit import junit

        Path(options.junit).write_bytes(junit(site, files))
    if options.github:
        _to_github(site, files)
    return OK


def _write(site: Any, options: argparse.Namespace) -> None:
    from fuzz.cli.commands import _files
    from fuzz.dashboard.errors import SiteError
    from fuzz.dashboard.timelines import timelines
    from fuzz.runner import Runner

    try:
        from fuzz.dashboard.build import build, prepare
    except ModuleNotFoundError as error:
        raise SiteError(f"report: {error.name} is missing (pip install 'attnfuzz[report]')") from None
    out = Path(options.out)
    prepare(out)
    files = _files(options)
    with Runner("host", files=files) as runner:
        drawn = timelines(site, out, runner.run, options.timelines, files)
    size = build(site, out, options.target_file, drawn)
    print(f"{out / 'index.html'}: night {site.news.night or '–'}, {len(site.signatures)} signatures, {size:,} bytes")


def _to_github(site: Any, files: tuple[str, ...]) -> None:
    from fuzz.dashboard.checks.github import summary, workflow_commands

    text = summary(site, files)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    for line in workflow_commands(site):
        print(line)
