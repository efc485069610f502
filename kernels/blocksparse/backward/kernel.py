"""The backward kernel: one CTA per tile of keys computes its dK and dV, and adds its share to dQ.

    load K, V
    for each query head of the unit, for each listed block of queries, step by step:
        wait for Q, dO; start loading the next step's
        P  = exp2(Q K^T scale - lse)           masked where the block is partial or crosses the keys' end
        dS = P (dO V^T - delta)
        dV += P^T dO,  dK += dS^T Q            in registers over the whole unit: no adds in memory, deterministic
        dQ += dS K                             added in memory: NOTE [deterministic adds], or atomically
    store dK, dV; or where a group has several units, their sums: NOTE [units] of split.py

All five products are mma.sync from shared memory. NOTE [statistics] says what preprocess made of LSE and delta;
postprocess finishes dQ, and dK and dV of several units.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import warp
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward import dq, masking, scores
from kernels.blocksparse.backward.load import StepLoads, load_rows, load_step, store_rows
from kernels.blocksparse.backward.mma import Product, ThreadProduct, accumulator, multiply, staged_layout, turned
from kernels.blocksparse.backward.parts import keys_product, sums_of, write_sums
from kernels.blocksparse.backward.tiling import HALF, RING, THREADS, choose_tiling
from kernels.blocksparse.backward.walk import (
    Block,
    Counts,
    Lists,
    Order,
    block_at,
    entries,
    fill_ring,
    semaphore,
    take_place,
)
from kernels.blocksparse.common.layouts import rows_columns, tile_layout
from kernels.blocksparse.common.lists import Operand, read, sequence
from kernels.blocksparse.common.loads import TileCopy
from kernels.blocksparse.common.masks import Mask
from kernels.blocksparse.variant import NO_SEAMS, Seams, Variant


class Gradients(NamedTuple):
    """What is added up in memory and what is written: dq as NOTE [dQ accumulator] of dq.py, zeroed by preprocess; dk
    and dv; or where a group has several units, sums as NOTE [sums of parts], `tiles` those of the keys."""

    dq: cute.Pointer
    dk: Operand
    dv: Operand
    sums: cute.Pointer
    tiles: dq.Tiles


# Seams of what is multiplied with what, of whose rows they are, and of which blocks
NUMBERS = ("slope_of", "start_of", "dk_factor", "row_of_step", "entries", "semaphore")


class BackwardKernel:
    """The kernel of one variant on one arch; `Backward` in launch.py gives it its flat signature."""

    SEAMS = ("lock_of", "wait", "release", "tail_mask", "before_reuse", *NUMBERS)

    def __init__(self, variant: Variant, arch: str, seams: Seams = NO_SEAMS) -> None:
        seams.check(self.SEAMS, "the backward kernel")
        self.variant = variant
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]
        self.tiling = choose_tiling(variant, arch)
        self.lock_of = seams.pick("lock_of", dq.lock_of)
        self.wait = seams.pick("wait", dq.wait)
        self.release = seams.pick("release", dq.release)
        self.tail_mask = seams.pick("tail_mask", masking.tail_mask)
        self.before_reuse = seams.pick("before_reuse", before_reuse)
        self.slope_of = seams.pick("slope_of", scores.slope_of)
        self.start_of = seams.pick("start_of", scores.start_of)
        self.dk_factor = seams.pick("dk_factor", scores.dk_factor)
        self.row_of_step = seams.pick("row_of_step", masking.row_of_step)
        self.entries = seams.pick("entries", entries)
        self.semaphore = seams.pick("semaphore", semaphore)

    @cute.kernel
    def kernel(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        do: Operand,
        statistics: tuple[cute.Pointer, cute.Pointer],
        gradients: Gradients,
        queries: tuple[cute.Pointer, cute.Pointer],
        keys: tuple[cute.Pointer, cute.Pointer],
        lists: Lists,
        mask: Mask,
        order: Order,
        counts: Counts,
        tiles: dq.Tiles,
        dim: Int32,
        factors: scores.Factors,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        storage = self.shared_memory()
        batch, unit, n_block = take_place(self.variant.deterministic, order, counts, storage.sTicket, thread)
        seq_q = sequence(queries[0], queries[1], batch)
        seq_k = sequence(keys[0], keys[1], batch)
        first_key = n_block * self.variant.tile_n
        if first_key < seq_k.length:
            row, head_kv = Int64(seq_k.begin) + first_key, unit // counts.parts
            sums = dq.tile_number(gradients.tiles, batch, unit, seq_k.begin, self.variant.tile_n) + n_block
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
            sRing=tensor(cute.make_layout((4, RING)), Int32),
            sTicket=tensor(cute.make_layout(1), Int32),
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
        step_m, tile_n, dim, steps = tiling.step_m, tiling.tile_n, tiling.dim, tiling.steps
        stages, stages_ds = tiling.stages, tiling.stages_ds
        sK, sV, sQ, sdO, sP, sdS, sLSE, sDelta, sRing, _ = storage
        targets = (sQ, sdO, sLSE, sDelta)
        batch, unit, n_block = place

        by_scores = Product(self.dtype, (step_m, tile_n, dim), tiling.warps_s, columns_together=True)
        by_keys = keys_product(tiling, self.dtype)
        to_s, to_dp = ThreadProduct(by_scores, thread, sQ, sK), ThreadProduct(by_scores, thread, sdO, sV)
        to_dv = ThreadProduct(by_keys, thread, turned(sP), turned(sdO))
        to_dk = ThreadProduct(by_keys, thread, turned(sdS), turned(sQ))
        to_dq = ThreadProduct(dq.dq_product(tiling, self.dtype), thread, sdS, turned(sK))
        words = masking.Words(to_s)
        rdK, rdV = accumulator(to_dk), accumulator(to_dv)
        rdK.fill(Float32(0.0))
        rdV.fill(Float32(0.0))

        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, batch * mask.band_stride)
        first_head = unit * counts.share
        total = self.entries(lists, batch, n_block, first_head, counts.share)
        if total > 0:  # before the first blocks are looked up, which takes as long
            load_rows(loads.copy, k, sK, keys_left)
            load_rows(loads.copy, v, sV, keys_left)
        if thread < RING:
            fill_ring(variant, lists, batch, n_block, first_head, total, sRing, thread)
        cute.arch.sync_threads()
        if total > 0:
            load_step(loads, batch, seq_q, block_at(sRing, Int32(0)), Int32(0), targets, Int32(0), Boolean(True))
        cute.arch.cp_async_commit_group()

        iterations = total * steps
        target = Int64(0)
        for iteration in cutlass.range(iterations, unroll=1):
            entry, step, stage = iteration // steps, iteration % steps, iteration % stages
            cute.arch.cp_async_wait_group(0)
            # this step's tiles and the last one's dS are here, and all threads are done with the last one's tiles
            cute.arch.sync_threads()
            if iteration > 0:
                self.let_go_in(iteration, order, counts, batch, sRing, thread)
                self.add_dq(to_dq, (iteration - 1) % stages_ds, mdQ, target, thread)
                if cutlass.const_expr(stages_ds == 1):
                    cute.arch.sync_threads()
            # two entries late: until now the last one of the other half was still to be released
            if entry % HALF == 2 and entry > HALF and step == 0 and thread < HALF:
                fill_ring(variant, lists, batch, n_block, first_head, total, sRing, entry - 2 + HALF + thread)
            block = block_at(sRing, entry)
            following = block_at(sRing, cutlass.min((iteration + 1) // steps, total - 1))

            masked = keys_left < tile_n
            if cutlass.const_expr(variant.mask != "none"):
                masked = masked or block.partial != 0
            rows_left = seq_q.length - block.m_block * variant.tile_m
            rWords = masking.find_words(
                variant,
                self.tail_mask,
                words,
                mask,
                batch,
                band_offset,
                block,
                n_block,
                self.row_of_step(step, step_m),
                rows_left,
                keys_left,
            )

            # P and dP - delta; no branch up to the mask, so that the compiler mixes what does not depend on one another
            rP = accumulator(to_s)
            rP.fill(Float32(0.0))
            multiply(to_s, rP, stage)
            if cutlass.const_expr(stages == 2):
                wanted = iteration + 1 < iterations
                load_step(loads, batch, seq_q, following, (iteration + 1) % steps, targets, 1 - stage, wanted)
                cute.arch.cp_async_commit_group()
            rSlope: Any = cute.make_rmem_tensor_like(rP) if cutlass.const_expr(variant.softcap) else None
            scores.probabilities(variant.softcap, self.slope_of, rP, rSlope, words.row, sLSE, stage, factors)
            rdS = accumulator(to_dp)
            scores.start_from_delta(self.start_of, rdS, words.row, sDelta, stage)
            multiply(to_dp, rdS, stage)
            if masked:
                masking.apply_words(rows_columns(rP), rWords)
            share(to_s.mma, rP, sP, thread, tiling.wide_stores)
            if cutlass.const_expr(variant.softcap):
                rP.store(rP.load() * rSlope.load())
            rdS.store(rdS.load() * rP.load())
            stage_ds = iteration % stages_ds
            share(to_dp.mma, rdS, sdS[None, None, stage_ds], thread, tiling.wide_stores)
            self.sync_group(thread)

            multiply(to_dv, rdV, 0, stage)
            if cutlass.const_expr(variant.deterministic):  # noqa: SIM102
                if step == 0:
                    self.take_turn(order, counts, batch, n_block, block, thread)
            multiply(to_dk, rdK, stage_ds, stage)
            tile = dq.tile_number(loads.tiles, batch, block.head, seq_q.begin, variant.tile_m) + block.m_block
            target = (tile * variant.tile_m + step * step_m) * dim

            if cutlass.const_expr(stages == 1):
                cute.arch.sync_threads()
                wanted = iteration + 1 < iterations
                load_step(loads, batch, seq_q, following, (iteration + 1) % steps, targets, Int32(0), wanted)
                cute.arch.cp_async_commit_group()

        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        if iterations > 0:
            self.let_go_in(iterations, order, counts, batch, sRing, thread)
            self.add_dq(to_dq, (iterations - 1) % stages_ds, mdQ, target, thread)
            self.before_reuse(thread)
            if cutlass.const_expr(variant.deterministic):
                self.let_go(order, counts, batch, block_at(sRing, total - 1), thread)
        rdK.store(rdK.load() * self.dk_factor(factors.scale))
        if counts.parts > 1:
            write_sums(rdK, sums_of(mSums, sums, 0, tiling), thread)
            write_sums(rdV, sums_of(mSums, sums, 1, tiling), thread)
        else:
            share(to_dk.mma, rdK, sK, thread, tiling.wide_stores)
            share(to_dv.mma, rdV, sV, thread, tiling.wide_stores)
            cute.arch.sync_threads()
            store_rows(loads.copy, sK, dk, keys_left)
            store_rows(loads.copy, sV, dv, keys_left)

    # NOTE [groups] A tile of keys is shared by groups of neighbouring warps: what a group needs of P and dS for its
    # part of dV # and dK, it has computed itself. So within a step it waits for itself only, and groups drift apart,
    # one computing # exponentials while another multiplies. Only dQ needs all of dS; it is computed one step late,
    # after the next barrier.
    #
    # NOTE [who waits] A block's turn is awaited by one thread while all compute dK; the next step's barrier lets all
    # threads # add, and the barrier after that orders their adds before the release. So neither costs a barrier of its
    # own, and the # two threads are of different warps, whose stalls others fill. A CTA may wait for a turn before it
    # has released the last # one: it waits for older CTAs only, so the oldest still never waits.

    @cute.jit
    def sync_group(self, thread: Int32) -> None:
        """A barrier of the warps of this thread's group."""
        groups = self.tiling.groups
        if cutlass.const_expr(groups == 1):
            cute.arch.sync_threads()
        elif cutlass.const_expr(groups == THREADS // 32):
            cute.arch.sync_warp()
        else:
            size = THREADS // groups
            cute.arch.barrier(barrier_id=1 + thread // size, number_of_threads=size)

    @cute.jit
    def add_dq(self, to_dq: ThreadProduct, stage_ds: Int32, mdQ: cute.Pointer, target: Int64, thread: Int32) -> None:
        """Computes a step's dQ and adds it in memory."""
        rdQ = accumulator(to_dq)
        rdQ.fill(Float32(0.0))
        multiply(to_dq, rdQ, stage_ds)
        dq.add_fragment(rdQ, mdQ + cute.assume(target, divby=4), thread, self.tiling.vector)

    @cute.jit
    def take_turn(
        self, order: Order, counts: Counts, batch: Int32, n_block: Int32, block: Block, thread: Int32
    ) -> None:
        """One thread: until it is this block's turn to be added to its dQ tile."""
        if thread == 32:
            self.wait(self.semaphore(order, counts, batch, block), self.lock_of(block.rank, n_block))

    @cute.jit
    def let_go_in(
        self, iteration: Int32, order: Order, counts: Counts, batch: Int32, sRing: cute.Tensor, thread: Int32
    ) -> None:
        """After an iteration's barrier: releases the block whose last step's adds were issued in the iteration
        before."""
        steps = self.tiling.steps
        if cutlass.const_expr(self.variant.deterministic):  # noqa: SIM102
            if iteration > steps and (iteration - 1) % steps == 0:
                self.let_go(order, counts, batch, block_at(sRing, (iteration - 1) // steps - 1), thread)

    @cute.jit
    def let_go(self, order: Order, counts: Counts, batch: Int32, block: Block, thread: Int32) -> None:
        """One thread, after a barrier that follows all threads' adds of this block: the next block's turn."""
        if thread == 0:
            self.release(self.semaphore(order, counts, batch, block))


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
    sRing: cute.Tensor
    sTicket: cute.Tensor


@cute.jit
def before_reuse(thread: Int32) -> None:
    """After the last dQ, before dK and dV take the place of K and V in shared memory."""
    cute.arch.sync_threads()


@cute.jit
def share(mma: cute.TiledMma, rD: cute.Tensor, sD: cute.Tensor, thread: Int32, wide: cutlass.Constexpr) -> None:
    """Writes a thread's results of `mma` to shared memory, in 16 bits; wide: `Tiling.wide_stores`."""
    rounded = cute.make_rmem_tensor_like(rD, sD.element_type)
    rounded.store(rD.load().to(sD.element_type))
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), sD.element_type, num_bits_per_copy=32)
    if cutlass.const_expr(wide):
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), sD.element_type)
    copy = cute.make_tiled_copy_C(atom, mma).get_slice(thread)
    cute.copy(copy, copy.retile(rounded), copy.partition_D(sD))
