"""A target that is right at first, and wrong from then on: what a broken GPU does to a health check."""

from __future__ import annotations

import os

from honest import attention, fake

_CALLS = [0]


@fake("breaks")
def breaks(*arguments):
    """Doubles its answers after so many calls as FAKE_BREAKS_AFTER says; where that is not set, never."""
    _CALLS[0] += 1
    o, lse = attention(*arguments)
    return (2 * o if _CALLS[0] > float(os.environ.get("FAKE_BREAKS_AFTER", "inf")) else o), lse
