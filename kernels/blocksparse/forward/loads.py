# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The shared buffers of K and V, and the warps that fill them.

NOTE [buffers] There are `stages` buffers of K and as many of V. By TMA one warp fills those of K and another one those
of V: it waits until the next buffer is empty and issues its copy (NOTE [whole tiles] of common/tma_loads.py). By
cp.async each buffer has a loading warp that owns it: it waits until the buffer is empty, copies its step's rows, waits
for them, fences them for the products, which read through another path (the async proxy), and says full. Either way as
many loads are on their way as there are buffers. `full` counts one arrival, `empty` one of each multiplying warp. Steps
are counted over all tiles of the CTA (common/buffers.py). With K comes where its keys begin and where its mask's words
lie: what the multiplying warps would have to read from the lists else, and wait for, as it decides what they do.

The rows of Q that a multiplying warpgroup works on have buffers of their own, by tiles for steps. By TMA a warp of its
own fills them; by cp.async warps that load V do so before V: of the next tile, as that is when they have nothing else
to do.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.common import tma_loads
from kernels.blocksparse.common.buffers import Buffers, stage_of, wait_empty
from kernels.blocksparse.common.list_reader import listed
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import TileLoads, write_place
from kernels.blocksparse.forward.mainloop import slot_of


@cute.jit
def fill(w, buffers: Buffers, operand, sX: cute.Tensor, sPlace: cute.Tensor, stage: Int32, before: Int32) -> None:
    """A loading warp's work for a tile: one stage of K or V, for every step that uses it. NOTE [buffers].

    operand   (address of the sequence's first row, stride of rows)
    sX        (step, dim, stages)
    sPlace    (2, stages): the first key and the slot of each stage; None for V
    before    steps of earlier tiles
    """
    step, stages = w.tuning.step, w.tuning.stages
    steps_per_block = w.variant.tile_n // step
    n_steps = w.tile_iterator.entries * steps_per_block
    first = (stage + stages - before % stages) % stages
    block = Int32(0)
    if first < n_steps:
        block = listed(w.tile_iterator, first // steps_per_block)
    for i in cutlass.range((n_steps - first + stages - 1) // stages):
        s = first + i * stages
        first_key = block * w.variant.tile_n + s % steps_per_block * step
        if s + stages < n_steps:
            block = listed(w.tile_iterator, (s + stages) // steps_per_block)
        stage_place = None
        if cutlass.const_expr(sPlace is not None):
            stage_place = sPlace[None, stage]
        place = (first_key, slot_of(w, s // steps_per_block))
        fill_one(
            w.copy, buffers, before + s, rows_from(w, operand, first_key), sX[None, None, stage], stage_place, place
        )


def rows_from(w, operand, first_key: Int32):
    """K's or V's rows from a key on: (address of the first, stride, how many there are)."""
    pointer, stride = operand
    start = pointer + w.key_offset(first_key, cute.assume(stride, divby=8))
    return start, stride, w.keys_left(w.length_k, first_key)


@cute.jit
def fill_one(copy: TileCopy, buffers: Buffers, step: Int32, rows, sX: cute.Tensor, sPlace=None, place=()) -> None:
    """A loading warp: the buffer of this step, until it is there for the products of other warps. rows: `rows_from`;
    place: two numbers that go into sPlace."""
    wait_empty(buffers, step)
    copy.load(rows[0], rows[1], rows[2], sX)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        write_place(sPlace, place)
        cute.arch.mbarrier_arrive(buffers.full + stage_of(step, buffers.stages))


@cute.jit
def fill_all(
    w,
    buffers: Buffers,
    tiles: TileLoads,
    sPlace: cute.Tensor,
    before: Int32,
    lead: cutlass.Constexpr = 0,
    next_due: cutlass.Constexpr = 0,
) -> None:
    """A warp that loads by TMA: K or V of all steps of a tile of queries. sPlace, before: as those of `fill`.

    lead, next_due   the warp arrives at this named barrier when `lead` of the tile's steps are left, or at once where
                     it has fewer; 0: it does not
    """
    step, stages = w.tuning.step, w.tuning.stages
    steps_per_block = w.variant.tile_n // step
    n_steps = w.tile_iterator.entries * steps_per_block
    wait, keys_left, block = w.wait_empty, w.keys_left, Int32(0)
    if n_steps > 0:
        block = listed(w.tile_iterator, Int32(0))
    if cutlass.const_expr(lead):  # noqa: SIM102  (decided when the kernel is built)
        if n_steps < lead:
            cute.arch.barrier_arrive(barrier_id=next_due, number_of_threads=64)
    for s in cutlass.range(n_steps):
        if cutlass.const_expr(lead):  # noqa: SIM102
            if s == n_steps - lead:
                cute.arch.barrier_arrive(barrier_id=next_due, number_of_threads=64)
        first_key = block * w.variant.tile_n + s % steps_per_block * step
        if s + 1 < n_steps:
            block = listed(w.tile_iterator, (s + 1) // steps_per_block)
        stage, stage_place, place = stage_of(before + s, stages), None, ()
        if cutlass.const_expr(sPlace is not None):
            stage_place, place = sPlace[None, stage], (first_key, slot_of(w, s // steps_per_block))
        wait(buffers, before + s)
        left = keys_left(w.length_k, first_key)
        tma_loads.load(tiles, first_key, left, stage, buffers.full + stage, stage_place, place)
