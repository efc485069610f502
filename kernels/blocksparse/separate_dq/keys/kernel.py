# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""dK and dV on sm_90a where dQ is separate: a persistent CTA takes tiles of 64 keys, one after the other.

    load K, V
    for each listed tile of queries of each head of the unit, a half of it in each warpgroup:
        P  = exp2(K Q^T scale - lse2)          keys are rows; masked where the block is partial or crosses the keys' end
        dS = P (V dO^T - delta)
        dV += P dO, dK += dS Q                 P and dS are operands from registers
    add up both warpgroups' dK and dV; store them or the unit's sums

Arguments, sums and statistics are those of backward/kernel.py. Nothing of the scores goes through shared memory, and
the warpgroups meet at the ends of tiles only.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.dkv_partials import keys_product, sums_of, write_sums
from kernels.blocksparse.backward.entry import Backward
from kernels.blocksparse.backward.gemms import share, store_float32
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.tiling import THREADS
from kernels.blocksparse.common import layouts
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.forward.hopper import pipeline, wgmma
from kernels.blocksparse.forward.hopper.pipeline import Buffers
from kernels.blocksparse.forward.hopper.tuning import WARPGROUP
from kernels.blocksparse.forward.mainloop import Work
from kernels.blocksparse.separate_dq.keys import loads, tiles
from kernels.blocksparse.separate_dq.keys.mainloop import LaneQueries, multiply_steps
from kernels.blocksparse.separate_dq.keys.tiles import Tile, TilePipeline
from kernels.blocksparse.separate_dq.keys.tuning import (
    GROUPS,
    LOADING,
    MULTIPLYING,
    RESIDENT,
    STAGES_DO,
    STAGES_Q,
    STEP,
    TILE_N,
    TILES,
    keys_tiling,
)

MEET = 1  # the named barrier of the multiplying warps


