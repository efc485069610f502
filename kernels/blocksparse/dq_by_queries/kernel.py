# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ kernel for sm_90a: a persistent CTA takes tiles of queries, one after the other.

    load Q, dO; lse2 and delta of each row
    for each listed block of keys, step by step:
        P  = exp2(Q K^T scale - lse2)          masked where the block is partial or crosses the keys' end
        dS = P (dO V^T - delta)
        dQ += dS K                             in registers over the whole row
    store dQ, once

NOTE [separate dQ] The backward kernel adds to dQ in memory, 64 KB for each pair of 128 queries and 64 keys, beside the
64 KB of Q and dO that it reads. Where tiles of keys list scattered tiles of queries, all of that comes from memory.
Here a pair costs 32 KB of K and V, which all query heads of a KV head share, and the backward kernel, without dQ,
64 KB: for seven products instead of five. No sums of dQ lie in memory, nothing is added there, and no CTA waits for a
semaphore: gradients are bitwise the same in every run.

Tiles are those of NOTE [tiles] of forward/tile_scheduler.py, buffers those of NOTE [loads of dQ] of loads.py,
and statistics those of NOTE [statistics] of backward/preprocess.py.
"""

from typing import NamedTuple

import cutlass
from cuda.bindings import driver
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import warp
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward import dq_accumulator, softmax_gradient
from kernels.blocksparse.backward.gemms import store_float32
from kernels.blocksparse.backward.softmax_gradient import LOG2_E, Factors
from kernels.blocksparse.common.arguments import block_list, entry, mask_of, operand, sequences_of
from kernels.blocksparse.common.buffers import Buffers, initialise, release, wait_full
from kernels.blocksparse.common.list_reader import BlockList, Operand, Sequences, read
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.dq_by_queries import mainloop
from kernels.blocksparse.dq_by_queries.loads import fill, fill_steps, rows_from
from kernels.blocksparse.dq_by_queries.tuning import LOADING, STEP, WORKERS, dq_tuning
from kernels.blocksparse.forward import tile_scheduler
from kernels.blocksparse.forward.hopper import wgmma
from kernels.blocksparse.forward.hopper.tuning import ROWS, WARPGROUP
from kernels.blocksparse.forward.kernel import kv_head_of
from kernels.blocksparse.forward.mainloop import Work, allow_all, keep_keys
from kernels.blocksparse.forward.tile_order import Order, order_of
from kernels.blocksparse.forward.tile_scheduler import Tile
from kernels.blocksparse.spec.variant import NO_INJECTION, OF_DQ, Injection, Variant


class Rows(NamedTuple):
    """lse2 and delta of all queries, and where each sequence's tiles lie."""

    lse2: cute.Pointer
    delta: cute.Pointer
    tiles: dq_accumulator.Tiles


