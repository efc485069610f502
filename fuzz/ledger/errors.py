"""The error of the ledger that users meet."""

from __future__ import annotations


class LedgerError(ValueError):
    """A ledger that cannot be opened, read or written, or a file that is none of its; one line."""