class KeysKernel(Backward):
    """The backward kernel of one variant with a separate dQ."""

    tune = staticmethod(keys_tiling)

    def ctas(self, tiles: Int32) -> Int32:
        """CTAs to launch for so many tiles of keys."""
        return cutlass.min(tiles, self.resident)

    @property
    def resident(self) -> int:
        """CTAs at most."""
        return dict(self.variant.tuning).get("resident", RESIDENT)

    @cute.kernel
    def kernel(
        self, q, k, v, do, statistics, gradients, queries, keys, lists, mask, order, counts, of_tiles, dim, factors
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        common = self.shared_work(thread)
        common.lists, common.mask, common.counts, common.dim = lists, mask, counts, dim
        common.tiles, common.factors = of_tiles, factors
        problem = (order, counts, lists, queries, keys)
        if warp_index < 4:
            cute.arch.setmaxregister_decrease(LOADING)
            self.load_tiles(common, warp_index, thread, (q, do, k, v), statistics, problem)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING)
            self.multiply_tiles(common, thread - WARPGROUP, gradients)

    @cute.jit
    def shared_work(self, thread: Int32):
        """The buffers in shared memory, their barriers initialised."""
        memory, dim = SmemAllocator(), self.variant.dim_padded
        pK, pV = (memory.allocate_array(self.dtype, TILES * TILE_N * dim, byte_alignment=1024) for _ in range(2))
        pQ, pdO = (
            memory.allocate_array(self.dtype, GROUPS * stages * STEP * dim, byte_alignment=1024)
            for stages in (STAGES_Q, STAGES_DO)
        )
        pLSE, pDelta = (
            memory.allocate_array(Float32, GROUPS * stages * STEP, byte_alignment=16)
            for stages in (STAGES_Q, STAGES_DO)
        )
        pBlock = memory.allocate_array(Int32, GROUPS * 3 * STAGES_Q, byte_alignment=4)
        ints = memory.allocate_array(Int32, tiles.INTS * tiles.TILE_STAGES, byte_alignment=4)
        counts = (2 * TILES, 2 * TILES, GROUPS * 2 * STAGES_Q, GROUPS * 2 * STAGES_DO, 2 * tiles.TILE_STAGES)
        of_k = memory.allocate_array(Int64, sum(counts), byte_alignment=8)
        of_v, of_q, of_do, of_tiles = (of_k + sum(counts[:i]) for i in range(1, 5))
        if thread == 0:
            pipeline.initialise(of_k, 2, TILES, GROUPS * 4)
            pipeline.initialise(of_q, GROUPS, STAGES_Q, 4)
            pipeline.initialise(of_do, GROUPS, STAGES_DO, 4)
            pipeline.initialise(of_tiles, 1, tiles.TILE_STAGES, 4 + GROUPS * 4)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        announced = cute.make_tensor(ints, cute.make_layout((tiles.INTS, tiles.TILE_STAGES)))
        return Work(
            tile_pipeline=TilePipeline(announced, Buffers(of_tiles, tiles.TILE_STAGES)),
            keys=(pK, pV),
            sK=wgmma.shared_tiles(pK, self.dtype, TILE_N, dim, TILES),
            sV=wgmma.shared_tiles(pV, self.dtype, TILE_N, dim, TILES),
            pointers=(pQ, pdO, pLSE, pDelta, pBlock, of_q, of_do),
            buffers_k=Buffers(of_k, TILES),
            buffers_v=Buffers(of_v, TILES),
        )

    def of_group(self, common, group: Int32) -> SimpleNamespace:
        """The buffers of a multiplying warpgroup."""
        pQ, pdO, pLSE, pDelta, pBlock, of_q, of_do = common.pointers
        dim = self.variant.dim_padded

        def tiles_of(pointer, stages):
            own = pointer + cute.assume(group * (stages * STEP * dim), divby=stages * STEP * dim)
            return wgmma.shared_tiles(own, self.dtype, STEP, dim, stages)

        def values_of(pointer, stages):
            own = pointer + cute.assume(group * (stages * STEP), divby=stages * STEP)
            return cute.make_tensor(own, cute.make_layout((STEP, stages)))

        return SimpleNamespace(
            sQ=tiles_of(pQ, STAGES_Q),
            sdO=tiles_of(pdO, STAGES_DO),
            sLSE=values_of(pLSE, STAGES_Q),
            sDelta=values_of(pDelta, STAGES_DO),
            sBlock=cute.make_tensor(pBlock + group * (3 * STAGES_Q), cute.make_layout((3, STAGES_Q))),
            buffers_q=Buffers(of_q + group * (2 * STAGES_Q), STAGES_Q),
            buffers_do=Buffers(of_do + group * (2 * STAGES_DO), STAGES_DO),
        )

    @cute.jit
    def load_tiles(self, common, warp_index, thread, operands, statistics, problem) -> None:
        """The loading warps: even ones Q, odd ones dO, two for each warpgroup; the first two K and V too, and the last
        one announces tiles."""
        announces, resident = thread == WARPGROUP - 1, self.resident
        order, counts = problem[0], problem[1]
        count, before, more = Int32(0), Int32(0), Boolean(True)
        if announces:
            tiles.announce(common.tile_pipeline, count, cute.arch.block_idx()[0], resident, problem)
        while more:
            tile = tiles.take(common.tile_pipeline, count)
            more = tile.batch >= 0
            count += 1
            if more:
                if announces:
                    total = counts.batch * counts.heads_kv * counts.group_split * counts.n_blocks
                    number = tiles.next_number(resident, order.tile_counter, total)
                    tiles.announce(common.tile_pipeline, count, number, resident, problem)
                cute.arch.sync_warp()
                self.load_tile(common, warp_index, thread % 32, operands, statistics, tile, count - 1, before)
                before += tile.total

    @cute.jit
    def load_tile(self, common, warp_index, lane, operands, statistics, tile: Tile, count, before) -> None:
        """One loading warp's part of a tile of keys."""
        q, do, k, v = operands
        group = warp_index // 2
        own = self.of_group(common, group)
        copy = TileCopy(self.dtype, 32, self.variant.dim_padded, lane, common.dim)
        w = Work(
            variant=self.variant,
            copy=copy,
            lists=common.lists,
            counts=common.counts,
            tiles=common.tiles,
            group=group,
            before=before,
        )
        first_key, head_kv = tile.n_block * TILE_N, tile.unit // common.counts.group_split
        row, left = Int64(tile.keys.begin) + first_key, tile.keys.length - first_key
        if warp_index == 0:
            first = k.at(tile.batch, row, head_kv)
            loads.fill_keys(copy, common.buffers_k, count, first, k.stride_row, left, common.sK)
        if warp_index == 1:
            first = v.at(tile.batch, row, head_kv)
            loads.fill_keys(copy, common.buffers_v, count, first, v.stride_row, left, common.sV)
        if warp_index % 2 == 0:
            loads.fill_steps(w, own.buffers_q, (q, statistics[0]), (own.sQ, own.sLSE), own.sBlock, tile)
        else:
            loads.fill_steps(w, own.buffers_do, (do, statistics[1]), (own.sdO, own.sDelta), None, tile)

    @cute.jit
    def multiply_tiles(self, common, thread, gradients) -> None:
        """The multiplying warpgroups. thread: of those that multiply."""
        count, before, more = Int32(0), Int32(0), Boolean(True)
        while more:
            tile = tiles.take(common.tile_pipeline, count)
            more = tile.batch >= 0
            if more:
                self.multiply(common, thread, tile, count, before, gradients)
                before += tile.total
            count += 1

    @cute.jit
    def multiply(self, common, thread, tile: Tile, count, before, gradients) -> None:
        """A tile of keys, the CTA's `count`-th, in a multiplying warpgroup; before: steps of earlier tiles."""
        variant, dim, mask = self.variant, self.variant.dim_padded, common.mask
        group, stage = cute.arch.make_warp_uniform(thread // WARPGROUP), count % TILES
        own = self.of_group(common, group)
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, tile.batch * mask.band_stride)
        mma_s = wgmma.scores_mma(self.dtype, TILE_N, STEP)
        mma_dkv = wgmma.values_mma(self.dtype, TILE_N, dim)
        slice_s, slice_dkv = mma_s.get_slice(0), mma_dkv.get_slice(0)
        acc_dk, acc_dv = (wgmma.accumulator(mma_dkv, (TILE_N, dim)) for _ in range(2))
        acc_dk.fill(0.0)
        sK, sV = (sX[None, None, stage] for sX in (common.sK, common.sV))
        pipeline.wait_full(common.buffers_k, count)
        pipeline.wait_full(common.buffers_v, count)
        multiply_steps(
            Work(
                **own.__dict__,
                variant=variant,
                dtype=self.dtype,
                thread=thread % WARPGROUP,
                group=group,
                batch=tile.batch,
                n_block=tile.n_block,
                queries_length=tile.queries.length,
                keys_left=tile.keys.length - tile.n_block * TILE_N,
                total=tile.total,
                before=before,
                mask=mask,
                band_offset=band_offset,
                words=LaneQueries(thread % WARPGROUP),
                tail_mask=self.tail_mask,
                start_of=self.start_of,
                to_log2=common.factors.to_log2,
                mma_s=mma_s,
                mma_dkv=mma_dkv,
                fragment_k=slice_s.make_fragment_A(slice_s.partition_A(sK)),
                fragment_v=slice_s.make_fragment_A(slice_s.partition_A(sV)),
                fragment_q=slice_s.make_fragment_B(slice_s.partition_B(own.sQ)),
                fragment_do=slice_s.make_fragment_B(slice_s.partition_B(own.sdO)),
                fragment_q_transposed=slice_dkv.make_fragment_B(slice_dkv.partition_B(wgmma.transposed(own.sQ))),
                fragment_do_transposed=slice_dkv.make_fragment_B(slice_dkv.partition_B(wgmma.transposed(own.sdO))),
                acc_s=wgmma.accumulator(mma_s, (TILE_N, STEP)),
                acc_dp=wgmma.accumulator(mma_s, (TILE_N, STEP)),
                acc_dk=acc_dk,
                acc_dv=acc_dv,
            )
        )
        acc_dk.store(acc_dk.load() * self.dk_factor(common.factors.scale))
        self.finish(common, thread, tile, stage, (acc_dk, acc_dv), gradients)
        pipeline.release(common.buffers_k, count)
        pipeline.release(common.buffers_v, count)

    @cute.jit
    def finish(self, common, thread, tile: Tile, stage: Int32, accumulators, gradients) -> None:
        """Adds up the warpgroups' dK and dV, half of the columns in each, and writes them; by way of the places of K
        and V, which have been read."""
        tiling, size = self.tiling, TILE_N * self.variant.dim_padded
        mma = keys_product(tiling, self.dtype).tiled_mma()
        shape = (TILE_N, self.variant.dim_padded)
        places = [pointer + cute.assume(stage * size, divby=size) for pointer in common.keys]
        head_kv = tile.unit // common.counts.group_split
        row = Int64(tile.keys.begin) + tile.n_block * TILE_N
        left = tile.keys.length - tile.n_block * TILE_N
        number = dq_accumulator.tile_number(gradients.tiles, tile.batch, tile.unit, tile.keys.begin, TILE_N)
        number += tile.n_block
        halves = [cute.make_rmem_tensor(mma.get_slice(0).partition_shape_C(shape), Float32) for _ in range(2)]
        for which in cutlass.range_constexpr(2):
            meet()
            exchange(accumulators[which], halves[which], places, thread)
        for which in cutlass.range_constexpr(2):
            half, target = halves[which], (gradients.dk, gradients.dv)[which]
            rows = (target.at(tile.batch, row, head_kv), target.stride_row)
            if common.counts.group_split > 1:
                write_sums(half, sums_of(gradients.sums, number, which, tiling), thread)
            elif cutlass.const_expr(self.variant.float32):
                store_float32(mma, half, shape, rows, left, common.dim, thread)
            else:
                sX = cute.make_tensor(places[which], layouts.tile_layout(*shape))
                copy = TileCopy(self.dtype, THREADS, shape[1], thread, common.dim)
                meet()
                share(mma, half, sX, thread, True)
                meet()
                store_rows(copy, sX, rows, left)


