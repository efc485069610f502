"""The backward kernel: the CTA of a tile of keys computes its dK and dV, and adds its share to dQ.

    load K, V
    for each query head of the unit, for each listed block of queries, step by step:
        wait for Q, dO; start loading the next step's
        P  = exp2(Q K^T scale - lse)           masked where the block is partial or crosses the keys' end
        dS = P (dO V^T - delta)
        dV += P^T dO,  dK += dS^T Q            in registers over the whole unit: no adds in memory, deterministic
        dQ += dS K                             added in memory: NOTE [deterministic adds], or atomically
    store dK, dV; or where a group has several units, their sums: NOTE [group split] of group_split.py

All five products are mma.sync from shared memory, or on Hopper wgmma (wgmma.py). NOTE [statistics] says what
preprocess made of LSE and delta; postprocess finishes dQ, and dK and dV of several units.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward import dq_accumulator, masking, softmax_gradient
from kernels.blocksparse.backward.dkv_partials import sums_of, write_sums
from kernels.blocksparse.backward.gemms import share, store_float32, thread_products
from kernels.blocksparse.backward.load import StepLoads, load_rows, load_step, store_rows
from kernels.blocksparse.backward.mainloop_mma import Work, mainloop_mma, sync_multiplying
from kernels.blocksparse.backward.mma import accumulator, staged_layout
from kernels.blocksparse.backward.tile_iterator import (
    Counts,
    Lists,
    Order,
    block_at,
    entries,
    load_entry,
    semaphore,
    take_place,
)
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, MMA_REGISTERS, SEMAPHORE_REGISTERS, THREADS, choose_tiling
from kernels.blocksparse.backward.warpgroups.mainloop_wgmma import mainloop_wgmma
from kernels.blocksparse.backward.warpgroups.semaphore_warps import WARP, release_blocks, wait_for_blocks
from kernels.blocksparse.common.layouts import tile_layout
from kernels.blocksparse.common.list_reader import Operand, Sequences, read, sequence
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.spec.variant import (
    BACKWARD_OF_PAIRS,
    BACKWARD_OF_STEPS,
    BACKWARD_OF_TCGEN05,
    NO_INJECTION,
    OF_SPLITS,
    Injection,
    Variant,
)


class Gradients(NamedTuple):
    """Outputs, and sums in memory: dq as NOTE [dQ accumulator] of dq_accumulator.py, zeros before atomic adds; dk and
    dv; or where a group has several units, sums as NOTE [dK and dV partials], `tiles` those of the keys."""

    dq: cute.Pointer
    dk: Operand
    dv: Operand
    sums: cute.Pointer
    tiles: dq_accumulator.Tiles


# Injection points of what is multiplied with what, of whose rows they are, and of which blocks
NUMBERS = ("slope_of", "start_of", "dk_factor", "row_of_step", "entries", "semaphore")


class BackwardKernel:
    """The kernel of one variant on one arch; `Backward` in entry.py gives it its signature."""

    INJECTION_POINTS = ("lock_of", "is_first", "wait", "release", "ended_step", "tail_mask", "before_reuse", *NUMBERS)
    tune = staticmethod(choose_tiling)

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        of_others = (*BACKWARD_OF_TCGEN05, *BACKWARD_OF_PAIRS, *BACKWARD_OF_STEPS, *OF_SPLITS)
        injection.check((*self.INJECTION_POINTS, *of_others), "the backward kernel")
        self.variant = variant
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]
        self.tiling = self.tune(variant, arch)
        self.lock_of = injection.pick("lock_of", dq_accumulator.lock_of)
        self.is_first = injection.pick("is_first", dq_accumulator.is_first)
        self.wait = injection.pick("wait", dq_accumulator.wait)
        self.release = injection.pick("release", dq_accumulator.release)
        self.ended_step = injection.pick("ended_step", dq_accumulator.ended_step)
        self.tail_mask = injection.pick("tail_mask", masking.tail_mask)
        self.before_reuse = injection.pick("before_reuse", before_reuse)
        self.slope_of = injection.pick("slope_of", softmax_gradient.slope_of)
        self.start_of = injection.pick("start_of", softmax_gradient.start_of)
        self.dk_factor = injection.pick("dk_factor", softmax_gradient.dk_factor)
        self.row_of_step = injection.pick("row_of_step", masking.row_of_step)
        self.entries = injection.pick("entries", entries)
        self.semaphore = injection.pick("semaphore", semaphore)

    @cute.kernel
    def kernel(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        do: Operand,
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
        thread, _, _ = cute.arch.thread_idx()
        storage = self.shared_memory()
        batch, unit, n_block = take_place(self.variant.deterministic, order, counts, storage.sTileNumber, thread)
        seq_q = sequence(queries, batch)
        seq_k = sequence(keys, batch)
        first_key = n_block * self.variant.tile_n
        if first_key < seq_k.length:
            row, head_kv = Int64(seq_k.begin) + first_key, unit // counts.group_split
            sums = dq_accumulator.tile_number(gradients.tiles, batch, unit, seq_k.begin, self.variant.tile_n) + n_block
            loads = StepLoads(
                self.tiling,
                TileCopy(self.dtype, THREADS, self.tiling.dim, thread, dim),
                thread,
                q,
                do,
                statistics,
                tiles,
            )
            self.tile(
                storage,
                loads,
                thread,
                (k.at(batch, row, head_kv), k.stride_row),
                (v.at(batch, row, head_kv), v.stride_row),
                (gradients.dk.at(batch, row, head_kv), gradients.dk.stride_row),
                (gradients.dv.at(batch, row, head_kv), gradients.dv.stride_row),
                gradients.sums,
                sums,
                gradients.dq,
                (batch, unit, n_block),
                seq_q,
                seq_k.length - first_key,
                lists,
                mask,
                order,
                counts,
                factors,
            )

    def shared_memory(self) -> "Storage":
        """K and V, later dK and dV; the stages of Q and dO; P and dS."""
        tiling, memory = self.tiling, SmemAllocator()

        def tensor(layout, dtype=self.dtype):
            return memory.allocate_tensor(dtype, layout, byte_alignment=1024 if dtype is self.dtype else 16)

        by_key = tile_layout(tiling.tile_n, tiling.dim)
        by_query = staged_layout(tiling.step_m, tiling.dim, tiling.stages)
        by_score = tile_layout(tiling.step_m, tiling.tile_n)
        if cutlass.const_expr(tiling.stages_p > 1):
            by_score = staged_layout(tiling.step_m, tiling.tile_n, tiling.stages_p)
        by_score_staged = staged_layout(tiling.step_m, tiling.tile_n, tiling.stages_ds)
        values = cute.make_layout((tiling.step_m, tiling.stages))
        return Storage(
            sK=tensor(by_key),
            sV=tensor(by_key),
            sQ=tensor(by_query),
            sdO=tensor(by_query),
            sP=tensor(by_score),
            sdS=tensor(by_score_staged),
            sLSE=tensor(values, Float32),
            sDelta=tensor(values, Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTileNumber=tensor(cute.make_layout(1), Int32),
        )

    @cute.jit
    def tile(
        self,
        storage,
        loads,
        thread,
        k,
        v,
        dk,
        dv,
        mSums,
        sums,
        mdQ,
        place,
        seq_q,
        keys_left,
        lists,
        mask,
        order,
        counts,
        factors,
    ) -> None:
        """One tile of keys. k, v, dk, dv: (address of the first row, elements between rows); sums: the number of its
        tile in mSums; place: (batch, unit, n_block)."""
        variant, tiling = self.variant, self.tiling
        sK, sV, sQ, sdO, _, _, sLSE, sDelta, sEntries, _ = storage
        targets = (sQ, sdO, sLSE, sDelta)
        batch, unit, n_block = place

        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, batch * mask.band_stride)
        first_head = unit * counts.share
        total = self.entries(lists, batch, n_block, first_head, counts.share)
        if total > 0 and thread < THREADS:  # before the first blocks are looked up, which takes as long
            load_rows(loads.copy, k, sK, keys_left)
            load_rows(loads.copy, v, sV, keys_left)
        if thread < ENTRY_STAGES:
            load_entry(variant, lists, order, counts, place, total, sEntries, thread)
        cute.arch.sync_threads()
        w = Work(
            kernel=self,
            variant=variant,
            tiling=tiling,
            loads=loads,
            thread=thread,
            targets=targets,
            storage=storage,
            mdQ=mdQ,
            place=place,
            first_head=first_head,
            total=total,
            seq_q=seq_q,
            keys_left=keys_left,
            lists=lists,
            mask=mask,
            band_offset=band_offset,
            order=order,
            counts=counts,
            factors=factors,
        )
        if cutlass.const_expr(tiling.wait_warp):
            if thread < THREADS:
                cute.arch.setmaxregister_increase(MMA_REGISTERS)
                self.multiply_row(w, dk, dv, mSums, sums)
            else:
                cute.arch.setmaxregister_decrease(SEMAPHORE_REGISTERS)
                if thread < THREADS + WARP:
                    wait_for_blocks(w)
                elif cutlass.const_expr(tiling.release_warp) and thread < THREADS + 2 * WARP:
                    release_blocks(w)
        else:
            self.multiply_row(w, dk, dv, mSums, sums)

    @cute.jit
    def multiply_row(self, w, dk, dv, mSums, sums) -> None:
        """Computes all of a row's blocks in the multiplying threads; then dK and dV. The entry buffer is filled."""
        tiling, storage, thread, copy = self.tiling, w.storage, w.thread, w.loads.copy
        if w.total > 0:
            first = block_at(storage.sEntries, Int32(0))
            load_step(w.loads, w.place[0], w.seq_q, first, Int32(0), w.targets, Int32(0), Boolean(True))
        cute.arch.cp_async_commit_group()
        w.to_s, w.to_dp, w.to_dv, w.to_dk, w.to_dq = thread_products(tiling, self.dtype, storage, thread)
        w.words = masking.Words(w.to_s)
        w.rdK, w.rdV = accumulator(w.to_dk), accumulator(w.to_dv)
        w.rdK.fill(Float32(0.0))
        w.rdV.fill(Float32(0.0))
        if cutlass.const_expr(tiling.wgmma):
            mainloop_wgmma(w)
        else:
            mainloop_mma(w)
        w.rdK.store(w.rdK.load() * self.dk_factor(w.factors.scale))
        if w.counts.group_split > 1:
            write_sums(w.rdK, sums_of(mSums, sums, 0, tiling), thread)
            write_sums(w.rdV, sums_of(mSums, sums, 1, tiling), thread)
        elif cutlass.const_expr(self.variant.float32):
            shape = (tiling.tile_n, tiling.dim)
            store_float32(w.to_dk.mma, w.rdK, shape, dk, w.keys_left, copy.dim, thread)
            store_float32(w.to_dv.mma, w.rdV, shape, dv, w.keys_left, copy.dim, thread)
        else:
            share(w.to_dk.mma, w.rdK, storage.sK, thread, tiling.wide_stores)
            share(w.to_dv.mma, w.rdV, storage.sV, thread, tiling.wide_stores)
            sync_multiplying()
            store_rows(copy, storage.sK, dk, w.keys_left)
            store_rows(copy, storage.sV, dv, w.keys_left)


class Storage(NamedTuple):
    """Tensors in shared memory."""

    sK: cute.Tensor
    sV: cute.Tensor
    sQ: cute.Tensor
    sdO: cute.Tensor
    sP: cute.Tensor
    sdS: cute.Tensor
    sLSE: cute.Tensor
    sDelta: cute.Tensor
    sEntries: cute.Tensor
    sTileNumber: cute.Tensor


@cute.jit
def before_reuse(thread: Int32) -> None:
    """Synchronises after the last dQ, before dK and dV take the place of K and V in shared memory."""
    sync_multiplying()
