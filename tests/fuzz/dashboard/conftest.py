"""The site of a small ledger, collected and built once."""

from __future__ import annotations

from pathlib import Path

import dashboard_ledger
import pytest

from fuzz.dashboard.build import build
from fuzz.dashboard.collect.site import collect
from fuzz.dashboard.model import Site
from fuzz.ledger.tables.database import Ledger


@pytest.fixture(scope="session")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of four nights."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    dashboard_ledger.fill(path)
    return path


@pytest.fixture(scope="session")
def site(ledger_file: Path) -> Site:
    """What it says."""
    with Ledger(str(ledger_file), create=False) as ledger:
        return collect(ledger, dashboard_ledger.NOW)


@pytest.fixture(scope="session")
def built(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its pages."""
    out = tmp_path_factory.mktemp("site") / "site"
    build(site, out)
    return out
