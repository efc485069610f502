# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The forward kernel for sm_100a: four warps of softmax for 128 queries, one that issues products, two (four without
TMA) that load, one that announces tiles and stores O.

Signature, order of tiles and a row's numbers are Forward's. Persistent CTAs: NOTE [tiles] of tile_scheduler.py says
which tiles of 128 or 256 queries a CTA takes. No hardware has run it.

NOTE [warps] The first warps have a thread for each query: they make probabilities of scores, rescale O, and write it to
shared memory; warp 0 allocates tensor memory. Two more load by TMA: K, and Q and V, NOTE [whole tiles] of tma_loads.py;
the last warp announces tiles and stores O by TMA. Without TMA the softmax warps load Q and store O, and a pair of warps
for each stage loads K and V: NOTE [buffers] of forward/loads.py, with `tcgen05.commit` for the arrival that empties a
buffer. One more warp issues the products. How they take turns in tensor memory: NOTE [turns] of mainloop.py.

NOTE [two query tiles] A tile of 256 queries is two of the 128 rows that a product has. Each has a softmax warpgroup,
a stage of Q and O in shared memory, columns of scores and of O, and barriers of its own; both have the same list of
blocks, K and V. So K and V are read once for 256 queries, and the products of one run during the softmax of the other.

NOTE [next tile] Every role goes on to the next tile when its own part of one is done. K and V of the next tile are
loaded while the last steps are computed, Q where a stage is free (NOTE [stages of Q] of tuning.py), and its first
scores are products that follow the last ones with V: O is read, normalised and stored during all of that. Tensor memory
is allocated once. Phases of barriers are counted over all tiles of the CTA: over its steps, or, for what a tile has
once, its tiles. No phase is left out: every tile loads Q, one without blocks too, and the warp that issues products
waits for it and says so, or a later wait by parity would take the phase before for its own.
"""

from functools import partial

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.common import buffers as mbarriers
from kernels.blocksparse.common import tcgen05, tma_loads, tma_stores
from kernels.blocksparse.common.arguments import operand
from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.common.list_reader import BlockList, Operand, Sequences
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import BulkOperand, TileLoads
from kernels.blocksparse.common.tma_stores import TileStore
from kernels.blocksparse.forward import loads, tile_scheduler
from kernels.blocksparse.forward.blackwell import mainloop, query_tiles
from kernels.blocksparse.forward.blackwell.exponentials import power_of
from kernels.blocksparse.forward.blackwell.query_tiles import tiles_of
from kernels.blocksparse.forward.blackwell.softmax_warps import softmax_tile
from kernels.blocksparse.forward.blackwell.tuning import SOFTMAX_WARPS, blackwell_tuning
from kernels.blocksparse.forward.kernel import Forward
from kernels.blocksparse.forward.mainloop import Work
from kernels.blocksparse.forward.tile_order import Order
from kernels.blocksparse.forward.tile_scheduler import Tile
from kernels.blocksparse.spec.sm100 import ROWS
from kernels.blocksparse.spec.variant import NO_INJECTION, OF_TCGEN05, Injection, Variant


class BlackwellForward(Forward):
    """The forward kernel of one variant with products "tcgen05"."""

    INJECTION_POINTS = (*Forward.INJECTION_POINTS, *OF_TCGEN05)
    PERSISTENT = True

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        self.tune = partial(blackwell_tuning, arch=arch)
        super().__init__(variant, injection)
        self.functions = {name: injection.pick(name, default) for name, default in DEFAULTS.items()}
        self.functions |= {name: getattr(self, name) for name in OF_ROWS}

    def operand(self, arguments, name: str) -> Operand | BulkOperand:
        """See Forward; by TMA with its tensor map."""
        a, variant = arguments, self.variant
        found = operand(a, name)
        if not self.tuning.tma:
            return found
        rows, heads = (ROWS, a.heads_q) if name in ("q", "o") else (self.tuning.step, a.heads_kv)
        shared = tcgen05.tile_layout(self.dtype, rows, variant.dim_padded, 1)
        return tma_loads.bulk_operand(found, shared, heads, a.batch, a.dim, stored=name == "o")

    def shared_memory(self) -> tuple[cute.Pointer, ...]:
        """The stages of Q, later of O; of K; of V; the barriers; the address of the columns; announced tiles."""
        memory, tuning, variant = SmemAllocator(), self.tuning, self.variant
        tile = tuning.stages * tuning.step * variant.dim_padded
        barriers = 4 * tuning.stages + tiles_of(variant) * (2 * tuning.buffers + 1) + 3 * tuning.q_stages
        return (
            memory.allocate_array(self.dtype, tuning.q_stages * ROWS * variant.dim_padded, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(Int64, barriers + 2 * tile_scheduler.TILE_STAGES, byte_alignment=8),
            memory.allocate_array(Int32, 1, byte_alignment=4),
            memory.allocate_array(Int32, tile_scheduler.INTS * tile_scheduler.TILE_STAGES, byte_alignment=4),
            memory.allocate_array(Int64, tile_scheduler.LONGS * tile_scheduler.TILE_STAGES, byte_alignment=8),
        )

    @cute.kernel
    def kernel(
        self,
        q: Operand | BulkOperand,
        k: Operand | BulkOperand,
        v: Operand | BulkOperand,
        o: Operand | BulkOperand,
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
        thread, _, _ = cute.arch.thread_idx()
        sQ, sK, sV, barriers, held, ints, longs = self.shared_memory()
        common = Work(
            variant=variant,
            tuning=tuning,
            dtype=self.dtype,
            key_offset=self.key_offset,
            keys_left=self.keys_left,
            **self.functions,
            tiles=tiles_of(variant),
            lists=lists,
            shape=shape,
            mask=mask,
            dim=dim,
            sQ=tcgen05.shared_tiles(sQ, self.dtype, ROWS, variant.dim_padded, tuning.q_stages),
            sK=tcgen05.shared_tiles(sK, self.dtype, tuning.step, variant.dim_padded, tuning.stages),
            sV=tcgen05.shared_tiles(sV, self.dtype, tuning.step, variant.dim_padded, tuning.stages),
            **self.barriers(barriers, ints, longs),
        )
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        self.begin(common, thread, warp_index, held)
        columns = cute.arch.retrieve_tmem_ptr(Float32, 16, held)
        softmax_warps = SOFTMAX_WARPS * tiles_of(variant)
        if warp_index < softmax_warps:
            if cutlass.const_expr(tuning.registers(variant)):
                cute.arch.setmaxregister_increase(tuning.registers(variant))
            self.softmax_tiles(common, thread, columns, (q, o), (lse, lse_strides), (to_tanh, to_log2))
            meet_all, free_columns = common.meet_all, common.free_columns
            meet_all(warp_index // SOFTMAX_WARPS, tiles_of(variant))
            if warp_index == 0:
                free_columns(columns, tuning.columns(variant))
        else:
            if cutlass.const_expr(tuning.registers(variant)):
                cute.arch.setmaxregister_decrease(tuning.others(variant))
            role = warp_index - softmax_warps
            if role < tuning.loaders:
                self.load_tiles(common, role, thread % 32, (q, k, v))
            elif role == tuning.loaders:
                self.products(common, columns)
            elif role == tuning.loaders + 1:
                self.announce_tiles(common, o, (shape, order, lists, queries, keys), persistent)

    def barriers(self, first: cute.Pointer, ints: cute.Pointer, longs: cute.Pointer) -> dict:
        """The mbarriers: of the buffers of K and V, then, for each query tile, NOTE [turns] of mainloop.py, then of the
        stages of Q, and that O is there, last those of announced tiles."""
        stages, tiles, q_stages = self.tuning.stages, tiles_of(self.variant), self.tuning.q_stages
        scored, buffers = first + 4 * stages, tiles * self.tuning.buffers
        first_q = scored + 2 * buffers + tiles
        return {
            "buffers_k": Buffers(first, stages),
            "buffers_v": Buffers(first + 2 * stages, stages),
            "scored": scored,
            "ready": scored + buffers,
            "added": scored + 2 * buffers,
            "buffers_q": Buffers(first_q, q_stages),
            "written_o": first_q + 2 * q_stages,
            "tile_pipeline": tile_scheduler.tile_pipeline(ints, longs, first_q + 3 * q_stages),
        }

    @cute.jit
    def begin(self, common: Work, thread, warp_index, held: cute.Pointer) -> None:
        """Barriers and columns of tensor memory, for all warps."""
        tuning, takers = self.tuning, common.takers
        if thread == 0:
            mbarriers.initialise(common.buffers_k.full, 2, tuning.stages, 1)
            for i in cutlass.range_constexpr(common.tiles * tuning.buffers):
                cute.arch.mbarrier_init(common.scored + i, 1)
                cute.arch.mbarrier_init(common.ready + i, SOFTMAX_WARPS)
            for i in cutlass.range_constexpr(common.tiles):
                cute.arch.mbarrier_init(common.added + i, 1)
            for i in cutlass.range_constexpr(tuning.q_stages):
                cute.arch.mbarrier_init(common.buffers_q.full + i, 1 if tuning.tma else SOFTMAX_WARPS)
                cute.arch.mbarrier_init(common.buffers_q.empty + i, 1 + tuning.tma)
                cute.arch.mbarrier_init(common.written_o + i, SOFTMAX_WARPS)
            of_tiles, warps = common.tile_pipeline.barriers, takers(tuning.warps(self.variant))
            mbarriers.initialise(of_tiles.full, 1, tile_scheduler.TILE_STAGES, warps)
            cute.arch.mbarrier_init_fence()
        if warp_index == 0:
            cute.arch.alloc_tmem(tuning.columns(self.variant), held)
            cute.arch.relinquish_tmem_alloc_permit()
        tcgen05.fence_before()
        cute.arch.sync_threads()
        tcgen05.fence_after()

    def of_tile(self, common: Work, tile: Tile, count: Int32, before: Int32) -> Work:
        """State of the CTA's `count`-th tile that all warps share. before: steps of earlier tiles."""
        first_row = tile.m_block * self.variant.tile_m
        own = {
            "length_k": tile.keys.length,
            "tile_iterator": tile.tile_iterator,
            "place": (tile.batch, tile.head, tile.m_block),
            "first_row": first_row,
            "rows_left": tile.queries.length - first_row,
            "q_row": Int64(tile.queries.begin) + first_row,
            "k_begin": tile.keys.begin,
            "count": count,
            "before": before,
        }
        return Work(**{**common.__dict__, **own})

    def steps_of(self, tile: Tile) -> Int32:
        """Steps of a tile."""
        return tile.tile_iterator.entries * (self.variant.tile_n // self.tuning.step)

    @cute.jit
    def load_tiles(self, common: Work, index, lane, operands) -> None:
        """A warp that loads, for all tiles."""
        count, before, more = Int32(0), Int32(0), Boolean(True)
        take_tile = common.take_tile
        while more:
            tile = take_tile(common.tile_pipeline, count, common.lists)
            more = tile.batch >= 0
            if more:
                w = self.of_tile(common, tile, count, before)
                if cutlass.const_expr(self.tuning.tma):
                    self.load_bulk(w, index, operands)
                else:
                    self.load(w, index, lane, operands)
                before += self.steps_of(tile)
            count += 1

    @cute.jit
    def load(self, common: Work, index, lane, operands) -> None:
        """A loading warp's part of a tile: even ones K, odd ones V, two for each stage."""
        _, k, v = operands
        batch, head, _ = common.place
        head_kv = self.kv_head_of(head, common.shape[1], common.shape[2])
        copy = TileCopy(self.dtype, 32, self.variant.dim_padded, lane, common.dim)
        w = Work(**{**common.__dict__, "copy": copy})
        if index % 2 == 0:
            rows = (k.at(batch, Int64(w.k_begin), head_kv), k.stride_row)
            loads.fill(w, w.buffers_k, rows, w.sK, None, index // 2, w.before)
        else:
            rows = (v.at(batch, Int64(w.k_begin), head_kv), v.stride_row)
            loads.fill(w, w.buffers_v, rows, w.sV, None, index // 2, w.before)

    @cute.jit
    def load_bulk(self, w: Work, index, operands) -> None:
        """A tile by a warp that loads by TMA: the first one K, the other one Q and V. operands: q, k, v."""
        functions = {name: self.functions[name] for name in ("whole", "expected_bytes", "fence_shared")}
        functions["offset"], dim, (q, k, v) = self.key_offset, w.dim, operands
        (batch, head, _), rows_of_tile, wait_stored_output = w.place, w.rows_of_tile, w.wait_stored_output
        place = batch, self.kv_head_of(head, w.shape[1], w.shape[2]), w.k_begin
        if index == 0:
            tiles = TileLoads(k, place, w.sK, dim, functions)
            loads.fill_all(w, w.buffers_k, tiles, None, w.before, self.tuning.lead, query_tiles.next_due(w.tiles))
        else:
            tiles = TileLoads(q, (batch, head, Int32(w.q_row)), w.sQ, dim, functions)
            for i in cutlass.range_constexpr(w.tiles):
                use = w.count * w.tiles + i
                stage, left = mbarriers.stage_of(use, self.tuning.q_stages), rows_of_tile(w.rows_left, i)
                wait_stored_output(w.buffers_q, use)
                tma_loads.load(tiles, Int32(i * ROWS), left, stage, w.buffers_q.full + stage)
            tiles = TileLoads(v, place, w.sV, dim, functions)
            loads.fill_all(w, w.buffers_v, tiles, None, w.before)

    @cute.jit
    def announce_tiles(self, common: Work, o: BulkOperand | Operand, problem, persistent) -> None:
        """The warp that announces tiles and, by TMA, stores O, for all tiles. problem, persistent: as those of
        `announce`."""
        count, more = Int32(0), Boolean(True)
        tile_m, lane, take_tile = self.variant.tile_m, cute.arch.lane_idx(), common.take_tile
        if lane == 0:
            tile_scheduler.announce(common.tile_pipeline, count, cute.arch.block_idx()[0], tile_m, problem, persistent)
        # the other lanes wait for the announcement only after it, here and below
        cute.arch.sync_warp()
        while more:
            tile = take_tile(common.tile_pipeline, count, common.lists)
            more = tile.batch >= 0
            if more:
                if cutlass.const_expr(self.tuning.tma and self.tuning.lead):
                    query_tiles.meet(query_tiles.next_due(common.tiles), 64)
                if lane == 0:
                    total = tile_scheduler.tiles_of(*problem[:2])
                    number = tile_scheduler.next_number(persistent[0], persistent[1], total)
                    tile_scheduler.announce(common.tile_pipeline, count + 1, number, tile_m, problem, persistent)
                cute.arch.sync_warp()
                if cutlass.const_expr(self.tuning.tma):
                    self.store_bulk(self.of_tile(common, tile, count, Int32(0)), o)
            count += 1

    @cute.jit
    def store_bulk(self, w: Work, o: BulkOperand) -> None:
        """O of a tile, when it has been written."""
        functions, rows_of_tile = {"whole": w.whole_output, "wait_read": w.wait_read}, w.rows_of_tile
        batch, head, _ = w.place
        for i in cutlass.range_constexpr(w.tiles):
            use = w.count * w.tiles + i
            stage = mbarriers.stage_of(use, self.tuning.q_stages)
            cute.arch.mbarrier_wait(w.written_o + stage, mbarriers.parity_of(use, self.tuning.q_stages))
            place = batch, head, Int32(w.q_row) + i * ROWS
            tma_stores.store(TileStore(o, place, w.sQ, w.dim, functions, stage), rows_of_tile(w.rows_left, i))
            # what lanes read there comes before the next Q, which comes by another path
            cute.arch.fence_view_async_shared()
            mbarriers.release(w.buffers_q, use)

    @cute.jit
    def products(self, common: Work, columns: cute.Pointer) -> None:
        """The warp that issues products, for all tiles."""
        variant, tuning = self.variant, self.tuning
        mma_s = tcgen05.scores_mma(self.dtype, tuning.step)
        mma_o = tcgen05.values_mma(self.dtype, variant.dim_padded)
        slice_s, slice_o = mma_s.get_slice(0), mma_o.get_slice(0)
        mainloop.issue_tiles(
            Work(
                **{
                    **common.__dict__,
                    "columns": columns,
                    "mma_s": mma_s,
                    "mma_o": mma_o,
                    "fragment_q": slice_s.make_fragment_A(slice_s.partition_A(common.sQ)),
                    "fragment_k": slice_s.make_fragment_B(slice_s.partition_B(common.sK)),
                    "fragment_v": slice_o.make_fragment_B(slice_o.partition_B(tcgen05.transposed(common.sV))),
                }
            )
        )

    @cute.jit
    def softmax_tiles(self, common: Work, thread, columns: cute.Pointer, operands, lse, factors) -> None:
        """A softmax warp, for all tiles. operands: q, o; lse: (address, strides)."""
        count, before, more = Int32(0), Int32(0), Boolean(True)
        (address, (stride_batch, stride_head)), (q, o) = lse, operands
        take_tile, end_tile = common.take_tile, common.end_tile
        while more:
            tile = take_tile(common.tile_pipeline, count, common.lists)
            more = tile.batch >= 0
            if more:
                w = self.of_tile(common, tile, count, before)
                rows_q = rows_o = None
                if cutlass.const_expr(not self.tuning.tma):
                    rows_q = (q.at(tile.batch, w.q_row, tile.head), q.stride_row)
                    rows_o = (o.at(tile.batch, w.q_row, tile.head), o.stride_row)
                lse_row = address + (tile.batch * stride_batch + tile.head * stride_head + w.q_row)
                softmax_tile(w, thread, columns, rows_q, rows_o, lse_row, factors)
                end_tile(columns, self.tuning.columns(self.variant), thread)
                before += self.steps_of(tile)
            count += 1


@cute.jit
def free_columns(columns: cute.Pointer, count: cutlass.Constexpr) -> None:
    """Gives a CTA's tensor memory back, by the warp that allocated it."""
    cute.arch.dealloc_tmem(columns, count)


def end_tile(columns: cute.Pointer, count: int, thread: Int32) -> None:
    """Nothing: tensor memory, as all else, is kept for the next tile."""


# Injection points: what is called by that name where nothing is replaced
DEFAULTS = {
    "fence_after": tcgen05.fence_after,
    "fence_shared": tcgen05.fence_shared,
    "power_of": power_of,
    "wait_loaded": tcgen05.wait_loaded,
    "wait_stored": tcgen05.wait_stored,
    "wait_scored": mainloop.wait_scored,
    "wait_added": mainloop.wait_added,
    "release_keys": mainloop.release_keys,
    "wait_filled": mbarriers.wait_full,
    "wait_empty": mbarriers.wait_empty,
    "whole": tma_loads.whole,
    "expected_bytes": tma_loads.expected_bytes,
    "whole_output": tma_loads.whole,
    "fence_output": tcgen05.fence_shared,
    "wait_read": tma_stores.wait_read,
    "free_columns": free_columns,
    "rows_of_tile": query_tiles.rows_of_tile,
    "first_column": query_tiles.first_column,
    "reads_last": mainloop.reads_last,
    "own_barrier": query_tiles.own_barrier,
    "meet_all": query_tiles.meet_all,
    "take_tile": tile_scheduler.take,
    "takers": query_tiles.takers,
    "wait_stored_output": mbarriers.wait_empty,
    "adds": mainloop.adds,
    "waits_for_queries": mainloop.waits_for_queries,
    "end_tile": end_tile,
}
# Injection points of all forward kernels that the softmax warps read
OF_ROWS = ("keep_keys", "correction", "finite", "allow_all", "inverse_of", "lse_of")
