# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Loading warps of the Blackwell backward kernel: Q with LSE and the block of a step, and dO with delta; by TMA K and V
before them.

A warp waits until its stage is empty and copies a tile: NOTE [whole tiles] of tma_loads.py. One with fewer
rows, and all without TMA, are copied by the lanes with cp.async, waited for, and fenced for products, which read
through another path (the async proxy). LSE and delta of a tile, 512 bytes, are always there and come as the tile does.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.backward.blackwell import turns
from kernels.blocksparse.backward.blackwell.tuning import Q_STAGES
from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, as_block, find_entry
from kernels.blocksparse.backward.tiling import ENTRY_STAGES
from kernels.blocksparse.common import tcgen05, tma_loads
from kernels.blocksparse.common.bulk import load_run
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import TileLoads
from kernels.blocksparse.spec.sm100 import ROWS

BYTES = 4 * ROWS  # of LSE or delta of a tile


@cute.jit
def load_keys(w, operand, sX: cute.Tensor, full: cute.Pointer) -> None:
    """A warp: K or V, once. Nothing reads it where there are no blocks."""
    if w.total > 0:
        tiles = TileLoads(operand, w.place_of_keys, sX, w.dim, functions_of(w))
        tma_loads.load(tiles, Int32(0), w.keys_left, Int32(0), full)


@cute.jit
def load_queries(w, stage: Int32) -> None:
    """The warp of a stage of Q, for all of its steps."""
    lane, storage = w.thread % 32, w.storage
    for n in cutlass.range((w.total - stage + Q_STAGES - 1) // Q_STAGES, unroll=1):
        step = stage + n * Q_STAGES
        rBlock = look_up(w, step)
        cute.arch.mbarrier_wait(w.q_empty + stage, (n + 1) % 2)
        if lane == 0:
            cute.autovec_copy(rBlock, storage.sEntries[None, step % ENTRY_STAGES])
        load(w, w.q, w.statistics[0], as_block(rBlock), storage.sQ, storage.sLSE, stage, w.q_full + stage)


@cute.jit
def load_do(w) -> None:
    """The warp of dO, for all steps."""
    for step in cutlass.range(w.total, unroll=1):
        rBlock = look_up(w, step)
        cute.arch.mbarrier_wait(w.do_empty, (step + 1) % 2)
        load(w, w.do, w.statistics[1], as_block(rBlock), w.storage.sdO, w.storage.sDelta, Int32(0), w.do_full)


@cute.jit
def look_up(w, step: Int32) -> cute.Tensor:
    """The four words of a step's block, in every lane."""
    rBlock = cute.make_rmem_tensor(4, Int32)
    find_entry(w.variant, w.lists, w.order, w.counts, w.place, step, rBlock)
    return rBlock


@cute.jit
def load(
    w, operand, statistic, block: Block, sX: cute.Tensor, sValues: cute.Tensor, stage: Int32, full: cute.Pointer
) -> None:
    """A whole warp: 128 rows of an operand, and their LSE or delta, until they are there for products; then one arrival
    at `full`, which makes known too what the warp has written before."""
    tiling, batch = w.tiling, w.place[0]
    first = block.m_block * tiling.tile_m
    left = w.seq_q.length - first
    tile = tile_number(w.loads.tiles, batch, block.head, w.seq_q.begin, tiling.tile_m) + block.m_block
    source = statistic + cute.assume(tile * tiling.tile_m, divby=ROWS)
    values = (source, sValues.iterator + cute.assume(stage * ROWS, divby=ROWS))
    if cutlass.const_expr(tiling.tma):
        tiles = TileLoads(operand, (batch, block.head, w.seq_q.begin + first), sX, w.dim, functions_of(w))
        is_whole, (row, stride) = w.kernel.whole, tiles.start(Int32(0))
        if is_whole(left, tiling.tile_m):
            load_whole(tiles, values, stage, full)
        else:
            load_rows(w, (row, stride, left), values, sX[None, None, stage], full)
    else:
        row = operand.at(batch, Int64(w.seq_q.begin) + first, block.head)
        load_rows(w, (row, operand.stride_row, left), values, sX[None, None, stage], full)


@cute.jit
def load_whole(tiles: TileLoads, values, stage: Int32, full: cute.Pointer) -> None:
    """By TMA, one thread of the warp. values: (source, target) of LSE or delta."""
    bytes_of, (source, target) = tiles.functions["expected_bytes"], values
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_of(tiles.bytes + BYTES))
        load_run(target, source, BYTES, full)
    cute.arch.sync_warp()
    gX, sX = tiles.part(Int32(0), stage)
    cute.copy(tiles.operand.atom, gX, sX, tma_bar_ptr=full)  # elects a thread itself


@cute.jit
def load_rows(w, rows, values, sX: cute.Tensor, full: cute.Pointer) -> None:
    """By cp.async, all lanes of the warp. rows: (address of the first, stride, how many there are)."""
    lane = w.thread % 32
    copy = TileCopy(w.dtype, 32, w.tiling.dim, lane, w.dim)
    if cutlass.const_expr(w.tiling.tma):
        copy.load_rolled(rows[0], rows[1], rows[2], sX)
    else:
        copy.load(rows[0], rows[1], rows[2], sX)
    atom = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128
    )
    own = cute.assume(4 * lane, divby=4)
    source, target = (cute.make_tensor(pointer + own, cute.make_layout(4)) for pointer in values)
    cute.copy(atom, source, target)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    tcgen05.fence_shared()
    turns.arrive(full)


def functions_of(w) -> dict:
    """The functions that TileLoads takes."""
    return {
        "whole": w.kernel.whole,
        "expected_bytes": w.kernel.expected_bytes,
        "fence_shared": tcgen05.fence_shared,
        "offset": lambda rows, stride: rows * stride,
    }
