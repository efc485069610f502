# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel for sm_100a: one CTA per tile of 128 keys, roles in warps of their own.

Arguments, order of tiles and numbers are those of backward/kernel.py.

NOTE [roles] Warps 0 to 7, two for each 32 keys, have a thread for a key and half of the queries: they make P and dS of
S and dP, and at the end write dK and dV. Warps 8 to 11 have a thread for a query: they read dQ and add it in memory,
NOTE [bulk adds] of dq_warps.py, where adds are ordered between the acquire and the release of its semaphore. Two warps
load Q with LSE, one for each stage, and the first one K; one loads V, and dO with delta. Without TMA all threads load K
and V. The last warp issues products. How they take turns: NOTE [turns] of mainloop.py.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward import dq_accumulator, softmax_gradient
from kernels.blocksparse.backward.blackwell import dq_warps, epilogue, loads, mainloop, turns
from kernels.blocksparse.backward.blackwell.tuning import (
    DQ_COLUMNS,
    DQ_REGISTERS,
    FIRST_LOAD,
    ISSUER,
    OTHERS,
    Q_STAGES,
    SOFTMAX_REGISTERS,
    SOFTMAX_WARPS,
    THREADS,
    blackwell_backward_tuning,
)
from kernels.blocksparse.backward.entry import Backward
from kernels.blocksparse.backward.kernel import Gradients
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.tile_iterator import Counts, Lists, Order, take_place
from kernels.blocksparse.backward.tiling import ENTRY_STAGES
from kernels.blocksparse.common import mbarriers, tcgen05, tma_loads
from kernels.blocksparse.common.arguments import operand
from kernels.blocksparse.common.list_reader import Operand, Sequences, read, sequence
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import BulkOperand, bulk_operand
from kernels.blocksparse.spec.sm100 import COLUMNS, ROWS
from kernels.blocksparse.spec.variant import BACKWARD_OF_TCGEN05, NO_INJECTION, Injection, Variant


