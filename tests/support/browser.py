"""The distribution's Chromium, headless, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def missing() -> str:
    """Why there is no browser; '' where there is one."""
    if not _chromium():
        return "Chromium is missing (Debian: apt-get install chromium)"
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        return "playwright is missing (pip install playwright)"
    return ""


@contextmanager
def browser() -> Iterator[Any]:
    """A running browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        # A container has neither the namespaces of Chromium's sandbox nor a /dev/shm of some size.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        running = started.chromium.launch(executable_path=_chromium(), args=arguments)
        try:
            yield running
        finally:
            running.close()


def _chromium() -> str:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )
