"""A site of more signatures than it can hold: the urgent ones have pages, others rows, the rest is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dashboard_ledger as made
import msgspec
import pytest
from test_site import Page

from fuzz.dashboard.build import build
from fuzz.dashboard.model import SignatureItem, Site
from fuzz.dashboard.render import listing as module
from fuzz.dashboard.render.listing import listing
from fuzz.dashboard.render.rows import Row

MOST = 5_000_000  # bytes of a site
TEXT = "".join(f"at {i}: a line of a stack; " for i in range(200))


def many(site: Site, count: int, evidence: str = "") -> Site:
    """The site with so many open signatures, all new in this night, and as many fixed ones."""
    (like,) = (one for one in site.signatures if one.uid == made.OLD.id)
    told = {**(like.evidence or {}), "evidence": dict.fromkeys(("stderr", "gpu"), evidence)}
    bugs = [
        msgspec.structs.replace(like, uid=f"{i:08x}", state="fixed" if i >= count // 2 else "open", evidence=told)
        for i in range(count)
    ]
    news = msgspec.structs.replace(
        site.news, new=tuple(bug.uid for bug in bugs[: count // 2]), regressed=(), fixed=(), open=count // 2
    )
    return msgspec.structs.replace(site, news=news, signatures=tuple(bugs))


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "evidence"), [(500, TEXT), (5000, "")])
def test_a_site_of_many_signatures_stays_small_and_says_what_it_left_out(
    site: Site, tmp_path: Path, count: int, evidence: str
) -> None:
    size = build(many(site, count, evidence), tmp_path)
    assert 2_000_000 < size < MOST
    bugs = json.loads((tmp_path / "data/signatures.json").read_text())
    news = json.loads((tmp_path / "data/news.json").read_text())
    assert len(bugs) + news["unlisted"] == count and len(news["new"]) == count // 2
    paged = [bug for bug in bugs if bug["page"]]
    assert {path.name for path in (tmp_path / "signature").iterdir()} == {Path(bug["page"]).name for bug in paged}
    assert 20 < len(paged) < count // 2
    index, table = (Page(tmp_path / f"{name}.html") for name in ("index", "signatures"))
    assert len(index.all("tr")) == 1 + len(paged) and len(table.all("tr")) == 1 + len(bugs)
    assert f"{count // 2 - len(paged)} more open signatures" in (tmp_path / "index.html").read_text()
    assert f"and {count // 2 - 50} more" in (tmp_path / "index.html").read_text()
    assert ("are in the ledger alone" in (tmp_path / "signatures.html").read_text()) == bool(news["unlisted"])
    for page in (index, table):
        links = {a["href"] for a in page.all("a") if a.get("href", "").startswith("signature/")}
        assert all((tmp_path / link).is_file() for link in links)


def test_pages_are_made_until_their_bytes_are_spent_then_rows_then_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGES", 200_000)
    monkeypatch.setattr(module, "ROWS", 100_000)
    asked: list[str] = []

    def page(row: Row) -> str:
        asked.append(row.bug.uid)
        return "x" * 20_000

    bugs = many(site, 100).signatures
    found = listing(bugs, (), page)
    shown = [bug.uid for bug in bugs]
    assert [row.bug.uid for row in found.rows] == shown[: len(found.rows)] and len(found.rows) + found.left == 100
    assert 3 <= len(found.pages) <= 9 and len(asked) == len(found.pages) + module.MISSES
    assert found.left and not any(row.bug.page for row in found.rows[len(found.pages) :])


def test_a_signature_too_large_for_a_page_does_not_keep_others_from_theirs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGES", 60_000)
    bugs: list[Any] = list(many(site, 3).signatures)
    bugs[0] = msgspec.structs.replace(bugs[0], message="x" * 100_000)

    def page(row: Row) -> str:
        assert isinstance(row.bug, SignatureItem) and row.bug.uid != bugs[0].uid
        return "page"

    found = listing(bugs, (), page)
    assert [bool(row.bug.page) for row in found.rows] == [False, True, True] and not found.left
    assert len(found.rows[0].bug.message) == module.LONG and found.rows[0].bug.case is None
