"""The cases of a shard: Hypothesis draws them from its seed, the same ones in every process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis.strategies import SearchStrategy

from fuzz.core.case import Case
from fuzz.core.target import Target
from fuzz.generate import cases as strategies
from fuzz.generate.reproducible_draws import reproducible_draws
from fuzz.session.plan import Shard
from fuzz.session.settings import Settings
from fuzz.session.turns import first_cases

CLIMBING_CASES = 100
SMALL_EXAMPLES = 50  # of Hypothesis's first examples at most, and a tenth of all: mostly zeros


class Stop(BaseException):
    """Raised by a function that `explore` calls: it takes no more cases. Hypothesis would replay an Exception."""


def cases_of(under_test: Target, settings: Settings) -> SearchStrategy[Case]:
    """The strategy of a session for one target."""
    drawn = strategies.cases(under_test, strategies.SIZES[settings.size], settings.repeats)
    return drawn.map(partial(_repeated, under_test, settings)) if settings.repeats_deterministic else drawn


def seed_cases(shard: Shard, under_test: Target, settings: Settings) -> tuple[Case, ...]:
    """The cases that a shard begins with: the target's own, and those of its kernels in turn."""
    size = strategies.SIZES[settings.size]
    first = first_cases(shard, under_test, size, settings.repeats, settings.seed)
    return tuple(_repeated(under_test, settings, case) for case in first) if settings.repeats_deterministic else first


def _repeated(under_test: Target, settings: Settings, case: Case) -> Case:
    often = under_test.deterministic and not under_test.may_differ(case) and not under_test.ctas_of(case)
    return msgspec.structs.replace(case, repeats=settings.repeats_deterministic) if often else case


def explore(
    shard: Shard, drawn: SearchStrategy[Case], each: Callable[[Case], None], first: tuple[Case, ...] = ()
) -> None:
    """Calls `each` on the cases of a shard; `first` take the places of the first ones drawn. They depend on the shard
    alone, but for shards of CLIMBING_CASES and more, in which Hypothesis climbs on what `each` tells it. The examples
    that it begins with are left out: they make the least of nearly every choice, so that they are small, and alike in
    every shard. Ends early where `each` raises Stop."""
    waiting = list(first)
    left_out = next(n for n in count(1) if n > min((shard.cases + n) // 10, SMALL_EXAMPLES))
    met = 0

    @seed(shard.seed)
    @hypothesis_settings(
        max_examples=shard.cases + left_out,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.target] if shard.cases >= CLIMBING_CASES else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def loop(case: Case) -> None:
        nonlocal met
        met += 1
        if met > left_out:
            each(waiting.pop(0) if waiting else case)

    with reproducible_draws(), suppress(Stop):
        loop()
