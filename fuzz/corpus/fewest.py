"""The fewest sets that cover what all of them cover: greedy, with a bound, and exact where that is within reach.

Greedy takes the set with most new elements, and has at most H(d) = 1 + 1/2 + … + 1/d times the fewest, d the largest
set's size (Chvátal 1979). For the instance at hand a lower bound is the largest of three:
    the number of elements over the largest set's size;
    a number of elements of which no set holds two;
    the charges: each element costs 1 / (what the set that covered it first covered anew); divided by the largest sum of
    a set they are a feasible dual, and their total is a bound.
The exact search is branch and bound over the element that fewest sets hold; it starts from greedy's answer, and gives
up after NODES nodes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

NODES = 20_000


@dataclass(frozen=True)
class Cover:
    """chosen: numbers of the sets, in the order in which they were taken; bound: no cover has fewer."""

    chosen: tuple[int, ...]
    bound: int

    @property
    def exact(self) -> bool:
        """True if no cover has fewer."""
        return len(self.chosen) == self.bound


def fewest(sets: Sequence[frozenset[Hashable]], nodes: int = NODES) -> Cover:
    """A small cover; of two sets alike the earlier is taken. Empty sets are never taken."""
    bits = _as_bits(sets)
    goal = 0
    for one in bits:
        goal |= one
    if not goal:
        return Cover((), 0)
    greedy, bound = _greedy(bits, goal)
    if len(greedy) == bound:
        return Cover(tuple(greedy), bound)
    search = _Search(bits, greedy, nodes)
    bound = max(bound, search.apart(goal))
    search.go(goal, [])
    best = sorted(search.best, key=lambda number: -bits[number].bit_count())
    return Cover(tuple(best), len(best) if search.left > 0 else bound)


def _as_bits(sets: Sequence[frozenset[Hashable]]) -> list[int]:
    number: dict[Hashable, int] = {}
    for one in sets:
        for element in sorted(one, key=repr):
            number.setdefault(element, len(number))
    return [sum(1 << number[element] for element in one) for one in sets]


def _greedy(bits: Sequence[int], goal: int) -> tuple[list[int], int]:
    """A cover, and a lower bound of all covers."""
    chosen: list[int] = []
    price: dict[int, float] = {}
    while goal:
        best = max(range(len(bits)), key=lambda number: (bits[number] & goal).bit_count())
        new = bits[best] & goal
        price |= dict.fromkeys(_ones(new), 1 / new.bit_count())
        chosen.append(best)
        goal &= ~new
    dearest = max(sum(price[one] for one in _ones(bit)) for bit in bits if bit)
    most = max(bit.bit_count() for bit in bits)
    return chosen, max(math.ceil(sum(price.values()) / dearest - 1e-9), -(-len(price) // most))


@dataclass
class _Search:
    """Branch and bound; `left` nodes until it gives up."""

    bits: Sequence[int]
    best: list[int]
    left: int
    holders: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, bit in enumerate(self.bits):
            for element in _ones(bit):
                self.holders.setdefault(element, []).append(number)

    def go(self, goal: int, taken: list[int]) -> None:
        """Covers `goal` after `taken`, where that may beat the best."""
        self.left -= 1
        if self.left <= 0:
            return
        if not goal:
            self.best = list(taken)
            return
        most = max((bit & goal).bit_count() for bit in self.bits)
        if len(taken) + max(-(-goal.bit_count() // most), self.apart(goal)) >= len(self.best):
            return
        rarest = min(_ones(goal), key=lambda element: len(self.holders[element]))
        for number in sorted(self.holders[rarest], key=lambda one: -(self.bits[one] & goal).bit_count()):
            self.go(goal & ~self.bits[number], [*taken, number])

    def apart(self, goal: int) -> int:
        """Elements of which no set holds two: each needs a set of its own."""
        count = 0
        for element in sorted(_ones(goal), key=lambda one: len(self.holders[one])):
            if goal >> element & 1:
                count += 1
                for number in self.holders[element]:
                    goal &= ~self.bits[number]
        return count


def _ones(bits: int) -> list[int]:
    """Places of the bits that are set."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
