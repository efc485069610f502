# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel for sm_100a on pairs of CTAs: a cluster of two for each tile of 256 keys, 128 for each.

Arguments, order of tiles and numbers are those of backward/kernel.py, roles of warps NOTE [roles] of
blackwell/kernel.py in each CTA, but that one of them alone issues products, of both: NOTE [shares] of tuning.py.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward import dq_accumulator, softmax_gradient
from kernels.blocksparse.backward.blackwell import epilogue
from kernels.blocksparse.backward.blackwell.dq_warps import meet
from kernels.blocksparse.backward.blackwell.kernel import BlackwellBackward
from kernels.blocksparse.backward.blackwell.pairs import dq_warps, loads, mainloop, turns
from kernels.blocksparse.backward.blackwell.pairs.tuning import CTAS, pair_tuning
from kernels.blocksparse.backward.blackwell.tuning import (
    DQ_REGISTERS,
    FIRST_LOAD,
    HALF,
    ISSUER,
    OTHERS,
    Q_STAGES,
    SOFTMAX_REGISTERS,
    SOFTMAX_WARPS,
)
from kernels.blocksparse.backward.blackwell.turns import await_columns
from kernels.blocksparse.backward.kernel import Gradients
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.tile_iterator import Counts, Lists, Order, place_of
from kernels.blocksparse.common import mbarriers, tcgen05
from kernels.blocksparse.common.arguments import operand
from kernels.blocksparse.common.list_reader import Operand, Sequences, read, sequence
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_counter import take_tile_number
from kernels.blocksparse.common.tma_loads import BulkOperand, bulk_operand
from kernels.blocksparse.spec.sm100 import COLUMNS, ROWS
from kernels.blocksparse.spec.variant import BACKWARD_OF_PAIRS, NO_INJECTION, Injection, Variant

Shares = tuple[Operand | BulkOperand, Operand | BulkOperand]  # an operand by rows, and by columns


