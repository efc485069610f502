"""Cases drawn near those that scored most so far: half of a climbing shard's cases; the others are drawn anew.

A case is a function of the numbers that a generator gives. Those of the best case of each label are kept; a case near
it is drawn from the same numbers, but for a few that are drawn anew. What one of them changes early on, as the number
of heads, may give all later numbers another meaning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fuzz.core.case import Case
from fuzz.generate.masks import Draw

NEAR = 0.5  # share of the cases that are drawn near the best ones
CHANGED = (1, 1, 2, 4, 8)  # numbers drawn anew, in one such case


class Recorded(random.Random):
    """Generator that gives the numbers of `kept` first, but for the places in `anew`, and keeps what it gave."""

    def __init__(self, seed: int, kept: Sequence[int] = (), anew: frozenset[int] = frozenset()) -> None:
        super().__init__(seed)
        self.given: list[int] = []
        self._kept, self._anew = kept, anew

    def getrandbits(self, k: int) -> int:
        """An integer of k bits."""
        place, number = len(self.given), super().getrandbits(k)
        if place < len(self._kept) and place not in self._anew:
            number = self._kept[place] & ((1 << k) - 1)
        self.given.append(number)
        return number

    def random(self) -> float:
        """A number from 0 up to 1."""
        return self.getrandbits(53) * 2.0**-53

    def randbytes(self, n: int) -> bytes:
        """So many bytes."""
        return self.getrandbits(8 * n).to_bytes(n, "little")


@dataclass(frozen=True)
class _Best:
    score: float
    numbers: tuple[int, ...]


class Climber:
    """Draws cases, and learns what they scored; the same ones for the same seed and scores."""

    def __init__(self, seed: int, drawn: Callable[[Draw], Case]) -> None:
        self._random = random.Random(seed)
        self._drawn = drawn
        self._best: dict[str, _Best] = {}
        self._last: tuple[int, ...] = ()

    def draw(self) -> Case:
        """Another case."""
        seed = self._random.getrandbits(64)
        recorded = Recorded(seed)
        if self._best and self._random.random() < NEAR:
            kept = self._best[self._random.choice(sorted(self._best))].numbers
            anew = (self._random.randrange(len(kept)) for _ in range(self._random.choice(CHANGED)))
            recorded = Recorded(seed, kept, frozenset(anew))
        case = self._drawn(recorded)
        self._last = tuple(recorded.given)
        return case

    def learn(self, scores: Mapping[str, float]) -> None:
        """Takes in what the case drawn last scored, by label; the later of two that score the same is kept."""
        for label, score in scores.items():
            if self._last and (label not in self._best or score >= self._best[label].score):
                self._best[label] = _Best(score, self._last)
