"""Times of the ledger as text."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(at: float) -> str:
    """'2026-11-23T02:10:00Z' of seconds of the epoch; '' of 0, which is a time that nobody knows."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else ""
