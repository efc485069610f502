"""Draws that follow from the seed alone, in whatever process.

Hypothesis (6.131 and newer) takes one number in forty from the source of the local modules that the process has
imported so far: a session's plan, its workers and a script that draws its cases again would see other cases, and every
change of a constant anywhere in the sources would change them all. There is no setting for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from hypothesis.internal.conjecture import providers

_SIZE = 4096


@contextmanager
def reproducible_draws() -> Iterator[None]:
    """Context in which no constants of local modules are drawn; nothing to do for a Hypothesis that never draws any."""
    found = getattr(providers, "_get_local_constants", None)
    if found is None:
        yield
        return
    none, others = providers.Constants(), providers.CONSTANTS_CACHE
    providers._get_local_constants = lambda: none
    providers.CONSTANTS_CACHE = _permitted()
    try:
        yield
    finally:
        providers._get_local_constants = found
        providers.CONSTANTS_CACHE = others


@cache
def _permitted() -> Any:
    """Constants of Hypothesis that are within limits, by limits: kept for all shards, since to find out takes
    as long as to draw some cases."""
    return type(providers.CONSTANTS_CACHE)(_SIZE)