@cute.jit
def exchange(acc: cute.Tensor, half: cute.Tensor, places, thread: Int32) -> None:
    """Sends the columns of the other warpgroup's half to it, and adds its own to what comes: through places[group] for
    each group, float32."""
    count = cutlass.const_expr(cute.size(half))
    flat, sums = cute.make_tensor(acc.iterator, cute.make_layout(2 * count)), cute.make_tensor(half.iterator, count)
    first, lane = thread < WARPGROUP, thread % WARPGROUP
    layout = cute.make_layout((WARPGROUP, count))
    to_first, to_second = (cute.make_tensor(cute.recast_ptr(place, dtype=Float32), layout) for place in places)
    for i in cutlass.range_constexpr(count):
        sums[i] = flat[i] if first else flat[count + i]
    if first:
        for i in cutlass.range_constexpr(count):
            to_second[lane, i] = flat[count + i]
    else:
        for i in cutlass.range_constexpr(count):
            to_first[lane, i] = flat[i]
    meet()
    if first:
        for i in cutlass.range_constexpr(count):
            sums[i] = sums[i] + to_first[lane, i]
    else:
        for i in cutlass.range_constexpr(count):
            sums[i] = sums[i] + to_second[lane, i]


@cute.jit
def meet() -> None:
    """The multiplying warps wait for each other."""
    cute.arch.barrier(barrier_id=MEET, number_of_threads=THREADS)
