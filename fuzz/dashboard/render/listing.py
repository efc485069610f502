"""Which signatures get a page: a site stays small however many signatures its ledger has.

The most urgent ones have a page, a picture, commands and their evidence, until PAGES bytes are spent: pages, rows and
data together. Of those after them there are short rows, until ROWS bytes are spent; the rest is counted. Everything
stays in the ledger (`attnfuzz ledger list --all`, `attnfuzz ledger show`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from fuzz.dashboard.model import SignatureItem
from fuzz.dashboard.render.rows import Row

PAGES, ROWS = 2_200_000, 700_000  # bytes
TWICE = 2  # a row stands on the first page and among all signatures
MARKUP = 1500  # bytes of a row around its texts
LONG = 200  # letters of a short row's message
MISSES = 3  # pages made that no longer fit, after which none is made


@dataclass(frozen=True)
class Listing:
    """rows: the signatures that are listed, in their order; pages: text of the page of each that has one, by its path;
    left: how many are not listed."""

    rows: tuple[Row, ...]
    pages: dict[str, str]
    left: int


def listing(bugs: Sequence[SignatureItem], files: Sequence[str], page: Callable[[Row], str]) -> Listing:
    """Chooses what is shown of each signature. bugs: the most urgent first; page: makes a signature's page."""
    rows: list[Row] = []
    pages: dict[str, str] = {}
    spent = of_rows = left = misses = 0
    for bug in bugs:
        row = Row(msgspec.structs.replace(bug, page=f"signature/{Row(bug).name}.html"), files)
        if misses < MISSES and _least(bug) <= PAGES - spent:
            text = page(row)
            if (cost := _cost(row, text)) <= PAGES - spent:
                spent += cost
                pages[row.bug.page] = text
                rows.append(row)
                continue
            misses += 1
        row = Row(short(bug), files)
        cost = len(msgspec.json.encode(row.bug)) + len(row.words) + MARKUP
        if cost <= ROWS - of_rows:
            of_rows += cost
            rows.append(row)
        else:
            left += 1
    return Listing(tuple(rows), pages, left)


def short(bug: SignatureItem) -> SignatureItem:
    """A signature without its case, history and evidence."""
    return msgspec.structs.replace(
        bug,
        page="",
        message=bug.message[:LONG],
        case=None,
        after=(),
        nights=(),
        history=(),
        met_in=(),
        evidence=None,
        bisected=None,
    )


def _least(bug: SignatureItem) -> int:
    """Bytes that a signature with a page needs at least: it stands in the data, and its case in commands too."""
    return len(msgspec.json.encode(bug))


def _cost(row: Row, text: str) -> int:
    shown = len(row.mask) + len(row.spark) + 2 * len(row.short_command) + len(row.words) + MARKUP
    return len(text.encode()) + len(msgspec.json.encode(row.bug)) + TWICE * shown
