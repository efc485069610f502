"""The same site from PostgreSQL as from SQLite."""

from __future__ import annotations

import dashboard_ledger as made
import msgspec
import postgres
import pytest

from fuzz.dashboard.collect.site import collect
from fuzz.dashboard.model import Site
from fuzz.ledger.tables.database import Ledger


@pytest.mark.skipif(postgres.binaries() is None, reason="PostgreSQL's binaries are missing")
def test_a_ledger_in_postgresql_has_the_same_site(site: Site) -> None:
    with postgres.server() as server:
        made.fill(server.url)
        with Ledger(server.url, create=False) as ledger:
            found = collect(ledger, made.NOW)
    assert msgspec.json.encode(found) == msgspec.json.encode(site)
