# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The forward kernel for sm_100a: four warps of softmax for 128 queries, one that issues products, two (four without
TMA) that load.

Signature, order of tiles and a row's numbers are Forward's. One CTA per tile of 128 or 256 queries.

NOTE [warps] The first warps have a thread for each query: they make probabilities of scores, rescale O, and write it to
shared memory; warp 0 allocates tensor memory. Two more load by TMA: Q and K, and V, NOTE [whole tiles] of tma_loads.py;
the last warp stores O by TMA. Without TMA the softmax warps load Q and store O, and a pair of warps for each stage
loads K and V: NOTE [buffers] of forward/loads.py, with `tcgen05.commit` for the arrival that empties a buffer. One more
warp issues the products. How they take turns in tensor memory: NOTE [turns] of mainloop.py.

NOTE [two query tiles] A tile of 256 queries is two of the 128 rows that a product has. Each has a softmax warpgroup,
a tile of Q and O in shared memory, columns of scores and of O, and barriers of its own; both have the same list of
blocks, K and V. So K and V are read once for 256 queries, and the products of one run during the softmax of the other.
"""

from functools import partial

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.common import buffers as mbarriers
from kernels.blocksparse.common import tcgen05, tma_loads, tma_stores
from kernels.blocksparse.common.arguments import operand
from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.common.list_reader import BlockList, Operand, read, sequence, tile_iterator_of
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import BulkOperand, TileLoads
from kernels.blocksparse.common.tma_stores import TileStore
from kernels.blocksparse.forward import loads
from kernels.blocksparse.forward.blackwell import mainloop
from kernels.blocksparse.forward.blackwell.exponentials import power_of
from kernels.blocksparse.forward.blackwell.query_tiles import (
    MEETING,
    SOFTMAX_THREADS,
    first_column,
    meet,
    meet_all,
    own_barrier,
    rows_before,
    rows_of_tile,
    tiles_of,
)
from kernels.blocksparse.forward.blackwell.tuning import OTHERS, SOFTMAX_WARPS, blackwell_tuning
from kernels.blocksparse.forward.kernel import Forward, place_of
from kernels.blocksparse.forward.mainloop import Work
from kernels.blocksparse.spec.sm100 import ROWS
from kernels.blocksparse.spec.variant import NO_INJECTION, OF_TCGEN05, Injection, Variant


class BlackwellForward(Forward):
    """The forward kernel of one variant with products "tcgen05"."""

    INJECTION_POINTS = (*Forward.INJECTION_POINTS, *OF_TCGEN05)

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        self.tune = partial(blackwell_tuning, arch=arch)
        super().__init__(variant, injection)
        self.fence_after = injection.pick("fence_after", tcgen05.fence_after)
        self.fence_shared = injection.pick("fence_shared", tcgen05.fence_shared)
        self.power_of = injection.pick("power_of", power_of)
        self.wait_loaded = injection.pick("wait_loaded", tcgen05.wait_loaded)
        self.wait_stored = injection.pick("wait_stored", tcgen05.wait_stored)
        self.wait_scored = injection.pick("wait_scored", mainloop.wait_scored)
        self.wait_added = injection.pick("wait_added", mainloop.wait_added)
        self.release_keys = injection.pick("release_keys", mainloop.release_keys)
        self.wait_filled = injection.pick("wait_filled", mbarriers.wait_full)
        self.wait_empty = injection.pick("wait_empty", mbarriers.wait_empty)
        self.whole = injection.pick("whole", tma_loads.whole)
        self.expected_bytes = injection.pick("expected_bytes", tma_loads.expected_bytes)
        self.whole_output = injection.pick("whole_output", tma_loads.whole)
        self.fence_output = injection.pick("fence_output", tcgen05.fence_shared)
        self.wait_read = injection.pick("wait_read", tma_stores.wait_read)
        self.free_columns = injection.pick("free_columns", free_columns)
        self.rows_of_tile = injection.pick("rows_of_tile", rows_of_tile)
        self.first_column = injection.pick("first_column", first_column)
        self.reads_last = injection.pick("reads_last", mainloop.reads_last)
        self.own_barrier = injection.pick("own_barrier", own_barrier)
        self.meet_all = injection.pick("meet_all", meet_all)

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
        """The tiles of Q, later of O; the stages of K; the stages of V; the barriers; the address of the columns."""
        memory, tuning, variant = SmemAllocator(), self.tuning, self.variant
        tile = tuning.stages * tuning.step * variant.dim_padded
        return (
            memory.allocate_array(self.dtype, variant.tile_m * variant.dim_padded, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(
                Int64, 4 * tuning.stages + tiles_of(variant) * (2 * tuning.buffers + 3), byte_alignment=8
            ),
            memory.allocate_array(Int32, 1, byte_alignment=4),
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
        queries: tuple[cute.Pointer, cute.Pointer],
        keys: tuple[cute.Pointer, cute.Pointer],
        lists: tuple[BlockList, BlockList],
        mask: Mask,
        shape: tuple[Int32, Int32, Int32, Int32],
        dim: Int32,
        order: tuple[Int32, Int32, cute.Pointer, Int64, Int64],
        persistent: tuple[Int32, cute.Pointer],
        to_tanh: Float32,
        to_log2: Float32,
    ) -> None:
        variant, tuning = self.variant, self.tuning
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        batch, head, m_block = place_of(cta, shape, order)
        tile_iterator = tile_iterator_of(lists, (batch, head, m_block))
        seq_q = sequence(queries[0], queries[1], batch)
        seq_k = sequence(keys[0], keys[1], batch)
        first_row = m_block * variant.tile_m
        sQ, sK, sV, barriers, held = self.shared_memory()
        if first_row < seq_q.length:
            head_kv = self.kv_head_of(head, shape[1], shape[2])
            q_row, k_row = Int64(seq_q.begin) + first_row, Int64(seq_k.begin)
            common = Work(
                variant=variant,
                tuning=tuning,
                dtype=self.dtype,
                key_offset=self.key_offset,
                keys_left=self.keys_left,
                fence_after=self.fence_after,
                release_keys=self.release_keys,
                reads_last=self.reads_last,
                first_column=self.first_column,
                tiles=tiles_of(variant),
                wait_filled=self.wait_filled,
                wait_empty=self.wait_empty,
                mask=mask,
                dim=dim,
                length_k=seq_k.length,
                tile_iterator=tile_iterator,
                place=(batch, head, m_block),
                first_row=first_row,
                rows_left=seq_q.length - first_row,
                sQ=tcgen05.shared_tiles(sQ, self.dtype, ROWS, variant.dim_padded, tiles_of(variant)),
                sK=tcgen05.shared_tiles(sK, self.dtype, tuning.step, variant.dim_padded, tuning.stages),
                sV=tcgen05.shared_tiles(sV, self.dtype, tuning.step, variant.dim_padded, tuning.stages),
                **self.barriers(barriers),
            )
            warp_index = cute.arch.make_warp_uniform(thread // 32)
            self.begin(common, thread, warp_index, held)
            columns = cute.arch.retrieve_tmem_ptr(Float32, 16, held)
            softmax_warps = SOFTMAX_WARPS * tiles_of(variant)
            if warp_index < softmax_warps:
                if cutlass.const_expr(tuning.registers(variant)):
                    cute.arch.setmaxregister_increase(tuning.registers(variant))
                rows_q = None if tuning.tma else (q.at(batch, q_row, head), q.stride_row)
                rows_o = None if tuning.tma else (o.at(batch, q_row, head), o.stride_row)
                lse_row = lse + (batch * lse_strides[0] + head * lse_strides[1] + seq_q.begin + first_row)
                tile = warp_index // SOFTMAX_WARPS
                self.softmax(common, tile, thread, columns, rows_q, rows_o, lse_row, (to_tanh, to_log2))
                if warp_index == 0:
                    self.free_columns(columns, tuning.columns(variant))
            else:
                if cutlass.const_expr(tuning.registers(variant)):
                    cute.arch.setmaxregister_decrease(OTHERS)
                if warp_index < softmax_warps + tuning.loaders:
                    index, lane = warp_index - softmax_warps, thread % 32
                    if cutlass.const_expr(tuning.tma):
                        places = (batch, head, Int32(q_row)), (batch, head_kv, seq_k.begin)
                        self.load_bulk(common, index, (q, k, v), places)
                    else:
                        rows_k = (k.at(batch, k_row, head_kv), k.stride_row)
                        rows_v = (v.at(batch, k_row, head_kv), v.stride_row)
                        self.load(common, index, lane, rows_k, rows_v)
                elif warp_index == softmax_warps + tuning.loaders:
                    self.products(common, columns)
                elif cutlass.const_expr(tuning.tma):
                    self.store_bulk(common, o, (batch, head, Int32(q_row)))

    def barriers(self, first: cute.Pointer) -> dict:
        """The mbarriers: of the buffers of K and V, then, for each query tile, NOTE [turns] of mainloop.py, then that
        its Q is there, and that its O is."""
        stages, tiles = self.tuning.stages, tiles_of(self.variant)
        scored, buffers = first + 4 * stages, tiles * self.tuning.buffers
        return {
            "buffers_k": Buffers(first, stages),
            "buffers_v": Buffers(first + 2 * stages, stages),
            "scored": scored,
            "ready": scored + buffers,
            "added": scored + 2 * buffers,
            "loaded_q": scored + 2 * buffers + tiles,
            "written_o": scored + 2 * buffers + 2 * tiles,
        }

    @cute.jit
    def begin(self, common: Work, thread, warp_index, held: cute.Pointer) -> None:
        """Barriers and columns of tensor memory, for all warps."""
        tuning = self.tuning
        if thread == 0:
            mbarriers.initialise(common.buffers_k.full, 2, tuning.stages, 1)
            for i in cutlass.range_constexpr(common.tiles * tuning.buffers):
                cute.arch.mbarrier_init(common.scored + i, 1)
                cute.arch.mbarrier_init(common.ready + i, SOFTMAX_WARPS)
            for i in cutlass.range_constexpr(common.tiles):
                cute.arch.mbarrier_init(common.added + i, 1)
                cute.arch.mbarrier_init(common.loaded_q + i, 1 if tuning.tma else SOFTMAX_WARPS)
                cute.arch.mbarrier_init(common.written_o + i, SOFTMAX_WARPS)
            cute.arch.mbarrier_init_fence()
        if warp_index == 0:
            cute.arch.alloc_tmem(tuning.columns(self.variant), held)
            cute.arch.relinquish_tmem_alloc_permit()
        tcgen05.fence_before()
        cute.arch.sync_threads()
        tcgen05.fence_after()

    @cute.jit
    def load(self, common: Work, index, lane, rows_k, rows_v) -> None:
        """A loading warp: even ones K, odd ones V, two for each stage."""
        w = Work(
            **{
                **common.__dict__,
                "copy": TileCopy(self.dtype, 32, self.variant.dim_padded, lane, common.dim),
            }
        )
        if index % 2 == 0:
            loads.fill(w, w.buffers_k, rows_k, w.sK, None, index // 2, Int32(0))
        else:
            loads.fill(w, w.buffers_v, rows_v, w.sV, None, index // 2, Int32(0))

    @cute.jit
    def load_bulk(self, common: Work, index, operands, places) -> None:
        """A warp that loads by TMA: the first one Q, which nothing reads where there are no keys, and K, the other
        one V. operands: q, k, v; places: (batch, head, first row) of the tile of Q, and of K and V."""
        functions = {name: getattr(self, name) for name in ("whole", "expected_bytes", "fence_shared")}
        functions["offset"], dim, (q, k, v) = self.key_offset, common.dim, operands
        if index == 0:
            if common.tile_iterator.entries > 0:
                tiles = TileLoads(q, places[0], common.sQ, dim, functions)
                for i in cutlass.range_constexpr(common.tiles):
                    left = self.rows_of_tile(common.rows_left, i)
                    tma_loads.load(tiles, Int32(i * ROWS), left, Int32(i), common.loaded_q + i)
            tiles = TileLoads(k, places[1], common.sK, dim, functions)
            loads.fill_all(common, common.buffers_k, tiles, None, Int32(0))
        else:
            tiles = TileLoads(v, places[1], common.sV, dim, functions)
            loads.fill_all(common, common.buffers_v, tiles, None, Int32(0))

    @cute.jit
    def store_bulk(self, common: Work, o: BulkOperand, place) -> None:
        """The warp that stores O, whose first row is at `place`: (batch, head, row)."""
        functions = {"whole": self.whole_output, "wait_read": self.wait_read}
        batch, head, row = place
        for i in cutlass.range_constexpr(common.tiles):
            cute.arch.mbarrier_wait(common.written_o + i, 0)
            tile = TileStore(o, (batch, head, row + i * ROWS), common.sQ, common.dim, functions, stage=i)
            tma_stores.store(tile, self.rows_of_tile(common.rows_left, i))

    @cute.jit
    def products(self, common: Work, columns: cute.Pointer) -> None:
        """The warp that issues products."""
        variant, tuning = self.variant, self.tuning
        mma_s = tcgen05.scores_mma(self.dtype, tuning.step)
        mma_o = tcgen05.values_mma(self.dtype, variant.dim_padded)
        slice_s, slice_o = mma_s.get_slice(0), mma_o.get_slice(0)
        mainloop.issue_products(
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
    def softmax(self, common: Work, tile, thread, columns: cute.Pointer, q, o, lse_row, factors) -> None:
        """A softmax warp's 32 rows of a query tile. thread: of all softmax threads; q, o: (address of the CTA's first
        row, stride of rows); None by TMA."""
        variant, tuning = self.variant, self.tuning
        row, thread = thread, thread % SOFTMAX_THREADS
        loaded_q, written_o = common.loaded_q + tile, common.written_o + tile
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(common.mask.band_offset, common.place[0] * common.mask.band_stride)
        sQ, fence_shared, fence_output = common.sQ[None, None, tile], self.fence_shared, self.fence_output
        if cutlass.const_expr(not tuning.tma):
            copy = TileCopy(self.dtype, SOFTMAX_THREADS, variant.dim_padded, thread, common.dim)
            rows_left = self.rows_of_tile(common.rows_left, tile)
            copy.load(q[0] + rows_before(tile, q[1]), q[1], rows_left, sQ)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            fence_shared()
            mainloop.arrive(loaded_q)
        row_ref, row_sum = (cute.make_rmem_tensor(1, Float32) for _ in range(2))
        row_ref.fill(-Float32.inf)
        row_sum.fill(0.0)
        w = Work(
            **{
                **common.__dict__,
                "keep_keys": self.keep_keys,
                "correction": self.correction,
                "finite": self.finite,
                "power_of": self.power_of,
                "allow_all": self.allow_all,
                "wait_scored": self.wait_scored,
                "wait_loaded": self.wait_loaded,
                "wait_stored": self.wait_stored,
                "wait_added": self.wait_added,
                "thread": thread,
                "row": row,
                "mask_rows": tcgen05.LaneRow(row, tuning.step),
                "band_offset": band_offset,
                "columns_s": columns + self.first_column(variant, tuning, tile, "scores"),
                "columns_o": columns + self.first_column(variant, tuning, tile, "output"),
                "scored": self.own_barrier(common.scored, tile, tuning.buffers),
                "ready": common.ready + tile * tuning.buffers,
                "added": self.own_barrier(common.added, tile, 1),
                "row_ref": row_ref,
                "row_sum": row_sum,
                "to_tanh": factors[0],
                "to_log2": factors[1],
            }
        )
        mainloop.softmax_steps(w)
        # Q is there, and the products that read it are done for all: its place becomes that of O
        if tuning.tma and common.tile_iterator.entries > 0:
            cute.arch.mbarrier_wait(loaded_q, 0)
        meet(MEETING + 1 + tile)
        self.write_row(w, sQ, lse_row)
        if cutlass.const_expr(tuning.tma):
            fence_output()
            mainloop.arrive(written_o)
        self.meet_all(tile, common.tiles)
        if cutlass.const_expr(not tuning.tma):
            copy.store(sQ, o[0] + rows_before(tile, o[1]), o[1], rows_left)

    @cute.jit
    def write_row(self, w: Work, sO: cute.Tensor, lse_row) -> None:
        """Divide a thread's row of O by its sum and write it to shared memory, and its log-sum-exp to global memory."""
        n_entries, total, lse_of = w.tile_iterator.entries, w.row_sum[0], self.lse_of
        row, rows_left = w.row, w.rows_left
        factor, wait_loaded, wait_added = self.inverse_of(total), self.wait_loaded, self.wait_added
        if n_entries > 0:
            wait_added(w, n_entries * (self.variant.tile_n // self.tuning.step) - 1)
        for i in cutlass.range_constexpr(self.variant.dim_padded // tcgen05.CHUNK):
            values = cute.make_rmem_tensor(tcgen05.CHUNK, Float32)
            values.fill(0.0)
            if n_entries > 0:
                tcgen05.load(w.columns_o + i * tcgen05.CHUNK, w.thread, values)
                wait_loaded()
            rounded = cute.make_rmem_tensor(tcgen05.CHUNK, self.dtype)
            rounded.store((values.load() * factor).to(self.dtype))
            own = cute.local_tile(sO, (1, tcgen05.CHUNK), (w.thread, i))
            cute.autovec_copy(rounded, own[0, None])
        value, reference = -Float32.inf, w.row_ref[0] * w.to_log2
        if total != 0.0:
            value = lse_of(reference, total)
        if row < rows_left:
            cute.make_tensor(lse_row + row, cute.make_layout(1))[0] = value


@cute.jit
def free_columns(columns: cute.Pointer, count: cutlass.Constexpr) -> None:
    """Gives a CTA's tensor memory back, by the warp that allocated it."""
    cute.arch.dealloc_tmem(columns, count)
