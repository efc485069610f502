"""The cases of a shard, drawn from its seed, the same ones in every process.

Hypothesis draws them. In a shard of LONG_SHARD cases and more its engine costs more than it gives: 3 ms a case, where a
small case takes 20 in all. There a generator of random numbers draws; one of CLIMBING_EACH such shards climbs
(climb.py) on the errors that it is told of.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import TypeAlias

import msgspec
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings

from fuzz.core.case import Case
from fuzz.core.target import Target
from fuzz.generate import cases as strategies
from fuzz.generate.masks import Draw
from fuzz.generate.more_sequences import with_more_sequences
from fuzz.generate.reproducible_draws import reproducible_draws
from fuzz.session.climb import Climber
from fuzz.session.few_kernels import of_few_families
from fuzz.session.plan import KERNEL_CASES, Shard
from fuzz.session.settings import Settings
from fuzz.session.turns import first_cases

Scores: TypeAlias = Mapping[str, float]  # what a case scored, by label: larger is nearer to a failure

LONG_SHARD = 100
CLIMBING_EACH = 4  # one long shard in so many climbs
SMALL_EXAMPLES = 50  # of Hypothesis's first examples at most, and a tenth of all: mostly zeros


class Stop(BaseException):
    """Raised by a function that `explore` calls: it takes no more cases. Hypothesis would replay an Exception."""


def drawer_of(under_test: Target, settings: Settings, shard: Shard | None = None) -> Callable[[Draw], Case]:
    """Function that draws a case of a session for one target; of a shard, one after the other."""
    drawn = strategies.drawer(under_test, strategies.SIZES[settings.size], settings.repeats)
    drawn = with_more_sequences(under_test, drawn)
    if shard is not None and shard.kernels and under_test.kernel_families:
        drawn = of_few_families(under_test, drawn, max(shard.cases // KERNEL_CASES, 1))
    if not settings.repeats_deterministic:
        return drawn
    return lambda draw: _repeated(under_test, settings, drawn(draw))


def climbs(shard: Shard) -> bool:
    """True if the cases of a shard depend on what those before scored: that is to be known before the next is drawn."""
    return shard.cases >= LONG_SHARD and shard.index % CLIMBING_EACH == 0


def seed_cases(shard: Shard, under_test: Target, settings: Settings) -> tuple[Case, ...]:
    """The cases that a shard begins with: the target's own, and those of its kernels in turn."""
    size = strategies.SIZES[settings.size]
    first = first_cases(shard, under_test, size, settings.repeats, settings.seed)
    return tuple(_repeated(under_test, settings, case) for case in first) if settings.repeats_deterministic else first


def _repeated(under_test: Target, settings: Settings, case: Case) -> Case:
    often = under_test.deterministic and not under_test.may_differ(case) and not under_test.ctas_of(case)
    return msgspec.structs.replace(case, repeats=settings.repeats_deterministic) if often else case


def explore(
    shard: Shard, drawn: Callable[[Draw], Case], each: Callable[[Case], Scores | None], first: tuple[Case, ...] = ()
) -> None:
    """Calls `each` on the cases of a shard; `first` take the places of the first ones drawn. They depend on the shard
    alone, but for those that climb, which depend on the scores that `each` returns too. Ends early where `each` raises
    Stop."""
    if shard.cases < LONG_SHARD:
        _by_hypothesis(shard, drawn, each, first)
        return
    climber = Climber(shard.seed, drawn) if climbs(shard) else None
    draw = random.Random(shard.seed)
    with suppress(Stop):
        for number in range(shard.cases):
            case = climber.draw() if climber else drawn(draw)
            if number < len(first):
                each(first[number])
            else:
                scores = each(case)
                if climber and scores:
                    climber.learn(scores)


def _by_hypothesis(
    shard: Shard, drawn: Callable[[Draw], Case], each: Callable[[Case], Scores | None], first: tuple[Case, ...]
) -> None:
    """`explore` by Hypothesis. The examples that it begins with are left out: they make the least of nearly every
    choice, so that they are small, and alike in every shard."""
    waiting = list(first)
    left_out = next(n for n in count(1) if n > min((shard.cases + n) // 10, SMALL_EXAMPLES))
    met = 0

    @seed(shard.seed)
    @hypothesis_settings(
        max_examples=shard.cases + left_out,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies.strategy(drawn))
    def loop(case: Case) -> None:
        nonlocal met
        met += 1
        if met > left_out:
            each(waiting.pop(0) if waiting else case)

    with reproducible_draws(), suppress(Stop):
        loop()
