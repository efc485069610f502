# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Loading warps of the Blackwell backward kernel: Q with LSE and the block of a step, and dO with delta.

A warp waits until its stage is empty, copies rows with cp.async, waits for them, fences them for products, which read
through another path (the async proxy), and says full.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.backward.blackwell import turns
from kernels.blocksparse.backward.blackwell.tuning import Q_STAGES
from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, as_block, find_entry
from kernels.blocksparse.backward.tiling import ENTRY_STAGES
from kernels.blocksparse.common.tile_loads import TileCopy


@cute.jit
def load_queries(w, stage: Int32) -> None:
    """The warp of a stage of Q, for all of its steps."""
    lane, storage = w.thread % 32, w.storage
    for n in cutlass.range((w.total - stage + Q_STAGES - 1) // Q_STAGES, unroll=1):
        step = stage + n * Q_STAGES
        rBlock = look_up(w, step)
        cute.arch.mbarrier_wait(w.q_empty + stage, (n + 1) % 2)
        load(w, w.q, w.statistics[0], as_block(rBlock), storage.sQ, storage.sLSE, stage)
        if lane == 0:
            cute.autovec_copy(rBlock, storage.sEntries[None, step % ENTRY_STAGES])
        turns.arrive(w.q_full + stage)


@cute.jit
def load_do(w) -> None:
    """The warp of dO, for all steps."""
    for step in cutlass.range(w.total, unroll=1):
        rBlock = look_up(w, step)
        cute.arch.mbarrier_wait(w.do_empty, (step + 1) % 2)
        load(w, w.do, w.statistics[1], as_block(rBlock), w.storage.sdO, w.storage.sDelta, Int32(0))
        turns.arrive(w.do_full)


@cute.jit
def look_up(w, step: Int32) -> cute.Tensor:
    """The four words of a step's block, in every lane."""
    rBlock = cute.make_rmem_tensor(4, Int32)
    find_entry(w.variant, w.lists, w.place[0], w.place[2], w.first_head, step, rBlock)
    return rBlock


@cute.jit
def load(w, operand, statistic, block: Block, sX: cute.Tensor, sValues: cute.Tensor, stage: Int32) -> None:
    """128 rows of an operand, and their LSE or delta, until they are there for products."""
    tiling, batch = w.tiling, w.place[0]
    lane = w.thread % 32
    first = block.m_block * tiling.tile_m
    copy = TileCopy(w.dtype, 32, tiling.dim, lane, w.dim)
    rows = operand.at(batch, Int64(w.seq_q.begin) + first, block.head)
    copy.load(rows, operand.stride_row, w.seq_q.length - first, sX[None, None, stage])
    tile = tile_number(w.loads.tiles, batch, block.head, w.seq_q.begin, tiling.tile_m) + block.m_block
    atom = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128
    )
    source = statistic + cute.assume(tile * tiling.tile_m + 4 * lane, divby=4)
    target = sValues.iterator + cute.assume(stage * tiling.tile_m + 4 * lane, divby=4)
    cute.copy(atom, cute.make_tensor(source, cute.make_layout(4)), cute.make_tensor(target, cute.make_layout(4)))
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
