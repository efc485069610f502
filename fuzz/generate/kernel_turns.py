"""Cases for one kernel of a target: what a KernelChoice makes of what the target supports, of lengths and variants."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import torch

from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.support import Support
from fuzz.core.target import Variant
from fuzz.generate.grid import Grid
from oracles.problem import Problem, dense_mask

_MORE = (0, 0, 1, 15, 40, 64, 128)  # keys, or queries, beyond the least: another tile or two, now and then
# Sequences, query heads and KV heads of a case whose CTAs wait: a semaphore per tile of each sequence and query head.
# Two groups twice: with one KV head any way to find a query head's own is right.
_HEADS = ((1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 2, 1), (2, 2, 2), (1, 4, 2), (1, 4, 2))


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


def draw_meeting(draw: random.Random, kernel: KernelChoice, *, gqa: bool, ragged: bool, rows: int, pairs: int) -> Grid:
    """A grid in which two CTAs of `kernel` share a tile of dQ in every sequence, and wait for one another; a `ragged`
    one has a sequence more that is shorter, first or last. At most `rows` heads × sequences, and `pairs` (query, key)
    pairs in all, unless the least lengths have more."""
    known = [one for one in _HEADS if one[0] * one[1] <= rows and (gqa or one[1] == one[2])] or [(1, 1, 1)]
    batch, heads_q, heads_kv = draw.choice([one for one in known if not ragged or one[0] > 1] or known)
    each = pairs // (batch * heads_q)
    able = [(m, n) for m, n in product(_MORE, _MORE) if (kernel.least_q + m) * (kernel.least_k + n) <= each]
    more_q, more_k = draw.choice(able or [(0, 0)])
    lengths_q, lengths_k = [kernel.least_q + more_q] * batch, [kernel.least_k + more_k] * batch
    if ragged and batch > 1:
        lengths_q[-1], lengths_k[-1] = draw.randint(1, kernel.least_q), draw.randint(1, kernel.least_k)
        if draw.choice((True, False)):
            lengths_q.reverse()
            lengths_k.reverse()
    return Grid(heads_q, heads_kv, tuple(lengths_q), tuple(lengths_k))


def meet(problem: Problem, kernel: KernelChoice) -> bool:
    """True if two CTAs of `kernel` share a tile of dQ, and each of them a second one: if the mask leaves a pair in each
    of four tiles, those of two rows and two columns, of one sequence and head."""
    padded = torch.nn.functional.pad(
        dense_mask(problem), (0, -problem.len_k % (kernel.least_k - 1), 0, -problem.len_q % (kernel.least_q - 1))
    )
    tiles = padded.unflatten(-1, (-1, kernel.least_k - 1)).any(-1).unflatten(-2, (-1, kernel.least_q - 1)).any(-2)
    shared = tiles.mT.float() @ tiles.float()  # tiles of queries that two tiles of keys both meet
    return bool((shared.triu(1) >= 2).any())


def variants_of(kernel: KernelChoice | None, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """Those of a problem's variants that `kernel` has; all where none is its."""
    if kernel is None:
        return variants
    return tuple(variant for variant in variants if kernel.has(variant)) or variants
