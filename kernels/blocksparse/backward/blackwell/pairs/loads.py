# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Loading warps of the Blackwell backward kernel of pairs: each CTA its shares of Q, dO, K and V, NOTE [shares].

As in blackwell/loads.py a warp waits until a place is empty and copies a tile into it: NOTE [whole tiles] of
tma_loads.py. A share is whole where all of its own rows belong to the sequence. LSE and delta are of all queries of a
step, in both CTAs.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.backward.blackwell.loads import BYTES, functions_of, look_up
from kernels.blocksparse.backward.blackwell.pairs.tuning import CTAS
from kernels.blocksparse.backward.blackwell.tuning import HALF, Q_STAGES
from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, as_block
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.common.bulk import load_run
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import BulkOperand, TileLoads
from kernels.blocksparse.spec.sm100 import ROWS


class Share(TileLoads):
    """A CTA's share of an operand: rows from place's on, and columns from `column` on; trace time only. operand: an
    Operand, or a BulkOperand for such shares. See TileLoads for the rest."""

    def __init__(self, w, operand, place, column: Int32 | int, sX: cute.Tensor) -> None:
        self.by_tma, self.column = isinstance(operand, BulkOperand), column
        if self.by_tma:
            super().__init__(operand, place, sX, w.dim - column, functions_of(w))
            batch, head, _ = place
            self.coordinates = cute.domain_offset((0, column), operand.coordinates[None, None, head, batch])
            self.source = operand.rows
        else:
            self.place, self.sX, self.dim, self.source = place, sX, w.dim - column, operand
            self.rows, self.dim_padded = cute.size(sX, mode=[0]), cute.size(sX, mode=[1])

    def start(self):
        """(address, stride of rows) of the share."""
        batch, head, first = self.place
        address = self.source.at(batch, Int64(first), head) + cute.assume(self.column, divby=8)
        return address, self.source.stride_row


@cute.jit
def load_keys(w, operand, sX: cute.Tensor, full: cute.Pointer) -> None:
    """A warp: K or V of the CTA's keys, once."""
    keys_of_cta = w.kernel.keys_of_cta
    if w.total > 0:
        batch, head, row = w.place_of_keys
        share = Share(w, operand, (batch, head, row + w.rank * ROWS), 0, sX)
        load(w, share, keys_of_cta(w.keys_left, w.rank), None, Int32(0), full)


@cute.jit
def load_keys_by_columns(w) -> None:
    """A warp: K of the keys of both CTAs, half of the columns, once."""
    keys_of_cta = w.kernel.keys_of_cta
    if w.total > 0:
        batch, head, row = w.place_of_keys
        for cta in cutlass.range_constexpr(CTAS):
            share = Share(w, w.k_columns, (batch, head, row + cta * ROWS), w.column, w.storage.sKc)
            load(w, share, keys_of_cta(w.keys_left, cta), None, Int32(cta), w.kc_full)


