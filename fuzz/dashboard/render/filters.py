"""Jinja2 filters: times, ages and figures as people read them."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

_URL = re.compile(r"https?://\S+")


def moment(iso: str) -> str:
    """'2026-11-23 02:10' of '2026-11-23T02:10:00Z'."""
    return iso[:16].replace("T", " ") if iso else "an unknown time"


def days(age: float) -> str:
    """'3 days', '5 h'."""
    if age < 1:
        return f"{age * 24:.0f} h"
    return f"{age:.0f} day{'s' * (round(age) != 1)}"


def shorten(text: str, most: int) -> str:
    """At most so many letters."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def figure(value: Any) -> str:
    """A cell of a table: floats with four digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def linked(text: str) -> Markup:
    """A link where the text is an address on the web; whatever else it is stays text."""
    return Markup('<a href="{}">{}</a>').format(text, text) if _URL.fullmatch(text) else Markup("{}").format(text)
