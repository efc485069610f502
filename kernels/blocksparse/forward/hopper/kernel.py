# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The forward kernel for sm_90a: one warpgroup loads, one for each 64 query rows of the tile multiplies.

Signature, order of tiles and epilogue's numbers are Forward's; NOTE [tiles] of tile_scheduler.py says which tiles a
CTA takes, NOTE [buffers] of forward/loads.py how loads and products meet, NOTE [asynchronous wgmma] of wgmma.py what
may be touched when.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import warp
from cutlass.memory import SmemAllocator

from kernels.blocksparse.common import buffers, clusters, layouts, split_tiles, tma_loads
from kernels.blocksparse.common.arguments import operand
from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.common.list_reader import BlockList, Operand, Sequences, TileIterator, read
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.split_tiles import numbers_of, split_tiles_of
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import BulkOperand, TileLoads
from kernels.blocksparse.forward import loads, tile_scheduler
from kernels.blocksparse.forward.hopper import wgmma as products
from kernels.blocksparse.forward.hopper.mainloop import multiply_steps
from kernels.blocksparse.forward.hopper.split_sums import combine
from kernels.blocksparse.forward.hopper.tuning import ROWS, WARPGROUP, hopper_tuning
from kernels.blocksparse.forward.kernel import Forward
from kernels.blocksparse.forward.mainloop import Work
from kernels.blocksparse.forward.tile_order import Order
from kernels.blocksparse.forward.tile_scheduler import Tile
from kernels.blocksparse.spec.variant import NO_INJECTION, OF_CLUSTERS, OF_NESTED, OF_SPLITS, OF_TMA, Injection, Variant


class Result(NamedTuple):
    """The sums of a multiplying warpgroup's rows, and the addresses of O and LSE that they are stored to."""

    acc_o: cute.Tensor
    row_ref: cute.Tensor
    row_sum: cute.Tensor
    mask_rows: products.AccumulatorRows
    mma_o: cute.TiledMma
    rows_left: Int32
    to_log2: Float32
    o: tuple[cute.Pointer, Int64]
    lse_row: cute.Pointer


