"""Turns: each kernel of a target gets its case of a session before any gets a second one.

A session of a target begins with its seed cases and one case for each of its kernels, in an order that follows from the
session's seed. They fill its shards from the first on, so they are the same with any number of workers; what follows is
Hypothesis's. They are drawn by a generator of their own: Hypothesis forbids draws that depend on what was drawn before.
"""

from __future__ import annotations

import random

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.generate.cases import kernel_case
from fuzz.session.plan import Shard

TRIES = 20  # for a case that no rule refuses


def first_cases(shard: Shard, target: Target, size: Size, repeats: int, seed: int) -> tuple[Case, ...]:
    """The cases that a shard begins with, in place of as many drawn ones. seed: the session's."""
    first = list(target.seed_cases()) if shard.index == 0 else []
    kernels = list(target.kernel_choices())
    random.Random(f"{seed}/{target.name}").shuffle(kernels)
    skipped = len(target.seed_cases())
    begin = max(shard.start - skipped, 0)
    for i in range(begin, min(shard.start - skipped + shard.cases, len(kernels))):
        for attempt in range(TRIES):
            draw = random.Random(f"{seed}/{target.name}/{i}/{attempt}")
            case = kernel_case(draw, target, size, repeats, kernels[i])
            if refusal(target, case) is None:
                break
        first.append(case)
    return tuple(first[: shard.cases])
