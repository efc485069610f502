"""Counter-based delta debugging: which items of a list the failure does not need (arXiv 2408.04735).

ProbDD's probabilities turn out to be a function of a counter, the number of rounds: all of a round's subsets have the
size that maximises the expected number of deleted items, from about ten down to one. What it gives up is minimality, so
a last pass deletes single items until none can go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import TypeVar

from fuzz.core.case import Case

Item = TypeVar("Item")
START = 0.1  # the chance that an item is needed, before anything is known
GROWTH = math.e / (math.e - 1)


def sizes() -> Generator[int, None, None]:
    """Subset sizes of the rounds, ending with the first 1: 9, 5, 3, 1."""
    for round_ in count():
        chance = START * GROWTH**round_
        size = max(1, math.floor(-1 / math.log(1 - chance))) if chance < 1 else 1
        yield size
        if size == 1:
            return


def delete(
    items: Sequence[Item], build: Callable[[list[Item]], Case | None]
) -> Generator[Case | None, bool, tuple[Item, ...]]:
    """Yields the case of each attempt, is sent whether it was accepted, and returns the items that are left.

    items  what may be deleted, the likeliest to be useless first
    build  the case that has only these items; None where there is none
    """
    left = list(items)
    if len(left) > next(sizes()) and (yield build([])):
        return ()
    for size in sizes():
        left, _ = yield from _round(left, size, build)
    gone = bool(left)
    while gone:
        left, gone = yield from _round(left, 1, build)
    return tuple(left)


def _round(
    left: list[Item], size: int, build: Callable[[list[Item]], Case | None]
) -> Generator[Case | None, bool, tuple[list[Item], bool]]:
    """Tries to delete every chunk of `size` items once."""
    at, gone = 0, False
    while at < len(left):
        rest = left[:at] + left[at + size :]
        if (yield build(rest)):
            left, gone = rest, True
        else:
            at += size
    return left, gone