class PairBackward(BlackwellBackward):
    """The backward kernel of one variant with products "tcgen05" and tiles of PAIR_KEYS keys."""

    INJECTION_POINTS = (*BlackwellBackward.INJECTION_POINTS, *BACKWARD_OF_PAIRS)
    tune = staticmethod(lambda variant, arch: pair_tuning(variant))
    cluster = (CTAS, 1, 1)

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        super().__init__(variant, arch, injection)
        self.lock_of = injection.pick("lock_of", dq_warps.lock_of)
        self.wait = injection.pick("wait", dq_warps.wait_until_at_least)
        self.await_columns = injection.pick("await_columns", await_columns)
        self.publish_ds = injection.pick("publish_ds", tcgen05.fence_shared_of_pair)
        self.await_both = injection.pick("await_both", turns.await_both)
        self.await_once = injection.pick("await_once", turns.await_both)
        self.hand_on = injection.pick("hand_on", turns.hand_on)
        self.commit = injection.pick("commit", tcgen05.commit_to_pair)
        self.release_stage = injection.pick("release_stage", tcgen05.commit_to_pair)
        self.row_of_share = injection.pick("row_of_share", loads.row_of_share)
        self.owner_of = injection.pick("owner_of", mainloop.owner_of)
        self.keys_of_cta = injection.pick("keys_of_cta", loads.keys_of_cta)
        self.keys_written = injection.pick("keys_written", loads.keys_of_cta)
        self.arrivals = injection.pick("arrivals", turns.arrivals)
        self.meet_at_start = injection.pick("meet_at_start", turns.meet_pair)
        self.meet_after_adds = injection.pick("meet_after_adds", meet)
        self.end_pair = injection.pick("end_pair", turns.meet_pair)

    def ctas(self, tiles: Any, resident: Any) -> Any:
        """See Backward: two for each tile."""
        return CTAS * tiles

    def operand(self, arguments, name: str) -> Operand | BulkOperand | Shares:
        """See Backward; of Q, K and dO both shares, NOTE [shares]."""
        a, found = arguments, operand(arguments, name)
        if name in ("dk", "dv"):
            return found
        rows = HALF if name in ("q", "do") else ROWS
        shapes = [(rows, self.tiling.dim)] + [(ROWS, self.tiling.dim // 2)] * (name != "v")
        heads = a.heads_q if name in ("q", "do") else a.heads_kv
        shares = [
            bulk_operand(found, tcgen05.tile_layout(self.dtype, *shape, 1), heads, a.batch, a.dim)
            if self.tiling.tma
            else found
            for shape in shapes
        ]
        return shares[0] if name == "v" else tuple(shares)

    @cute.kernel
    def kernel(
        self,
        q: Shares,
        k: Shares,
        v: Operand | BulkOperand,
        do: Shares,
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
        # the rank in the cluster; of its special register ptxas does not take a branch to be uniform, and then issues
        # every product in a loop
        rank = cute.arch.block_idx()[0] % CTAS
        storage = self.shared_memory()
        self.begin_pair(storage, order, rank, thread)
        columns = cute.arch.retrieve_tmem_ptr(Float32, 16, storage.held)
        number = cute.arch.block_idx()[0] // CTAS
        if cutlass.const_expr(variant.deterministic):
            number = storage.sTileNumber[0]
        batch, unit, n_block = place_of(number, order, counts)
        seq_q = sequence(queries, batch)
        seq_k = sequence(keys, batch)
        first_key = n_block * tuning.tile_n
        if first_key < seq_k.length:
            row, head_kv = Int64(seq_k.begin) + first_key, unit // counts.group_split
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
                rank=rank,
                row=thread % ROWS,
                column=rank * (tuning.dim // 2),
                storage=storage,
                loads=SimpleNamespace(tiles=tiles),
                q=q[0],
                q_columns=q[1],
                k=k[0],
                k_columns=k[1],
                v=v,
                do=do[0],
                do_columns=do[1],
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
            w = Work(**{**w.__dict__, **{f"columns_{name}": columns + at for name, at in tuning.columns.items()}})
            own = row + rank * ROWS
            dk = (gradients.dk.at(batch, own, head_kv), gradients.dk.stride_row)
            dv = (gradients.dv.at(batch, own, head_kv), gradients.dv.stride_row)
            sums = dq_accumulator.tile_number(gradients.tiles, batch, unit, seq_k.begin, ROWS) + CTAS * n_block + rank
            self.roles(w, columns, dk, dv, gradients.sums, sums)
        elif thread < 32:
            cute.arch.dealloc_tmem(columns, COLUMNS, is_two_cta=True)

    @cute.jit
    def begin_pair(self, storage, order: Order, rank: Int32, thread: Int32) -> None:
        """Mbarriers and all tensor memory of both CTAs, and where adds are ordered the number of the pair's tile in
        both."""
        meet_at_start, arrivals = self.meet_at_start, self.arrivals
        if thread == 0:
            mbarriers.initialise(storage.barriers, arrivals(turns.BARRIERS))
            if cutlass.const_expr(self.variant.deterministic):  # noqa: SIM102 (one is for the compiler)
                if rank == 0:
                    rNumber = cute.make_rmem_tensor(1, Int32)
                    rNumber[0] = take_tile_number(order.tile_counter)
                    for cta in cutlass.range_constexpr(CTAS):
                        there = cute.arch.map_dsmem_ptr(storage.sTileNumber.iterator, Int32(cta))
                        cute.autovec_copy(rNumber, cute.make_tensor(there, cute.make_layout(1)))
        if cute.arch.make_warp_uniform(thread // 32) == 0:
            cute.arch.alloc_tmem(COLUMNS, storage.held, is_two_cta=True)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
        tcgen05.fence_before()
        meet_at_start()
        tcgen05.fence_after()

    @cute.jit
    def roles(self, w, columns: cute.Pointer, dk, dv, mSums, sums) -> None:
        """The roles of a CTA's warps: NOTE [roles]. sums: the number of the CTA's tile of 128 keys in mSums."""
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        if warp < SOFTMAX_WARPS:
            cute.arch.setmaxregister_increase(SOFTMAX_REGISTERS)
            mainloop.softmax_steps(w)
            self.write_gradients(w, dk, dv, mSums, sums)
            self.end(w, columns, warp)
        elif warp < FIRST_LOAD:
            cute.arch.setmaxregister_increase(DQ_REGISTERS)
            dq_warps.add_dq_of_steps(w)
        else:
            cute.arch.setmaxregister_decrease(OTHERS)
            if warp == FIRST_LOAD:
                loads.load_keys(w, w.k, w.storage.sK, w.k_full)
                loads.load_queries(w, Int32(0))
            elif warp == FIRST_LOAD + 1:
                loads.load_queries_after_columns(w)
            elif warp < ISSUER:
                loads.load_keys(w, w.v, w.storage.sV, w.v_full)
                loads.load_do_and_columns(w)
            elif w.rank == turns.LEADER:
                mainloop.issue_products(w)
            else:
                mainloop.hand_on_loads(w)

    @cute.jit
    def write_gradients(self, w, dk, dv, mSums, sums) -> None:
        """dK and dV of the CTA's keys, by the softmax warps, where it has any."""
        keys_left = self.keys_written(w.keys_left, w.rank)
        own = Work(**{**w.__dict__, "keys_left": keys_left, "tiling": replace(w.tiling, tile_n=ROWS)})
        if keys_left > 0:
            epilogue.write_gradients(own, dk, dv, mSums, sums)
        elif w.total > 0:
            cute.arch.mbarrier_wait(w.ended, 0)

    @cute.jit
    def end(self, w, columns: cute.Pointer, warp: Int32) -> None:
        """The softmax warps, once all have read dK and dV, and dQ warps the last dQ: nothing of the pair uses tensor
        memory any more, nor the shared memory of the other CTA. The other warps may have ended."""
        end_pair = self.end_pair
        if w.rank == turns.LEADER and warp == 0 and w.total > 0:
            await_columns(w, w.total - 1)
        tcgen05.fence_before()
        end_pair()
        tcgen05.fence_after()
        if warp == 0:
            cute.arch.dealloc_tmem(columns, COLUMNS, is_two_cta=True)

    def shared_memory(self) -> SimpleNamespace:
        """K and V, later dK and dV; shares of K, Q and dO; dS with keys as rows; all else."""
        memory, dim = SmemAllocator(), self.tiling.dim

        def tiles(rows: int, columns: int, stages: int) -> cute.Tensor:
            pointer = memory.allocate_array(self.dtype, stages * rows * columns, byte_alignment=1024)
            return tcgen05.shared_tiles(pointer, self.dtype, rows, columns, stages)

        def tensor(layout, dtype) -> cute.Tensor:
            return memory.allocate_tensor(dtype, layout, byte_alignment=16)

        return SimpleNamespace(
            sK=tiles(ROWS, dim, 1),
            sV=tiles(ROWS, dim, 1),
            sKc=tiles(ROWS, dim // 2, CTAS),
            sQ=tiles(HALF, dim, Q_STAGES),
            sQc=tiles(ROWS, dim // 2, 1),
            sdO=tiles(HALF, dim, 1),
            sdOc=tiles(ROWS, dim // 2, 1),
            sdS=tiles(ROWS, HALF, CTAS),
            sLSE=tensor(cute.make_layout((ROWS, Q_STAGES)), Float32),
            sDelta=tensor(cute.make_layout((ROWS, 1)), Float32),
            sEntries=tensor(cute.make_layout((4, Q_STAGES)), Int32),
            sTileNumber=tensor(cute.make_layout(1), Int32),
            barriers=memory.allocate_array(Int64, mbarriers.barrier_count(turns.BARRIERS), byte_alignment=8),
            held=memory.allocate_array(Int32, 1, byte_alignment=4),
        )