class HopperForward(Forward):
    """The forward kernel of one variant with products "wgmma"."""

    INJECTION_POINTS = (*Forward.INJECTION_POINTS, *OF_TMA, *OF_CLUSTERS, *OF_NESTED, *OF_SPLITS)
    PERSISTENT = True
    tune = staticmethod(hopper_tuning)

    def __init__(self, variant: Variant, injection: Injection = NO_INJECTION) -> None:
        super().__init__(variant, injection)
        if self.tuning.cluster > 1:
            self.cluster = (self.tuning.cluster, 1, 1)
        self.meet_at_start = injection.pick("meet_at_start", clusters.meet)
        self.nested_rows = injection.pick("nested_rows", tile_scheduler.nested_rows) if self.tuning.nested else None
        self.mask_own = injection.pick("mask_own", mask_own)
        self.leave = injection.pick("leave", clusters.leave)
        self.arrive_part = injection.pick("arrive_part", split_tiles.arrive)
        self.entries_of_part = injection.pick("entries_of_part", split_tiles.entries_of)
        self.wait_filled = injection.pick("wait_filled", buffers.wait_filled)
        self.wait_empty = injection.pick("wait_empty", buffers.wait_empty)
        self.whole = injection.pick("whole", tma_loads.whole)
        self.expected_bytes = injection.pick("expected_bytes", tma_loads.expected_bytes)
        self.fence_shared = injection.pick("fence_shared", cute.arch.fence_view_async_shared)

    def persistent(self, arguments) -> tuple:
        """See Forward; with the tiles that are split, where any may be."""
        found = super().persistent(arguments)
        return (*found, split_tiles_of(arguments)) if self.tuning.splits else found

    def operand(self, arguments, name: str) -> Operand | BulkOperand:
        """See Forward; what is loaded by TMA with its tensor map."""
        a, variant = arguments, self.variant
        found = operand(a, name)
        if not self.tuning.tma or name == "o":
            return found
        rows, heads = (ROWS, a.heads_q) if name == "q" else (self.tuning.step, a.heads_kv)
        shared = products.tile_layout(self.dtype, rows, variant.dim_padded, 1)
        ctas = 1 if name == "q" else self.tuning.cluster
        return tma_loads.bulk_operand(found, shared, heads, a.batch, a.dim, ctas=ctas)

    def shared_memory(self) -> tuple[cute.Pointer, ...]:
        """The tiles of Q, later O; the stages of K; the stages of V; the barriers; places of K; announced tiles; where
        any may be split, whether a warpgroup was the last of a tile's parts."""
        memory, tuning, variant = SmemAllocator(), self.tuning, self.variant
        tile = tuning.stages * tuning.step * variant.dim_padded
        size_q = tuning.tiles * variant.tile_m * variant.dim_padded
        barriers = 4 * tuning.stages + 2 * tuning.tiles * tuning.warpgroups(variant) + 2 * tile_scheduler.TILE_STAGES
        return (
            memory.allocate_array(self.dtype, size_q, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(Int64, barriers, byte_alignment=8),
            memory.allocate_array(Int32, 2 * tuning.stages, byte_alignment=4),
            memory.allocate_array(Int32, tile_scheduler.INTS * tile_scheduler.TILE_STAGES, byte_alignment=4),
            memory.allocate_array(Int64, tile_scheduler.LONGS * tile_scheduler.TILE_STAGES, byte_alignment=8),
            memory.allocate_array(Int32, tuning.warpgroups(variant), byte_alignment=4) if tuning.splits else None,
        )

    @cute.kernel
    def kernel(
        self,
        q: Operand | BulkOperand,
        k: Operand | BulkOperand,
        v: Operand | BulkOperand,
        o: Operand,
        lse: cute.Pointer,
        lse_strides: tuple[Int64, Int64],
        queries: Sequences,
        keys: Sequences,
        lists: tuple[BlockList, BlockList],
        mask: Mask,
        shape: tuple[Int32, Int32, Int32, Int32],
        dim: Int32,
        order: Order,
        persistent: tuple[Int32, cute.Pointer],
        to_tanh: Float32,
        to_log2: Float32,
    ) -> None:
        variant, tuning = self.variant, self.tuning
        stages, groups = tuning.stages, tuning.warpgroups(variant)
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        sQ, sK, sV, barriers, places, ints, longs, last = self.shared_memory()
        (resident, tile_counter), splits = persistent[:2], persistent[2] if tuning.splits else None
        persistent = resident, tile_counter
        of_q, of_tiles = barriers + 4 * stages, barriers + 4 * stages + 2 * tuning.tiles * groups
        if thread == 0:
            buffers.initialise(barriers, 2, stages, groups * 4 * tuning.cluster)
            buffers.initialise(of_q, groups, tuning.tiles, 4)
            buffers.initialise(of_tiles, 1, tile_scheduler.TILE_STAGES, 4 + groups * 4)
            cute.arch.mbarrier_init_fence()
        cluster = clusters.cluster_of(tuning.cluster)
        self.meet_at_start(cluster)
        common = Work(
            tile_pipeline=tile_scheduler.tile_pipeline(ints, longs, of_tiles),
            lists=lists,
            shape=shape,
            dim=dim,
            mask=mask,
            sQ=products.shared_tiles(sQ, self.dtype, variant.tile_m, variant.dim_padded, tuning.tiles),
            sK=products.shared_tiles(sK, self.dtype, tuning.step, variant.dim_padded, stages),
            sV=products.shared_tiles(sV, self.dtype, tuning.step, variant.dim_padded, stages),
            sPlace=cute.make_tensor(places, cute.make_layout((2, stages))),
            buffers_q=of_q,
            buffers_k=Buffers(barriers, stages, tuning.cluster),
            buffers_v=Buffers(barriers + 2 * stages, stages, tuning.cluster),
            splits=splits,
            sLast=cute.make_tensor(last, cute.make_layout(groups)) if tuning.splits else None,
        )
        if warp_index < 4:
            if cutlass.const_expr(tuning.registers):
                cute.arch.setmaxregister_decrease(tuning.loading)
            load = self.load_by_tma if tuning.tma else self.load_tiles
            load(common, warp_index, thread, (q, k, v), (shape, order, lists, queries, keys), persistent)
        else:
            if cutlass.const_expr(tuning.registers):
                cute.arch.setmaxregister_increase(tuning.registers)
            self.multiply_tiles(common, thread - WARPGROUP, o, (lse, lse_strides), (to_tanh, to_log2))
        self.leave(cluster)

    @cute.jit
    def load_tiles(self, common: Work, warp_index, thread, operands, problem, persistent) -> None:
        """The loading warps: even ones K, odd ones V, two for each stage, and Q; the last one announces tiles too."""
        variant, tuning = self.variant, self.tuning
        steps_per_block = variant.tile_n // tuning.step
        stage, announces = warp_index // 2, thread == WARPGROUP - 1
        count, before, more = Int32(0), Int32(0), Boolean(True)
        if announces:
            tile_scheduler.announce(
                common.tile_pipeline, count, cute.arch.block_idx()[0], variant.tile_m, problem, persistent
            )
        while more:
            tile = tile_scheduler.take(common.tile_pipeline, count, common.lists)
            more = tile.batch >= 0
            count += 1
            if more:
                if announces:
                    resident, tile_counter = persistent
                    total = tile_scheduler.tiles_of(*problem[:2])
                    number = tile_scheduler.next_number(resident, tile_counter, total)
                    tile_scheduler.announce(common.tile_pipeline, count, number, variant.tile_m, problem, persistent)
                cute.arch.sync_warp()
                if stage < tuning.stages:
                    self.load_tile(common, warp_index, thread % 32, operands, tile, count - 1, before)
                before += tile.tile_iterator.entries * steps_per_block

    @cute.jit
    def load_tile(self, common: Work, warp_index, lane, operands, tile: Tile, count: Int32, before: Int32) -> None:
        """One loading warp's part of a tile. before: steps of earlier tiles."""
        variant, tuning = self.variant, self.tuning
        stage, (q, k, v), mask = warp_index // 2, operands, common.mask
        w = Work(
            variant=variant,
            tuning=tuning,
            key_offset=self.key_offset,
            keys_left=self.keys_left,
            copy=TileCopy(self.dtype, 32, variant.dim_padded, lane, common.dim),
            mask=mask,
            length_k=tile.keys.length,
            tile_iterator=tile.tile_iterator,
        )
        head_kv = self.kv_head_of(tile.head, common.shape[1], common.shape[2])
        if warp_index % 2 == 0:
            first = k.at(tile.batch, Int64(tile.keys.begin), head_kv)
            loads.fill(w, common.buffers_k, (first, k.stride_row), common.sK, common.sPlace, stage, before)
        else:
            for group in cutlass.range_constexpr(tuning.warpgroups(variant)):
                if stage == group % tuning.stages:
                    row = tile.m_block * variant.tile_m + group * ROWS
                    first = q.at(tile.batch, Int64(tile.queries.begin) + row, tile.head)
                    own = cute.local_tile(common.sQ, (ROWS, variant.dim_padded, 1), (group, 0, count % tuning.tiles))
                    rows = (first, q.stride_row, tile.queries.length - row)
                    loads.fill_one(w.copy, self.buffers_q(common, group), count, rows, own[None, None, 0])
            first = v.at(tile.batch, Int64(tile.keys.begin), head_kv)
            loads.fill(w, common.buffers_v, (first, v.stride_row), common.sV, None, stage, before)

    @cute.jit
    def load_by_tma(self, common: Work, warp_index, thread, operands, problem, persistent) -> None:
        """The loading warps by TMA: one each for K, V and Q, and one whose last lane announces tiles."""
        roles = ("k", "v", "q", "announce")
        for i in cutlass.range_constexpr(len(roles)):
            if warp_index == i:
                self.play(roles[i], common, thread == WARPGROUP - 1, operands, problem, persistent)

    @cute.jit
    def play(self, role: cutlass.Constexpr, common: Work, announces, operands, problem, persistent) -> None:
        """One loading warp, for all tiles."""
        count, before, more = Int32(0), Int32(0), Boolean(True)
        tile_m, cluster = self.variant.tile_m, clusters.cluster_of(self.tuning.cluster)
        number, nested = cute.arch.block_idx()[0] // cluster.ctas, bool(self.tuning.nested)
        how = (cluster, common.splits, self.entries_of_part, self.nested_rows)
        if cutlass.const_expr(role == "announce"):
            if announces:
                number = tile_scheduler.announce(common.tile_pipeline, count, number, tile_m, problem, persistent, *how)
            # the other lanes wait for the announcement only after it, here and below
            cute.arch.sync_warp()
        while more:
            tile = tile_scheduler.take(common.tile_pipeline, count, common.lists, nested=nested)
            more = tile.batch >= 0
            if more:
                if cutlass.const_expr(role == "announce"):
                    if cutlass.const_expr(self.tuning.lead):
                        cute.arch.barrier(barrier_id=self.next_due(), number_of_threads=64)
                    if announces:
                        total = numbers_of(tile_scheduler.tiles_of(*problem[:2]), common.splits)
                        number = tile_scheduler.next_number(*persistent, total, number, cluster)
                        number = tile_scheduler.announce(
                            common.tile_pipeline, count + 1, number, tile_m, problem, persistent, *how
                        )
                    cute.arch.sync_warp()
                elif cutlass.const_expr(role == "q"):
                    self.load_queries(common, operands[0], tile, count)
                else:
                    self.load_keys(common, role, operands, tile, before)
                before += tile.tile_iterator.entries * (self.variant.tile_n // self.tuning.step)
            count += 1

    @cute.jit
    def load_keys(self, common: Work, role: cutlass.Constexpr, operands, tile: Tile, before) -> None:
        """K or V of a tile by TMA, by one warp. before: steps of earlier tiles."""
        w = Work(
            variant=self.variant,
            tuning=self.tuning,
            keys_left=self.keys_left,
            wait_empty=self.wait_empty,
            mask=common.mask,
            length_k=tile.keys.length,
            tile_iterator=tile.tile_iterator,
        )
        place = tile.batch, self.kv_head_of(tile.head, common.shape[1], common.shape[2]), tile.keys.begin
        cluster = clusters.cluster_of(self.tuning.cluster)
        if cutlass.const_expr(role == "k"):
            tiles = TileLoads(operands[1], place, common.sK, common.dim, self.tma_functions(), cluster)
            loads.fill_all(w, common.buffers_k, tiles, common.sPlace, before, self.tuning.lead, self.next_due())
        else:
            tiles = TileLoads(operands[2], place, common.sV, common.dim, self.tma_functions(), cluster)
            loads.fill_all(w, common.buffers_v, tiles, None, before)

    @cute.jit
    def load_queries(self, common: Work, q: BulkOperand, tile: Tile, count) -> None:
        """The rows of Q of each warpgroup by TMA, by one warp, for the CTA's `count`-th tile."""
        dim_padded, tiles = self.variant.dim_padded, self.tuning.tiles
        for group in cutlass.range_constexpr(self.tuning.warpgroups(self.variant)):
            row = tile.m_block * self.variant.tile_m + group * ROWS
            place = tile.batch, tile.head, tile.queries.begin + row
            own = cute.local_tile(common.sQ, (ROWS, dim_padded, tiles), (group, 0, 0))
            of_group, stage = self.buffers_q(common, group), count % tiles
            buffers.wait_empty(of_group, count)
            tma_loads.load(
                TileLoads(q, place, own, common.dim, self.tma_functions()),
                Int32(0),
                tile.queries.length - row,
                stage,
                of_group.full + stage,
            )

    def tma_functions(self) -> dict:
        """Those of TileLoads."""
        functions = {name: getattr(self, name) for name in ("whole", "expected_bytes", "fence_shared")}
        return {**functions, "offset": self.key_offset}

    def buffers_q(self, common: Work, group: Int32) -> Buffers:
        """Those of the rows of Q that a warpgroup multiplies."""
        return Buffers(common.buffers_q + 2 * self.tuning.tiles * group, self.tuning.tiles)

    @cute.jit
    def multiply_tiles(self, common: Work, thread, o: Operand, lse, factors) -> None:
        """The multiplying warpgroups. thread: of those that multiply; lse: (address, strides)."""
        count, before, more = Int32(0), Int32(0), Boolean(True)
        groups = self.tuning.warpgroups(self.variant)
        if cutlass.const_expr(self.tuning.turns):  # noqa: SIM102  (decided when the kernel is built)
            if thread // WARPGROUP == groups - 1:
                cute.arch.barrier_arrive(barrier_id=self.turn_of(0), number_of_threads=2 * WARPGROUP)
        while more:
            tile = tile_scheduler.take(
                common.tile_pipeline, count, common.lists, not self.tuning.splits, bool(self.tuning.nested)
            )
            more = tile.batch >= 0
            if more:
                first_row = tile.m_block * self.variant.tile_m
                o_row = Int64(tile.queries.begin) + first_row
                rows_o = (o.at(tile.batch, o_row, tile.head), o.stride_row)
                address, (stride_batch, stride_head) = lse
                at = tile.batch * stride_batch + tile.head * stride_head + (tile.queries.begin + first_row)
                if cutlass.const_expr(self.tuning.cluster == 1) or first_row < tile.queries.length:
                    self.multiply_tile(common, thread, tile, count, before, rows_o, address + at, factors)
                else:
                    self.pass_over(common, thread // WARPGROUP, tile, count, before)
                before += tile.tile_iterator.entries * (self.variant.tile_n // self.tuning.step)
            if cutlass.const_expr(self.tuning.splits):
                buffers.release(common.tile_pipeline.barriers, count)
            count += 1

    @cute.jit
    def pass_over(self, common: Work, group, tile: Tile, count, before) -> None:
        """A multiplying warpgroup in a tile without rows: it releases what is loaded. NOTE [tiles of a cluster]"""
        buffers_q = self.buffers_q(common, cute.arch.make_warp_uniform(group))
        buffers.wait_full(buffers_q, count)
        for s in cutlass.range(tile.tile_iterator.entries * (self.variant.tile_n // self.tuning.step)):
            for of_operand in cutlass.const_expr((common.buffers_k, common.buffers_v)):
                buffers.wait_full(of_operand, before + s)
                buffers.release(of_operand, before + s)
        buffers.release(buffers_q, count)

    @cute.jit
    def multiply_tile(self, common: Work, thread, tile: Tile, count, before, o, lse_row, factors) -> None:
        """A multiplying warpgroup's rows of a tile, or of a part of one; see `multiply`."""
        if cutlass.const_expr(self.tuning.splits):
            # each with a main loop of its own: ptxas orders one worse that is followed by a branch
            if tile_scheduler.part_of(common.tile_pipeline, count) < 0:
                self.multiply(common, thread, tile, count, before, o, lse_row, factors)
            else:
                self.multiply(common, thread, tile, count, before, o, lse_row, factors, True)
        else:
            self.multiply(common, thread, tile, count, before, o, lse_row, factors)

    @cute.jit
    def multiply(
        self, common: Work, thread, tile: Tile, count, before, o, lse_row, factors, of_part: cutlass.Constexpr = False
    ) -> None:
        """A multiplying warpgroup's rows of a tile, the CTA's `count`-th. o: (address of the first row, stride of
        rows); before: steps of earlier tiles."""
        variant, step, mask = self.variant, self.tuning.step, common.mask
        tile_m, dim_padded = variant.tile_m, variant.dim_padded
        first_row = tile.m_block * tile_m
        rows_left = tile.queries.length - first_row
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, tile.batch * mask.band_stride)

        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        sQ = common.sQ[None, None, count % self.tuning.tiles]
        own = cute.local_tile(sQ, (ROWS, dim_padded), (group, 0))
        copy = TileCopy(self.dtype, WARPGROUP, dim_padded, thread % WARPGROUP, common.dim)

        mma_s = products.scores_mma(self.dtype, tile_m, step)
        mma_o = products.values_mma(self.dtype, tile_m, dim_padded)
        slice_s, slice_o = mma_s.get_slice(group * WARPGROUP), mma_o.get_slice(group * WARPGROUP)
        columns = self.tuning.depth or dim_padded
        acc_o = products.accumulator(columns)
        acc_o.fill(0.0)
        mask_rows = products.AccumulatorRows(mma_s, thread, (tile_m, step))
        row_ref, row_sum, corrections = (cute.make_rmem_tensor(mask_rows.rows, Float32) for _ in range(3))
        row_ref.fill(-Float32.inf)
        row_sum.fill(0.0)
        corrections.fill(1.0)
        buffers_q = self.buffers_q(common, group)
        buffers.wait_full(buffers_q, count)
        tile_iterator = tile.tile_iterator
        if cutlass.const_expr(self.tuning.nested):
            tile_iterator = self.mask_own(tile_iterator, clusters.cluster_of(self.tuning.cluster))
        multiply_steps(
            Work(
                variant=variant,
                tuning=self.tuning,
                dtype=self.dtype,
                wait_filled=self.wait_filled,
                keep_keys=self.keep_keys,
                correction=self.correction,
                finite=self.finite,
                allow_all=self.allow_all,
                length_k=tile.keys.length,
                tile_iterator=tile_iterator,
                before=before,
                mask=mask,
                mask_rows=mask_rows,
                place=(tile.batch, tile.head, tile.m_block),
                first_row=first_row,
                rows_left=rows_left,
                band_offset=band_offset,
                mma_s=mma_s,
                operation_o=products.values_operation(self.dtype, columns),
                fragment_q=slice_s.make_fragment_A(slice_s.partition_A(sQ)),
                held_q=products.hold_queries(own, self.tuning.q_columns, step, thread % WARPGROUP),
                fragment_k=slice_s.make_fragment_B(slice_s.partition_B(common.sK)),
                fragment_v=slice_o.make_fragment_B(slice_o.partition_B(products.transposed(common.sV))),
                sPlace=common.sPlace,
                turn=self.turn_of(group),
                next_turn=self.turn_of((group + 1) % self.tuning.warpgroups(variant)),
                buffers_k=common.buffers_k,
                buffers_v=common.buffers_v,
                acc_s=products.accumulator(step),
                acc_o=acc_o,
                row_ref=row_ref,
                row_sum=row_sum,
                factors=corrections,
                to_tanh=factors[0],
                to_log2=factors[1],
            )
        )

        result = Result(acc_o, row_ref, row_sum, mask_rows, mma_o, rows_left, factors[1], o, lse_row)
        if cutlass.const_expr(of_part):
            split = tile_scheduler.part_of(common.tile_pipeline, count)
            self.finish_part(common, split, thread, group, sQ, own, copy, result)
        else:
            self.store(thread, group, sQ, own, copy, result)
        buffers.release(buffers_q, count)

    @cute.jit
    def finish_part(self, common: Work, split: Int32, thread, group, sQ, own, copy: TileCopy, result: Result) -> None:
        """Leaves the sums of a part of a tile, and stores the tile's rows if it is the last one. NOTE [split tiles]"""
        threads, splits = self.tuning.warpgroups(self.variant) * WARPGROUP, common.splits
        cluster = clusters.cluster_of(self.tuning.cluster)
        tile, part = split // splits.parts * cluster.ctas + cluster.rank, split % splits.parts
        functions = Work(meet=self.meet, arrive=self.arrive_part, correction=self.correction, finite=self.finite)
        w = Work(**functions.__dict__, sLast=common.sLast, to_log2=result.to_log2)
        if combine(w, splits, tile, part, group, thread, threads, result.acc_o, result.row_ref, result.row_sum):
            self.store(thread, group, sQ, own, copy, result)

    @cute.jit
    def store(self, thread, group, sQ, own, copy: TileCopy, result: Result) -> None:
        """Normalise a warpgroup's rows and write them through the shared memory of its Q, and their log-sum-exp."""
        acc_o, row_ref, row_sum, mask_rows, mma_o, rows_left, to_log2, o, lse_row = result
        self.normalise(thread, mask_rows, layouts.rows_columns(acc_o), row_ref, row_sum, to_log2, lse_row, rows_left)
        values = products.rounded(acc_o, self.dtype, self.variant.dim_padded)
        to_shared = cute.make_tiled_copy_C(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), self.dtype), mma_o
        )
        thread_copy = to_shared.get_slice(thread)
        # all of the group's products have read Q
        self.meet(group)
        cute.copy(to_shared, thread_copy.retile(products.as_accumulator(values)), thread_copy.partition_D(sQ))
        self.meet(group)
        copy.store(own, self.own_rows(o, group), o[1], rows_left - group * ROWS)
        if cutlass.const_expr(self.tuning.tma):
            # what threads wrote and read there comes before the next tile's Q, which comes by another path
            cute.arch.fence_view_async_shared()

    def own_rows(self, operand, group: Int32) -> cute.Pointer:
        """Address of a warpgroup's first row."""
        return operand[0] + Int64(group * ROWS) * cute.assume(operand[1], divby=8)

    def meet(self, group: Int32) -> None:
        """The warpgroup's threads wait for each other."""
        cute.arch.barrier(barrier_id=1 + group, number_of_threads=WARPGROUP)

    def turn_of(self, group: Int32) -> Int32:
        """The named barrier at which a warpgroup waits for its turn."""
        return 1 + self.tuning.warpgroups(self.variant) + group

    def next_due(self) -> int:
        """The named barrier at which the announcing warp waits for the one that loads K. NOTE [tiles]"""
        return 1 + 2 * self.tuning.warpgroups(self.variant)


@cute.jit
def mask_own(tile_iterator: TileIterator, cluster: clusters.Cluster) -> TileIterator:
    """A cluster's list with its first entries, those that are not full in this CTA's own row, as partial ones.
    NOTE [nested rows] of tile_scheduler.py"""
    masked = tile_iterator.n_partial
    if cluster.rank == 0:
        masked += tile_iterator.moved
    return tile_iterator._replace(n_partial=masked)
