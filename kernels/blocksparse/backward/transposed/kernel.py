# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel for sm_90a with the transposed main loop: one CTA per tile of 128 keys, three warpgroups.

Arguments, order of tiles and numbers are those of backward/kernel.py.

NOTE [warpgroups] Two warpgroups multiply: mainloop.py. Of the other one, which leaves them its registers,
one warp loads by TMA and reads the block lists (loads.py), one adds dQ in memory (dq_warp.py), and two end at once. How
they take turns: NOTE [turns of the transposed loop] of turns.py.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator, softmax_gradient
from kernels.blocksparse.backward.dkv_partials import keys_product, sums_of, write_sums
from kernels.blocksparse.backward.dq_accumulator import dq_product
from kernels.blocksparse.backward.entry import Backward
from kernels.blocksparse.backward.gemms import share, store_float32
from kernels.blocksparse.backward.kernel import Gradients
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.mainloop_mma import Work, sync_multiplying
from kernels.blocksparse.backward.mma import accumulator, staged_layout
from kernels.blocksparse.backward.tile_iterator import Counts, Lists, Order, take_place
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, MMA_REGISTERS, SEMAPHORE_REGISTERS, THREADS
from kernels.blocksparse.backward.transposed import dq_warp, loads, turns
from kernels.blocksparse.backward.transposed.mainloop import mainloop_transposed
from kernels.blocksparse.backward.transposed.query_words import LaneQueries
from kernels.blocksparse.backward.transposed.shared_tiles import SharedTiles
from kernels.blocksparse.backward.wgmma import (
    WARPGROUP,
    GroupProduct,
    GroupThread,
    operand,
    operand_layout,
    transposed_operand,
)
from kernels.blocksparse.common.arguments import operand as argument_operand
from kernels.blocksparse.common.bulk import BulkOperand, bulk_operand
from kernels.blocksparse.common.list_reader import Operand, Sequences, read, sequence
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_loads import TileCopy


