"""The backward kernel with its flat signature: what `compile.build` compiles."""

import cutlass
from cuda.bindings import driver
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward.dq_accumulator import Tiles
from kernels.blocksparse.backward.kernel import BackwardKernel, Gradients
from kernels.blocksparse.backward.softmax_gradient import LOG2_E, Factors
from kernels.blocksparse.backward.tile_iterator import Counts, Lists, Order
from kernels.blocksparse.common.list_reader import BlockList, Operand
from kernels.blocksparse.common.mask_words import Mask


class Backward(BackwardKernel):
    """The backward kernel of one variant on one arch; calling it (under cute.compile) launches it."""

    @cute.jit
    def __call__(
        self,
        q: cute.Pointer,
        k: cute.Pointer,
        v: cute.Pointer,
        do: cute.Pointer,
        dk: cute.Pointer,
        dv: cute.Pointer,
        dq_sum: cute.Pointer,
        dkv_sum: cute.Pointer,
        lse2: cute.Pointer,
        delta: cute.Pointer,
        q_begin: cute.Pointer,
        q_length: cute.Pointer,
        k_begin: cute.Pointer,
        k_length: cute.Pointer,
        partial_count: cute.Pointer,
        partial_begin: cute.Pointer,
        partial_index: cute.Pointer,
        full_count: cute.Pointer,
        full_begin: cute.Pointer,
        full_index: cute.Pointer,
        partial_rank: cute.Pointer,
        full_rank: cute.Pointer,
        mask_words: cute.Pointer,
        mask_slot: cute.Pointer,
        mask_bounds: cute.Pointer,
        band_offset: cute.Pointer,
        positions: cute.Pointer,
        ticket: cute.Pointer,
        semaphores: cute.Pointer,
        q_stride_batch: Int64,
        q_stride_row: Int64,
        q_stride_head: Int64,
        k_stride_batch: Int64,
        k_stride_row: Int64,
        k_stride_head: Int64,
        v_stride_batch: Int64,
        v_stride_row: Int64,
        v_stride_head: Int64,
        do_stride_batch: Int64,
        do_stride_row: Int64,
        do_stride_head: Int64,
        dk_stride_batch: Int64,
        dk_stride_row: Int64,
        dk_stride_head: Int64,
        dv_stride_batch: Int64,
        dv_stride_row: Int64,
        dv_stride_head: Int64,
        partial_stride_batch: Int64,
        partial_stride_head: Int64,
        full_stride_batch: Int64,
        full_stride_head: Int64,
        bounds_stride_batch: Int64,
        bounds_stride_head: Int64,
        bounds_stride_func: Int64,
        positions_stride_batch: Int64,
        positions_stride_head: Int64,
        n_func: Int32,
        band_stride: Int32,
        band_left: Int32,
        band_right: Int32,
        batch: Int32,
        heads_q: Int32,
        heads_kv: Int32,
        m_blocks: Int32,
        n_blocks: Int32,
        dim: Int32,
        merged: Int32,
        schedule: Int32,
        pairs: Int32,
        parts: Int32,
        tiles_stride_batch: Int32,
        tiles_total: Int32,
        key_tiles_stride_batch: Int32,
        key_tiles_total: Int32,
        scale: Float32,
        cap: Float32,
        stream: driver.CUstream,
    ) -> None:
        """Launch over batch x heads_kv x parts x n_blocks CTAs, at least one.

        q … dv         (…, rows, heads, dim) of the variant's dtype, 16-byte aligned; strides are multiples of 8
        dq_sum         fp32, 16-byte aligned: NOTE [dQ accumulator] of dq.py
        dkv_sum        fp32, 16-byte aligned: NOTE [sums of parts] of parts.py, written instead of dk and dv where parts
                       is more than 1: a divisor of heads_q / heads_kv
        lse2, delta    fp32, 16-byte aligned: NOTE [statistics] of preprocess.py
        *_begin, *_length   int32 (batch): where a sequence's rows start, counted from the batch's start, and how many
        partial, full  the backward block lists, common/lists.py; *_rank: their write order, read by deterministic
                       variants; merged: walk.py's Lists
        mask_*, band_* common/masks.py; mask_slot is parallel to partial_index
        positions, schedule, pairs, ticket, semaphores   walk.py's Order; ticket and semaphores are read by
                                                         deterministic variants
        tiles_*        dq.py's Tiles, of queries; key_tiles_*: those of keys
        scale, cap     positive
        """
        if cutlass.const_expr(self.variant.softcap):
            factors = Factors(scale / cap, cap * LOG2_E, scale)
        else:
            factors = Factors(Float32(1.0), scale * LOG2_E, scale)
        mask = Mask(
            mask_words,
            mask_slot,
            mask_bounds,
            bounds_stride_batch,
            bounds_stride_head,
            bounds_stride_func,
            n_func,
            band_offset,
            band_stride,
            band_left,
            band_right,
        )
        self.kernel(
            Operand(q, q_stride_batch, q_stride_row, q_stride_head),
            Operand(k, k_stride_batch, k_stride_row, k_stride_head),
            Operand(v, v_stride_batch, v_stride_row, v_stride_head),
            Operand(do, do_stride_batch, do_stride_row, do_stride_head),
            (lse2.align(16), delta.align(16)),
            Gradients(
                dq_sum.align(16),
                Operand(dk, dk_stride_batch, dk_stride_row, dk_stride_head),
                Operand(dv, dv_stride_batch, dv_stride_row, dv_stride_head),
                dkv_sum.align(16),
                Tiles(key_tiles_stride_batch, key_tiles_total),
            ),
            (q_begin, q_length),
            (k_begin, k_length),
            Lists(
                BlockList(partial_count, partial_begin, partial_index, partial_stride_batch, partial_stride_head),
                BlockList(full_count, full_begin, full_index, full_stride_batch, full_stride_head),
                merged,
                partial_rank,
                full_rank,
                mask_slot,
            ),
            mask,
            Order(schedule, positions, positions_stride_batch, positions_stride_head, pairs, ticket, semaphores),
            Counts(batch, heads_q, heads_kv, heads_q // heads_kv, parts, m_blocks, n_blocks),
            Tiles(tiles_stride_batch, tiles_total),
            dim,
            factors,
        ).launch(
            grid=[batch * heads_kv * parts * n_blocks, 1, 1],
            block=[self.tiling.threads, 1, 1],
            stream=stream,
            min_blocks_per_mp=1,
        )
