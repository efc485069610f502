"""Few kernels: in a session of few cases, cases are drawn whose kernels were compiled for the cases before.

With kernels that take seconds to compile nearly every case of a short session would have its own: a target's options,
dtypes, head dims and strides make hundreds of them. So a shard's first few families of kernels (`Target.kernel_family`)
are those of all its cases, and none is DEAR. A case of another family is drawn again; where AGAIN draws find none of
these, it stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from itertools import chain

from fuzz.core.case import Case
from fuzz.core.target import DEAR, Target
from fuzz.generate.masks import Draw

AGAIN = 100  # draws of some milliseconds each, where a call has kernels that take ten seconds to compile


def of_few_families(target: Target, drawn: Callable[[Draw], Case], most: int) -> Callable[[Draw], Case]:
    """`drawn`, for the cases of one shard in their order: of at most `most` families, where that can be."""
    known: set[Hashable] = set()

    def taken(case: Case) -> bool:
        family = target.kernel_family(case)
        if family not in known and (family == DEAR or len(known) == most):
            return False
        known.add(family)
        return True

    def one(draw: Draw) -> Case:
        first = drawn(draw)
        # Not by `draw`: Hypothesis gives up on examples that draw much
        others = (drawn(random.Random(f"{first.id}/{attempt}")) for attempt in range(AGAIN))
        return next(filter(taken, chain((first,), others)), first)

    return one
