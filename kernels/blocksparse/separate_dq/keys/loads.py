# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warps: for each multiplying warpgroup one of Q and LSE, one of dO and delta; two of them K and V too.

NOTE [queries of a warpgroup] Of every listed tile of 128 queries the first warpgroup has the first 64 rows, the second
one the others. Each has buffers of its own, so that the two never wait for one another within a tile of keys. With Q
comes where its block lies: the multiplying warps do not read the lists.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.forward.hopper.pipeline import Buffers
from kernels.blocksparse.separate_dq.keys.tiles import Tile
from kernels.blocksparse.separate_dq.keys.tuning import STEP


@cute.jit
def fill_steps(w, buffers: Buffers, operands, targets, sBlock: cute.Tensor, tile: Tile) -> None:
    """A loading warp's steps of a tile of keys, for the warpgroup w.group.

    operands  Q and lse2, or dO and delta; targets: (STEP, dim, stages) and (STEP, stages)
    sBlock    (3, stages): takes the m block, 2 · query head + 1 where it is partial, and its mask's slot; None for dO
    """
    lists, share, step, (x, values) = w.lists, w.counts.share, w.before, operands
    first_head = tile.unit * share
    for g in cutlass.range(share, unroll=1):
        head = first_head + g
        n_partial, at_partial = lists.partial.row(tile.batch, head, tile.n_block)
        n_full, at_full = lists.full.row(tile.batch, head, tile.n_block)
        entries = n_partial + n_full
        # where entry e of the row stands, less e
        partial, full = lists.partial.index + at_partial, lists.full.index + (at_full - n_partial)
        slots = lists.slot + at_partial
        at = tile_number(w.tiles, tile.batch, head, tile.queries.begin, w.variant.tile_m) * w.variant.tile_m
        own_values = values + cute.assume(at + w.group * STEP, divby=4)
        first = x.at(tile.batch, Int64(tile.queries.begin) + w.group * STEP, head)
        left = tile.queries.length - w.group * STEP
        m_block = Int32(0)
        if entries > 0:
            m_block = listed(partial, full, n_partial, Int32(0))
        for entry in cutlass.range(entries, unroll=1):
            here, slot = m_block, Int32(0)
            if entry + 1 < entries:
                m_block = listed(partial, full, n_partial, entry + 1)
            if cutlass.const_expr(sBlock is not None and w.variant.mask == "bits"):  # noqa: SIM102
                if entry < n_partial:
                    slot = read(slots, entry)
            row, stage = here * w.variant.tile_m, step % buffers.stages
            # a barrier that has not ended a phase says that the one before the first has ended
            cute.arch.mbarrier_wait(buffers.empty + stage, (step // buffers.stages + 1) % 2)
            rows = (first + Int64(row) * cute.assume(x.stride_row, divby=8), x.stride_row, left - row)
            load_rows(w.copy, rows, targets[0][None, None, stage])
            load_values(own_values + cute.assume(row, divby=4), targets[1], stage)
            arrived()
            if cute.arch.lane_idx() == 0:
                if cutlass.const_expr(sBlock is not None):
                    sBlock[0, stage] = here
                    sBlock[1, stage] = 2 * head + (1 if entry < n_partial else 0)
                    sBlock[2, stage] = slot
                cute.arch.mbarrier_arrive(buffers.full + stage)
            step += 1


@cute.jit
def listed(partial: cute.Pointer, full: cute.Pointer, n_partial: Int32, entry: Int32) -> Int32:
    """The m block of an entry of one head's row: the partial ones, then the full ones."""
    m_block = Int32(0)
    if entry < n_partial:
        m_block = read(partial, entry)
    else:
        m_block = read(full, entry)
    return m_block


@cute.jit
def load_rows(copy: TileCopy, rows, sX: cute.Tensor) -> None:
    """Starts copying a tile. rows: (address of the first, elements between rows, how many there are)."""
    copy.load(rows[0], rows[1], rows[2], sX)


@cute.jit
def fill_keys(copy: TileCopy, buffers: Buffers, count: Int32, first, stride: Int64, left: Int32, sX) -> None:
    """A loading warp: K or V of the CTA's `count`-th tile, from its first row on."""
    stage = count % buffers.stages
    cute.arch.mbarrier_wait(buffers.empty + stage, (count // buffers.stages + 1) % 2)
    load_rows(copy, (first, stride, left), sX[None, None, stage])
    arrived()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(buffers.full + stage)


@cute.jit
def load_values(first: cute.Pointer, sValues: cute.Tensor, stage: Int32) -> None:
    """Starts copying STEP statistics, sixteen bytes in a lane. Every tile of queries has all of its rows' ones."""
    lane = cute.arch.lane_idx()
    atom = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128
    )
    if lane < STEP // 4:
        source = first + cute.assume(4 * lane, divby=4)
        target = sValues.iterator + cute.assume(stage * STEP + 4 * lane, divby=4)
        cute.copy(atom, cute.make_tensor(source, cute.make_layout(4)), cute.make_tensor(target, cute.make_layout(4)))


@cute.jit
def arrived() -> None:
    """Waits until this warp's copies are there for products of other warps."""
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
