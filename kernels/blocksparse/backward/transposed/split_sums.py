# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""dK and dV of a part of a tile of keys, and of the tile from those of all parts: NOTE [split tiles] of
common/split_tiles.py.

float32 (tiles, parts, 2, fragments): dK and dV of a part as those of a unit, NOTE [dK and dV partials] of
dkv_partials.py.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward.dkv_partials import add_sums, sums_of, write_sums
from kernels.blocksparse.backward.mainloop_mma import sync_multiplying
from kernels.blocksparse.backward.tile_iterator import Order
from kernels.blocksparse.common.split_tiles import SplitTiles


class SplitOrder(NamedTuple):
    """The order of the work of all CTAs, where tiles may be split."""

    order: Order
    splits: SplitTiles


@cute.jit
def combine(w, splits: SplitTiles, split: Int32) -> Boolean:
    """Leaves dK and dV of a part, w.rdK and w.rdV. Returns True for the last one of a tile to do so: they are then the
    tile's."""
    tiling, thread, rdK, rdV = w.tiling, w.thread, w.rdK, w.rdV
    write_sums(rdK, sums_of(splits.sums, Int64(split), 0, tiling), thread)
    write_sums(rdV, sums_of(splits.sums, Int64(split), 1, tiling), thread)
    tile = split // splits.parts
    last = w.kernel.arrive_part(splits, tile, w.storage.sLast, thread == 0, sync_multiplying)
    if last:
        rdK.fill(0.0)
        rdV.fill(0.0)
        for part in cutlass.range(splits.parts, unroll=1):
            number = Int64(tile * splits.parts + part)
            add_sums(rdK, sums_of(splits.sums, number, 0, tiling), thread)
            add_sums(rdV, sums_of(splits.sums, number, 1, tiling), thread)
    return last
