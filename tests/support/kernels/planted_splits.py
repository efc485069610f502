"""Faults of tiles that are split (kernels/blocksparse/common/split_tiles.py), to be planted at a kernel's injection
points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Int32, cute


def arrival(order: str = "acq_rel", early: int = 0, meets: bool = True) -> Callable[..., Any]:
    """`arrive` with its memory order, how many parts early one takes itself for the last, and whether the threads meet
    before."""

    @cute.jit
    def arrive(splits, of_rows, sLast, leads, meet):
        if cutlass.const_expr(meets):
            meet()
        if leads:
            sLast[0] = Int32(cute.arch.atomic_add(splits.arrivals + of_rows, Int32(1), sem=order, scope="gpu"))
        meet()
        return cute.arch.make_warp_uniform(sLast[0]) == splits.parts - 1 - early

    return arrive


@cute.jit
def one_block_lost(split, entries, splits):
    """`entries_of` without a part's last block."""
    first, end = Int32(0), entries
    if split >= 0:
        part = split % splits.parts
        first, end = entries * part // splits.parts, cutlass.max(entries * (part + 1) // splits.parts - 1, 0)
    return first, end


# name -> the injection point and its replacement
FAULTS = {
    "too early": ("arrive_part", arrival(early=1)),  # the last but one reads sums that nobody has left yet
    "relaxed": ("arrive_part", arrival(order="relaxed")),  # sums are handed over by nothing
    "unmet": ("arrive_part", arrival(meets=False)),  # a warp's sums may come after its warpgroup's arrival
    "a block lost": ("entries_of_part", one_block_lost),
}