@cute.jit
def load_queries(w, stage: Int32) -> None:
    """The warp of a stage of Q by rows, for all of its steps; with LSE and the block."""
    lane, storage, row_of_share = w.thread % 32, w.storage, w.kernel.row_of_share
    for n in cutlass.range((w.total - stage + Q_STAGES - 1) // Q_STAGES, unroll=1):
        rBlock = look_up(w, stage + n * Q_STAGES)
        cute.arch.mbarrier_wait(w.q_empty + stage, (n + 1) % 2)
        if lane == 0:
            cute.autovec_copy(rBlock, storage.sEntries[None, stage])
        values = values_of(w, w.statistics[0], as_block(rBlock), storage.sLSE, stage)
        load_share(w, w.q, as_block(rBlock), row_of_share(w.rank), 0, storage.sQ, values, stage, w.q_full + stage)


@cute.jit
def load_queries_after_columns(w) -> None:
    """The warp of the second stage of Q by rows, and K by columns before it."""
    load_keys_by_columns(w)
    load_queries(w, Int32(1))


@cute.jit
def load_do_and_columns(w) -> None:
    """A warp: dO of all steps, by rows with delta and by columns; and then Q by columns."""
    storage, row_of_share = w.storage, w.kernel.row_of_share
    for step in cutlass.range(w.total, unroll=1):
        rBlock, none = look_up(w, step), Int32(0)
        block = as_block(rBlock)
        cute.arch.mbarrier_wait(w.do_empty, (step + 1) % 2)
        values = values_of(w, w.statistics[1], block, storage.sDelta, none)
        load_share(w, w.do, block, row_of_share(w.rank), 0, storage.sdO, values, none, w.do_full)
        load_share(w, w.do_columns, block, none, w.column, storage.sdOc, None, none, w.do_full)
        cute.arch.mbarrier_wait(w.qc_empty, (step + 1) % 2)
        load_share(w, w.q_columns, block, none, w.column, storage.sQc, None, none, w.qc_full)


@cute.jit
def load_share(
    w, operand, block: Block, row: Int32, column: Int32 | int, sX: cute.Tensor, values, stage: Int32, full: cute.Pointer
) -> None:
    """A whole warp: a share of a block of queries, from this row of it on."""
    first = block.m_block * w.tiling.tile_m + row
    share = Share(w, operand, (w.place[0], block.head, w.seq_q.begin + first), column, sX)
    load(w, share, w.seq_q.length - first, values, stage, full)


def values_of(w, statistic, block: Block, sValues: cute.Tensor, stage: Int32):
    """(source, target) of LSE or delta of a block of queries."""
    tiling = w.tiling
    tile = tile_number(w.loads.tiles, w.place[0], block.head, w.seq_q.begin, tiling.tile_m) + block.m_block
    source = statistic + cute.assume(tile * tiling.tile_m, divby=ROWS)
    return source, sValues.iterator + cute.assume(stage * ROWS, divby=ROWS)


@cute.jit
def load(w, share: Share, left: Int32, values, stage: Int32, full: cute.Pointer) -> None:
    """A whole warp: a share, with LSE or delta (or None), until it is there for products; then one arrival at `full`,
    which makes known too what the warp has written before. left: rows of the sequence from the share's first on."""
    if cutlass.const_expr(share.by_tma):
        is_whole = w.kernel.whole
        if is_whole(left, share.rows):
            load_whole(share, values, stage, full)
        else:
            load_rows(w, share, left, values, stage, full)
    else:
        load_rows(w, share, left, values, stage, full)


@cute.jit
def load_whole(share: Share, values, stage: Int32, full: cute.Pointer) -> None:
    """By TMA, one thread of the warp."""
    bytes_of = share.functions["expected_bytes"]
    if cute.arch.lane_idx() == 0:
        if cutlass.const_expr(values is None):
            cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_of(share.bytes))
        else:
            cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_of(share.bytes + BYTES))
            load_run(values[1], values[0], BYTES, full)
    cute.arch.sync_warp()
    gX, sX = share.part(Int32(0), stage)
    cute.copy(share.operand.atom, gX, sX, tma_bar_ptr=full)  # elects a thread itself


@cute.jit
def load_rows(w, share: Share, left: Int32, values, stage: Int32, full: cute.Pointer) -> None:
    """By cp.async, all lanes of the warp."""
    lane, (pointer, stride) = w.thread % 32, share.start()
    copy = TileCopy(w.dtype, 32, share.dim_padded, lane, share.dim)
    copy.load_rolled(pointer, stride, left, share.sX[None, None, stage])
    if cutlass.const_expr(values is not None):
        atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128
        )
        own = cute.assume(4 * lane, divby=4)
        source, target = (cute.make_tensor(pointer + own, cute.make_layout(4)) for pointer in values)
        cute.copy(atom, source, target)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    tcgen05.fence_shared()
    cute.arch.sync_warp()
    if lane == 0:
        cute.arch.mbarrier_arrive(full)


def keys_of_cta(keys_left: Int32, rank: Int32 | int) -> Int32:
    """The keys of the sequence from a CTA's first one on; not positive where it has none. keys_left: of the pair."""
    return keys_left - rank * ROWS


def row_of_share(rank: Int32) -> Int32:
    """The first query of a CTA's share by rows."""
    return rank * HALF