class TransposedBackward(Backward):
    """The backward kernel of one variant whose tuning has `transposed`."""

    load, add_dq, mainloop = (
        staticmethod(loads.load_all),
        staticmethod(dq_warp.add_dq_of_steps),
        staticmethod(mainloop_transposed),
    )

    def operand(self, arguments, name: str) -> Operand | BulkOperand:
        """Those that are loaded with their tensor maps."""
        found, tiling = argument_operand(arguments, name), self.tiling
        if name in ("dk", "dv"):
            return found
        rows, heads = (tiling.step_m, arguments.heads_q) if name in ("q", "do") else (tiling.tile_n, arguments.heads_kv)
        shared = operand_layout(self.dtype, rows, tiling.dim)
        return bulk_operand(found, (rows, tiling.dim), shared, heads, arguments.batch, arguments.dim)

    @cute.kernel
    def kernel(
        self,
        q,
        k: BulkOperand,
        v: BulkOperand,
        do,
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
        variant, tiling = self.variant, self.tiling
        thread, _, _ = cute.arch.thread_idx()
        storage = self.shared_memory()
        batch, unit, n_block = take_place(variant.deterministic, order, counts, storage.sTileNumber, thread)
        seq_q = sequence(queries, batch)
        seq_k = sequence(keys, batch)
        first_key = n_block * tiling.tile_n
        if first_key < seq_k.length:
            row, head_kv = Int64(seq_k.begin) + first_key, unit // counts.group_split
            sums = dq_accumulator.tile_number(gradients.tiles, batch, unit, seq_k.begin, tiling.tile_n) + n_block
            band_offset = Int32(0)
            if cutlass.const_expr(variant.mask == "band"):
                band_offset = read(mask.band_offset, batch * mask.band_stride)
            first_head = unit * counts.share
            w = Work(
                kernel=self,
                variant=variant,
                tiling=tiling,
                dtype=self.dtype,
                thread=thread,
                storage=storage,
                loads=SimpleNamespace(tiles=tiles),
                q=q,
                k=k,
                v=v,
                do=do,
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
                **turns.barriers(storage.barriers, tiling),
            )
            if thread == 0:
                turns.initialise(w)
            cute.arch.sync_threads()
            dk = (gradients.dk.at(batch, row, head_kv), gradients.dk.stride_row)
            dv = (gradients.dv.at(batch, row, head_kv), gradients.dv.stride_row)
            self.roles(w, head_kv, row, dk, dv, gradients.sums, sums)

    @cute.jit
    def roles(self, w, head_kv: Int32, row: Int64, dk, dv, mSums, sums) -> None:
        """The roles of the warps: NOTE [warpgroups]."""
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        if warp < WARPGROUP // 32:
            cute.arch.setmaxregister_decrease(SEMAPHORE_REGISTERS)
            if warp == 0:
                self.load(w, head_kv, row)
            elif warp == 1:
                self.add_dq(w)
        else:
            cute.arch.setmaxregister_increase(MMA_REGISTERS)
            self.multiply_row(Work(**{**w.__dict__, "thread": w.thread - WARPGROUP}), dk, dv, mSums, sums)

    @cute.jit
    def multiply_row(self, w, dk, dv, mSums, sums) -> None:
        """All of a row's blocks in the multiplying threads; then dK and dV."""
        tiling, storage, thread = w.tiling, w.storage, w.thread
        self.products(w)
        w.words = LaneQueries(thread, tiling.step_m)
        w.rdK, w.rdV = accumulator(w.to_dk), accumulator(w.to_dv)
        w.rdK.fill(Float32(0.0))
        w.rdV.fill(Float32(0.0))
        self.mainloop(w)
        w.rdK.store(w.rdK.load() * self.dk_factor(w.factors.scale))
        if w.counts.group_split > 1:
            write_sums(w.rdK, sums_of(mSums, sums, 0, tiling), thread)
            write_sums(w.rdV, sums_of(mSums, sums, 1, tiling), thread)
        elif cutlass.const_expr(self.variant.float32):
            shape = (tiling.tile_n, tiling.dim)
            store_float32(w.to_dk.mma, w.rdK, shape, dk, w.keys_left, w.dim, thread)
            store_float32(w.to_dv.mma, w.rdV, shape, dv, w.keys_left, w.dim, thread)
        else:
            copy = TileCopy(self.dtype, THREADS, tiling.dim, thread, w.dim)
            share(w.to_dk.mma, w.rdK, storage.plainK, thread, True)
            share(w.to_dv.mma, w.rdV, storage.plainV, thread, True)
            sync_multiplying()
            store_rows(copy, storage.plainK, dk, w.keys_left)
            store_rows(copy, storage.plainV, dv, w.keys_left)

    def products(self, w) -> None:
        """The five products of a thread: S and dP with keys as rows, dV and dK with P and dS from registers, dQ."""
        tiling, s, thread = w.tiling, w.storage, w.thread
        step_m, tile_n, dim = tiling.step_m, tiling.tile_n, tiling.dim
        of_scores = GroupProduct(self.dtype, (tile_n, step_m, dim), tiling.warps_s)
        by_keys = keys_product(tiling, self.dtype)
        to_dq = dq_product(tiling, self.dtype)
        of_queries = (step_m, dim, tiling.stages)
        of_ds = (tile_n, step_m, tiling.stages_ds)
        w.to_s = GroupThread(of_scores, thread, s.sK, s.sQ)
        w.to_dp = GroupThread(of_scores, thread, s.sV, s.sdO)
        w.to_dv = GroupThread(by_keys, thread, None, transposed_operand(s.plaindO, *of_queries))
        w.to_dk = GroupThread(by_keys, thread, None, transposed_operand(s.plainQ, *of_queries))
        by_dim = transposed_operand(s.plainK, tile_n, dim)
        if tiling.dq_by_dim:
            w.to_dq = GroupThread(to_dq, thread, by_dim, operand(s.sdS, step_m, tile_n, tiling.stages_ds))
        else:
            w.to_dq = GroupThread(to_dq, thread, transposed_operand(s.sdS, *of_ds), by_dim)

    def shared_memory(self) -> SimpleNamespace:
        """K and V, later dK and dV; the stages of Q and dO; dS with keys as rows; dQ; all else. Tiles twice: `plain`
        ones with their swizzle in the layout, the others as bulk copies and products take them."""
        tiling, memory = self.tiling, SharedTiles(self.dtype)
        step_m, tile_n, dim, tensor = tiling.step_m, tiling.tile_n, tiling.dim, memory.tensor
        of_ds = (step_m, tile_n) if tiling.dq_by_dim else (tile_n, step_m)
        tiles = memory.operands(tile_n, dim, step_m, tiling.stages, tiling.stages)
        return SimpleNamespace(
            **tiles,
            sQ=operand(tiles["plainQ"], step_m, dim, tiling.stages),
            sdO=operand(tiles["plaindO"], step_m, dim, tiling.stages),
            sdS=tensor(staged_layout(*of_ds, tiling.stages_ds)),
            sdQ=tensor(cute.make_layout(step_m * dim), Float32),
            sLSE=tensor(cute.make_layout((step_m, tiling.stages)), Float32),
            sDelta=tensor(cute.make_layout((step_m, tiling.stages)), Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTileNumber=tensor(cute.make_layout(1), Int32),
            barriers=memory.barriers(turns.barrier_count(tiling)),
        )