class BlackwellBackward(Backward):
    """The backward kernel of one variant with products "tcgen05"."""

    INJECTION_POINTS = (*Backward.INJECTION_POINTS, *BACKWARD_OF_TCGEN05)
    tune = staticmethod(lambda variant, arch: blackwell_backward_tuning(variant))

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        super().__init__(variant, arch, injection)
        self.whole = injection.pick("whole", tma_loads.whole)
        self.expected_bytes = injection.pick("expected_bytes", tma_loads.expected_bytes)
        self.await_keys = injection.pick("await_keys", turns.await_keys)
        self.await_scores = injection.pick("await_scores", turns.await_scores)
        self.await_products = injection.pick("await_products", turns.await_products)
        self.await_dq = injection.pick("await_dq", turns.await_dq)
        self.await_columns = injection.pick("await_columns", turns.await_columns)
        self.loaded_dq = injection.pick("loaded_dq", tcgen05.wait_loaded)
        self.stored_ds = injection.pick("stored_ds", tcgen05.wait_stored)
        self.publish_ds = injection.pick("publish_ds", tcgen05.fence_shared)
        self.fence_products = injection.pick("fence_products", tcgen05.fence_after)
        self.release_queries = injection.pick("release_queries", tcgen05.commit)
        self.column_of_dq = injection.pick("column_of_dq", dq_warps.column_of_dq)
        self.releases = injection.pick("releases", dq_warps.releases)
        self.publish_dq = injection.pick("publish_dq", tcgen05.fence_shared)
        self.dq_buffers_read = injection.pick("dq_buffers_read", dq_warps.dq_buffers_read)
        self.dq_added = injection.pick("dq_added", dq_warps.dq_added)

    def operand(self, arguments, name: str) -> Operand | BulkOperand:
        """See Backward; what is loaded by TMA with its tensor map."""
        a, found = arguments, operand(arguments, name)
        if not self.tiling.tma or name in ("dk", "dv"):
            return found
        heads = a.heads_q if name in ("q", "do") else a.heads_kv
        shared = tcgen05.tile_layout(self.dtype, ROWS, self.tiling.dim, 1)
        return bulk_operand(found, shared, heads, a.batch, a.dim)

    @cute.kernel
    def kernel(
        self,
        q: Operand | BulkOperand,
        k: Operand | BulkOperand,
        v: Operand | BulkOperand,
        do: Operand | BulkOperand,
        statistics: tuple[cute.Pointer, cute.Pointer],
        gradients: Gradients,
        queries: Sequences,
        keys: Sequences,
        lists: Lists,
        mask: Mask,
        order: Order,
        counts: Counts,
        tiles: dq_accumulator.Tiles,
        dim: Int32,
        factors: softmax_gradient.Factors,
    ) -> None:
        variant, tuning = self.variant, self.tiling
        thread, _, _ = cute.arch.thread_idx()
        storage = self.shared_memory()
        batch, unit, n_block = take_place(variant.deterministic, order, counts, storage.sTileNumber, thread)
        seq_q = sequence(queries, batch)
        seq_k = sequence(keys, batch)
        first_key = n_block * tuning.tile_n
        if first_key < seq_k.length:
            row, head_kv = Int64(seq_k.begin) + first_key, unit // counts.group_split
            sums = dq_accumulator.tile_number(gradients.tiles, batch, unit, seq_k.begin, tuning.tile_n) + n_block
            band_offset = Int32(0)
            if cutlass.const_expr(variant.mask == "band"):
                band_offset = read(mask.band_offset, batch * mask.band_stride)
            first_head = unit * counts.share
            w = Work(
                kernel=self,
                variant=variant,
                tiling=tuning,
                dtype=self.dtype,
                thread=thread,
                row=thread % ROWS,
                storage=storage,
                loads=SimpleNamespace(tiles=tiles),
                q=q,
                k=k,
                v=v,
                do=do,
                place_of_keys=(batch, head_kv, Int32(row)),
                statistics=statistics,
                mdQ=gradients.dq,
                dim=dim,
                place=(batch, unit, n_block),
                first_head=first_head,
                total=self.entries(lists, batch, n_block, first_head, counts.share),
                seq_q=seq_q,
                keys_left=seq_k.length - first_key,
                lists=lists,
                mask=mask,
                band_offset=band_offset,
                order=order,
                counts=counts,
                factors=factors,
                **mbarriers.addresses(storage.barriers, turns.BARRIERS),
            )
            self.begin(w, k, v, (batch, row, head_kv))
            columns = cute.arch.retrieve_tmem_ptr(Float32, 16, storage.held)
            w = Work(**{**w.__dict__, **{f"columns_{name}": columns + at for name, at in tuning.columns.items()}})
            dk = (gradients.dk.at(batch, row, head_kv), gradients.dk.stride_row)
            dv = (gradients.dv.at(batch, row, head_kv), gradients.dv.stride_row)
            self.roles(w, columns, dk, dv, gradients.sums, sums)

    @cute.jit
    def roles(self, w, columns: cute.Pointer, dk, dv, mSums, sums) -> None:
        """What each warp does: NOTE [roles]."""
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        if warp < SOFTMAX_WARPS:
            cute.arch.setmaxregister_increase(SOFTMAX_REGISTERS)
            mainloop.softmax_steps(w)
            epilogue.write_gradients(w, dk, dv, mSums, sums)
            if warp == 0:
                if w.total > 0:
                    turns.await_columns(w, w.total - 1)
                cute.arch.dealloc_tmem(columns, COLUMNS)
        elif warp < FIRST_LOAD:
            cute.arch.setmaxregister_increase(DQ_REGISTERS)
            dq_warps.add_dq_of_steps(w)
        else:
            cute.arch.setmaxregister_decrease(OTHERS)
            if warp < FIRST_LOAD + Q_STAGES:
                if cutlass.const_expr(self.tiling.tma):  # noqa: SIM102 (one is for the compiler)
                    if warp == FIRST_LOAD:
                        loads.load_keys(w, w.k, w.storage.sK, w.k_full)
                loads.load_queries(w, warp - FIRST_LOAD)
            elif warp < ISSUER:
                if cutlass.const_expr(self.tiling.tma):
                    loads.load_keys(w, w.v, w.storage.sV, w.v_full)
                loads.load_do(w)
            else:
                mainloop.issue_products(w)

    def shared_memory(self) -> SimpleNamespace:
        """K and V, later dK and dV; the stages of Q; dO; dS with keys as rows; all else."""
        memory, dim = SmemAllocator(), self.tiling.dim

        def tiles(columns: int, stages: int) -> cute.Tensor:
            pointer = memory.allocate_array(self.dtype, stages * ROWS * columns, byte_alignment=1024)
            return tcgen05.shared_tiles(pointer, self.dtype, ROWS, columns, stages)

        def tensor(layout, dtype) -> cute.Tensor:
            return memory.allocate_tensor(dtype, layout, byte_alignment=16)

        return SimpleNamespace(
            sK=tiles(dim, 1),
            sV=tiles(dim, 1),
            sQ=tiles(dim, Q_STAGES),
            sdO=tiles(dim, 1),
            sdS=tiles(ROWS, 1),
            sAdds=tensor(cute.make_layout(2 * DQ_COLUMNS * ROWS * self.tiling.bulk_dq or 4), Float32),
            sLSE=tensor(cute.make_layout((ROWS, Q_STAGES)), Float32),
            sDelta=tensor(cute.make_layout((ROWS, 1)), Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTileNumber=tensor(cute.make_layout(1), Int32),
            barriers=memory.allocate_array(Int64, mbarriers.barrier_count(turns.BARRIERS), byte_alignment=8),
            held=memory.allocate_array(Int32, 1, byte_alignment=4),
        )

    @cute.jit
    def begin(self, w, k, v, place) -> None:
        """Barriers and columns of tensor memory, and without TMA K and V, for all warps. place: (batch, row, head)."""
        if cutlass.const_expr(not self.tiling.tma):  # noqa: SIM102 (one is for the compiler)
            if w.total > 0:
                copy = TileCopy(self.dtype, THREADS, self.tiling.dim, w.thread, w.dim)
                copy.load(k.at(*place), k.stride_row, w.keys_left, w.storage.sK[None, None, 0])
                copy.load(v.at(*place), v.stride_row, w.keys_left, w.storage.sV[None, None, 0])
        if w.thread == 0:
            mbarriers.initialise(w.storage.barriers, turns.BARRIERS)
        if w.thread < 32:
            cute.arch.alloc_tmem(COLUMNS, w.storage.held)
            cute.arch.relinquish_tmem_alloc_permit()
        if cutlass.const_expr(not self.tiling.tma):
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            tcgen05.fence_shared()
        tcgen05.fence_before()
        cute.arch.sync_threads()
        tcgen05.fence_after()