class DQByQueries:
    """The dQ kernel of one variant; calling it (under cute.compile) launches it."""

    INJECTION_POINTS = OF_DQ

    def __init__(self, variant: Variant, injection: Injection = NO_INJECTION) -> None:
        injection.check(self.INJECTION_POINTS, "the dQ kernel")
        self.variant, self.tuning = variant, dq_tuning(variant)
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]
        self.statistics_row = injection.pick("statistics_row", statistics_row)
        self.keep_keys = injection.pick("keep_listed_keys", keep_keys)
        self.release_scored = injection.pick("release_scored", mainloop.release_scored)
        self.release_multiplied = injection.pick("release_multiplied", mainloop.release_multiplied)
        self.dq_factor = injection.pick("dq_factor", dq_factor)

    @entry("dq")
    @cute.jit
    def __call__(self, arguments, stream: driver.CUstream) -> None:
        """Launch `resident` CTAs over batch x heads_q x m_blocks tiles.

        q … dq         (…, rows, heads, dim) of the variant's dtype, dq float32 where it says so, 16-byte aligned;
                       strides are multiples of 8
        lse2, delta    fp32: NOTE [statistics] of backward/preprocess.py; tiles_*: dq_accumulator.py's Tiles
        *_begin, *_length   int32 (batch): where a sequence's rows start, counted from the batch's start, and how many
        partial, full  the forward block lists, common/list_reader.py; mask_*, band_*: common/mask_words.py
        schedule, positions, l2_head_section, order_*, resident, tile_counter   as the forward kernel takes them
        scale, cap     positive
        """
        a = arguments
        if cutlass.const_expr(self.variant.softcap):
            factors = Factors(a.scale / a.cap, a.cap * LOG2_E, a.scale)
        else:
            factors = Factors(Float32(1.0), a.scale * LOG2_E, a.scale)
        self.kernel(
            operand(a, "q"),
            operand(a, "k"),
            operand(a, "v"),
            operand(a, "do"),
            operand(a, "dq"),
            Rows(a.lse2, a.delta, dq_accumulator.Tiles(a.tiles_stride_batch, a.tiles_total)),
            sequences_of(a, "q"),
            sequences_of(a, "k"),
            (block_list(a, "partial"), block_list(a, "full")),
            mask_of(a),
            (a.batch, a.heads_q, a.heads_kv, a.m_blocks),
            a.dim,
            order_of(a),
            (a.resident, a.tile_counter),
            factors,
        ).launch(
            grid=[a.resident, 1, 1],
            block=[self.tuning.threads(self.variant), 1, 1],
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        do: Operand,
        dq: Operand,
        rows: Rows,
        queries: Sequences,
        keys: Sequences,
        lists: tuple[BlockList, BlockList],
        mask: Mask,
        shape: tuple[Int32, Int32, Int32, Int32],
        dim: Int32,
        order: Order,
        persistent: tuple[Int32, cute.Pointer],
        factors: Factors,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        common = self.shared_work(thread)
        common.lists, common.shape, common.dim, common.mask = lists, shape, dim, mask
        if warp_index < 4:
            cute.arch.setmaxregister_decrease(LOADING)
            self.load_tiles(common, warp_index, thread, (q, do, k, v), (shape, order, lists, queries, keys), persistent)
        else:
            cute.arch.setmaxregister_increase(self.tuning.registers(self.variant))
            self.multiply_tiles(common, thread - WARPGROUP, dq, rows, factors)

    @cute.jit
    def shared_work(self, thread: Int32):
        """The buffers in shared memory, their barriers initialised."""
        memory, tuning, variant, dim = SmemAllocator(), self.tuning, self.variant, self.variant.dim_padded
        groups, rows = tuning.warpgroups(variant), tuning.tiles * variant.tile_m
        counts = (2 * tuning.stages_k, 2 * tuning.stages_v, 2 * tuning.tiles * groups, 2 * tile_scheduler.TILE_STAGES)
        sQ, sdO, sK, sV = (
            memory.allocate_array(self.dtype, size * dim, byte_alignment=1024)
            for size in (rows, rows, tuning.stages_k * STEP, tuning.stages_v * STEP)
        )
        of_k = memory.allocate_array(Int64, sum(counts), byte_alignment=8)
        places = memory.allocate_array(Int32, 2 * tuning.stages_k, byte_alignment=4)
        ints = memory.allocate_array(Int32, tile_scheduler.INTS * tile_scheduler.TILE_STAGES, byte_alignment=4)
        longs = memory.allocate_array(Int64, tile_scheduler.LONGS * tile_scheduler.TILE_STAGES, byte_alignment=8)
        of_v, of_q = of_k + counts[0], of_k + sum(counts[:2])
        of_tiles = of_k + sum(counts[:3])
        if thread == 0:
            initialise(of_k, 1, tuning.stages_k, groups * 4)
            initialise(of_v, 1, tuning.stages_v, groups * 4)
            initialise(of_q, groups, tuning.tiles, 4)
            initialise(of_tiles, 1, tile_scheduler.TILE_STAGES, 4 + groups * 4)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        return Work(
            tile_pipeline=tile_scheduler.tile_pipeline(ints, longs, of_tiles),
            sQ=wgmma.shared_tiles(sQ, self.dtype, variant.tile_m, dim, tuning.tiles),
            sdO=wgmma.shared_tiles(sdO, self.dtype, variant.tile_m, dim, tuning.tiles),
            sK=wgmma.shared_tiles(sK, self.dtype, STEP, dim, tuning.stages_k),
            sV=wgmma.shared_tiles(sV, self.dtype, STEP, dim, tuning.stages_v),
            sPlace=cute.make_tensor(places, cute.make_layout((2, tuning.stages_k))),
            buffers_q=of_q,
            buffers_k=Buffers(of_k, tuning.stages_k),
            buffers_v=Buffers(of_v, tuning.stages_v),
        )

    @cute.jit
    def load_tiles(self, common: Work, warp_index, thread, operands, problem, persistent) -> None:
        """The loading warps: two of K, two of V, Q and dO; the last one announces tiles too."""
        announces, tile_m = thread == WARPGROUP - 1, self.variant.tile_m
        count, before, more = Int32(0), Int32(0), Boolean(True)
        if announces:
            number = cute.arch.block_idx()[0]
            tile_scheduler.announce(common.tile_pipeline, count, number, tile_m, problem, persistent)
        while more:
            tile = tile_scheduler.take(common.tile_pipeline, count, common.lists)
            more = tile.batch >= 0
            count += 1
            if more:
                if announces:
                    total = tile_scheduler.tiles_of(*problem[:2])
                    number = tile_scheduler.next_number(persistent[0], persistent[1], total)
                    tile_scheduler.announce(common.tile_pipeline, count, number, tile_m, problem, persistent)
                cute.arch.sync_warp()
                self.load_tile(common, warp_index, thread % 32, operands, tile, count - 1, before)
                before += tile.tile_iterator.entries * (self.variant.tile_n // STEP)

    @cute.jit
    def load_tile(self, common: Work, warp_index, lane, operands, tile: Tile, count: Int32, before: Int32) -> None:
        """One loading warp's part of a tile. count: tiles before it; before: their steps."""
        variant, (q, do, k, v) = self.variant, operands
        dim, worker = variant.dim_padded, warp_index % WORKERS
        w = Work(
            variant=variant,
            copy=TileCopy(self.dtype, 32, dim, lane, common.dim),
            mask=common.mask,
            length_k=tile.keys.length,
            tile_iterator=tile.tile_iterator,
            before=before,
        )
        head_kv = kv_head_of(tile.head, common.shape[1], common.shape[2])
        if warp_index < WORKERS:
            first = k.at(tile.batch, Int64(tile.keys.begin), head_kv)
            fill_steps(w, common.buffers_k, (first, k.stride_row), common.sK, common.sPlace, worker)
        else:
            row = tile.m_block * variant.tile_m + worker * ROWS
            pairs = []
            for x, sX in ((q, common.sQ), (do, common.sdO)):
                first = x.at(tile.batch, Int64(tile.queries.begin), tile.head)
                own = cute.local_tile(sX, (ROWS, dim, 1), (worker, 0, count % self.tuning.tiles))
                pairs.append((rows_from((first, x.stride_row), row, tile.queries.length), own[None, None, 0]))
            fill(w.copy, self.buffers_q(common, worker), count, pairs)
            first = v.at(tile.batch, Int64(tile.keys.begin), head_kv)
            fill_steps(w, common.buffers_v, (first, v.stride_row), common.sV, None, worker)

    def buffers_q(self, common: Work, group: Int32) -> Buffers:
        """Those of the rows of Q and dO that a warpgroup multiplies."""
        return Buffers(common.buffers_q + 2 * self.tuning.tiles * group, self.tuning.tiles)

    @cute.jit
    def multiply_tiles(self, common: Work, thread, dq: Operand, rows: Rows, factors: Factors) -> None:
        """The multiplying warpgroups. thread: of those that multiply."""
        count, before, more = Int32(0), Int32(0), Boolean(True)
        while more:
            tile = tile_scheduler.take(common.tile_pipeline, count, common.lists)
            more = tile.batch >= 0
            if more:
                self.multiply(common, thread, tile, count, before, dq, rows, factors)
                before += tile.tile_iterator.entries * (self.variant.tile_n // STEP)
            count += 1

    @cute.jit
    def multiply(self, common: Work, thread, tile: Tile, count, before, dq: Operand, rows: Rows, factors) -> None:
        """A multiplying warpgroup's rows of a tile, the CTA's `count`-th; before: steps of earlier tiles."""
        variant, mask = self.variant, common.mask
        tile_m, dim = variant.tile_m, variant.dim_padded
        first_row = tile.m_block * tile_m
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, tile.batch * mask.band_stride)
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        sQ, sdO = (sX[None, None, count % self.tuning.tiles] for sX in (common.sQ, common.sdO))
        mma_s, mma_dq = wgmma.scores_mma(self.dtype, tile_m, STEP), wgmma.values_mma(self.dtype, tile_m, dim)
        slice_s, slice_dq = mma_s.get_slice(group * WARPGROUP), mma_dq.get_slice(group * WARPGROUP)
        acc_s, acc_dp = (wgmma.accumulator(STEP) for _ in range(2))
        acc_dq = wgmma.accumulator(dim)
        acc_dq.fill(0.0)
        mask_rows = wgmma.AccumulatorRows(mma_s, thread, (tile_m, STEP))
        at = dq_accumulator.tile_number(rows.tiles, tile.batch, tile.head, tile.queries.begin, tile_m) + tile.m_block
        at = [self.statistics_row(at * tile_m, row) for row in mask_rows.row]
        buffers_q = self.buffers_q(common, group)
        # read while Q and dO are on their way
        lse2, delta = ([read(values, row) for row in at] for values in (rows.lse2, rows.delta))
        wait_full(buffers_q, count)
        mainloop.multiply_steps(
            Work(
                variant=variant,
                tuning=_Step,
                dtype=self.dtype,
                keep_keys=self.keep_keys,
                allow_all=allow_all,
                slope_of=softmax_gradient.slope_of,
                release_scored=self.release_scored,
                release_multiplied=self.release_multiplied,
                length_k=tile.keys.length,
                tile_iterator=tile.tile_iterator,
                before=before,
                mask=mask,
                mask_rows=mask_rows,
                place=(tile.batch, tile.head, tile.m_block),
                first_row=first_row,
                rows_left=tile.queries.length - first_row,
                band_offset=band_offset,
                lse2=lse2,
                delta=delta,
                factors=factors,
                mma_s=mma_s,
                mma_dq=mma_dq,
                fragment_q=slice_s.make_fragment_A(slice_s.partition_A(sQ)),
                fragment_do=slice_s.make_fragment_A(slice_s.partition_A(sdO)),
                fragment_k=slice_s.make_fragment_B(slice_s.partition_B(common.sK)),
                fragment_v=slice_s.make_fragment_B(slice_s.partition_B(common.sV)),
                fragment_k_transposed=slice_dq.make_fragment_B(slice_dq.partition_B(wgmma.transposed(common.sK))),
                sPlace=common.sPlace,
                buffers_k=common.buffers_k,
                buffers_v=common.buffers_v,
                acc_s=acc_s,
                acc_dp=acc_dp,
                acc_dq=acc_dq,
                slope=cute.make_rmem_tensor_like(acc_s) if cutlass.const_expr(variant.softcap) else None,
            )
        )
        acc_dq.store(acc_dq.load() * self.dq_factor(factors.scale))
        self.store(common, thread, tile, dq, mma_dq, acc_dq, sQ)
        release(buffers_q, count)

    @cute.jit
    def store(self, common: Work, thread, tile: Tile, dq: Operand, mma_dq, acc_dq, sQ) -> None:
        """Writes a warpgroup's rows of dQ: float32 ones from registers, others by way of its rows of Q."""
        variant, dim = self.variant, self.variant.dim_padded
        first_row = tile.m_block * variant.tile_m
        rows_left = tile.queries.length - first_row
        target = dq.at(tile.batch, Int64(tile.queries.begin) + first_row, tile.head)
        if cutlass.const_expr(variant.float32):
            rows = (target, dq.stride_row)
            store_float32(mma_dq, acc_dq, (variant.tile_m, dim), rows, rows_left, common.dim, thread)
        else:
            group = cute.arch.make_warp_uniform(thread // WARPGROUP)
            values = cute.make_rmem_tensor_like(acc_dq, self.dtype)
            values.store(acc_dq.load().to(self.dtype))
            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), self.dtype)
            to_shared = cute.make_tiled_copy_C(atom, mma_dq).get_slice(thread)
            # all of the group's products have read Q
            meet(group)
            cute.copy(to_shared, to_shared.retile(wgmma.as_accumulator(values)), to_shared.partition_D(sQ))
            meet(group)
            own = cute.local_tile(sQ, (ROWS, dim), (group, 0))
            copy = TileCopy(self.dtype, WARPGROUP, dim, thread % WARPGROUP, common.dim)
            copy.store(own, *rows_from((target, dq.stride_row), group * ROWS, rows_left))


class _Step:
    """The part of a tuning that masks need."""

    step = STEP


def meet(group: Int32) -> None:
    """The warpgroup's threads wait for each other."""
    cute.arch.barrier(barrier_id=1 + group, number_of_threads=WARPGROUP)


@cute.jit
def statistics_row(tile: Int64, row: Int32) -> Int64:
    """Where a query's statistics are, of the tile that begins at `tile`."""
    return tile + row


@cute.jit
def dq_factor(scale: Float32) -> Float32:
    """The factor from dS K to dQ: the scale that forward applied to q·k."""
    return scale
