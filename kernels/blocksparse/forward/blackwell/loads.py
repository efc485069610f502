# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loop of a warp that loads K or V by TMA: NOTE [whole tiles] of common/bulk_tiles.py."""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.common.bulk_tiles import TileLoads, load
from kernels.blocksparse.common.list_reader import listed
from kernels.blocksparse.forward.hopper.pipeline import Buffers, rows_from


@cute.jit
def fill(w, buffers: Buffers, tiles: TileLoads) -> None:
    """A loading warp: K or V of all steps."""
    step, stages = w.tuning.step, w.tuning.stages
    steps_per_block = w.variant.tile_n // step
    n_steps = w.tile_iterator.entries * steps_per_block
    wait_empty, operand, block = w.wait_empty, tiles.first_row(), Int32(0)
    if n_steps > 0:
        block = listed(w.tile_iterator, Int32(0))
    for s in cutlass.range(n_steps):
        first_key = block * w.variant.tile_n + s % steps_per_block * step
        if s + 1 < n_steps:
            block = listed(w.tile_iterator, (s + 1) // steps_per_block)
        wait_empty(buffers, s)
        stage = s % stages
        load(tiles, first_key, rows_from(w, operand, first_key), stage, buffers.full + stage)


@cute.jit
def wait_empty(buffers: Buffers, s: Int32) -> None:
    """Waits until the products have read what a step's buffer had before."""
    # a barrier that has not ended a phase says that the one before the first has ended
    cute.arch.mbarrier_wait(buffers.empty + s % buffers.stages, (s // buffers.stages + 1) % 2)
