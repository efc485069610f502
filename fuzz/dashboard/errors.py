"""The error of the dashboard that users meet."""

from __future__ import annotations


class SiteError(ValueError):
    """A folder that the site cannot be written to, or a library that it needs and is missing; one line."""
