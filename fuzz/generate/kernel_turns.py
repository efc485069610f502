"""Cases for one kernel of a target: what a KernelChoice makes of what the target supports, of lengths and variants."""

from __future__ import annotations

import random
from dataclasses import replace

from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.support import Support
from fuzz.core.target import Variant
from fuzz.generate.grid import Grid

_MORE = (0, 0, 1, 15, 40)  # keys, or queries, beyond the least
# Sequences, query heads and KV heads of a case whose CTAs wait: a semaphore per tile of each sequence and query head.
_HEADS = ((1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 2, 1))


def support_of(kernel: KernelChoice, support: Support) -> Support:
    """The part of a target's support that `kernel` is for."""
    least, most, step = support.dim
    if kernel.dims is not None:
        least, most = max(least, kernel.dims[0]), min(most, kernel.dims[1])
    masks = support.masks
    if kernel.masks is not None:
        masks = kernel.masks if masks is None else masks & kernel.masks
    return replace(
        support,
        dtypes=support.dtypes if kernel.dtype is None else (kernel.dtype,),
        dim=(least, most, step),
        dim_often=most if kernel.dims is not None else support.dim_often,
        softcap=support.softcap and kernel.softcap is not False,
        masks=masks,
    )


def draw_meeting(draw: random.Random, kernel: KernelChoice, *, gqa: bool, ragged: bool, rows: int) -> Grid:
    """A grid in which two CTAs of `kernel` share a tile of dQ in every sequence, and wait for one another; a `ragged`
    one has a sequence more that is shorter, first or last. At most `rows` heads × sequences."""
    known = [one for one in _HEADS if one[0] * one[1] <= max(rows, 1) and (gqa or one[1] == one[2])]
    batch, heads_q, heads_kv = draw.choice([one for one in known if not ragged or one[0] > 1] or known)
    lengths_q = [kernel.least_q + draw.choice(_MORE)] * batch
    lengths_k = [kernel.least_k + draw.choice(_MORE)] * batch
    if ragged and batch > 1:
        lengths_q[-1], lengths_k[-1] = draw.randint(1, kernel.least_q), draw.randint(1, kernel.least_k)
        if draw.choice((True, False)):
            lengths_q.reverse()
            lengths_k.reverse()
    return Grid(heads_q, heads_kv, tuple(lengths_q), tuple(lengths_k))


def variants_of(kernel: KernelChoice | None, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """Those of a problem's variants that `kernel` has; all where none is its."""
    if kernel is None:
        return variants
    wanted = kernel.variant.items()
    return tuple(variant for variant in variants if wanted <= variant.items()) or variants
