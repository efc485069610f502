"""Everything that the site says, out of a ledger."""

from __future__ import annotations

import time

from msgspec.structs import replace

from fuzz.dashboard.collect.bugs import bugs
from fuzz.dashboard.collect.coverage import coverage
from fuzz.dashboard.collect.news import news
from fuzz.dashboard.collect.nights import nights
from fuzz.dashboard.collect.performance import performance
from fuzz.dashboard.model import Site, StageEnd
from fuzz.ledger.query import read
from fuzz.ledger.query.signatures import signatures
from fuzz.ledger.tables.database import Ledger


def collect(ledger: Ledger, now: float | None = None, stages: tuple[StageEnd, ...] = ()) -> Site:
    """The site of a ledger. now: seconds of the epoch; decides ages and which expectations have expired. stages: of the
    night that makes it."""
    now = time.time() if now is None else now
    known = signatures(ledger, now)
    sessions, tallies = read.sessions(ledger), read.tallies(ledger)
    return Site(
        news=replace(news(known, sessions, tallies, read.changes(ledger), now), stages=stages),
        signatures=bugs(ledger, known, sessions, tallies, now),
        coverage=coverage(ledger, sessions),
        nights=nights(sessions, tallies, read.compiles(ledger)),
        performance=performance(read.timings(ledger), read.measurements(ledger)),
    )
