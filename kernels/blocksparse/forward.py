# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The forward kernel: online softmax over the listed key blocks of one query tile.

One CTA per (m_block, query head, batch). It walks the row's partial blocks and then its full ones in steps of `step`
keys, with K and V of the next step in flight; scores, probabilities and the output stay in registers. Writes O and the
natural log-sum-exp; rows without any key get O = 0 and -inf. Rows at or past the end of a sequence are not written.
"""

import math

import cutlass
from cuda.bindings import driver
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.common import layouts, masks, mma
from kernels.blocksparse.common.lists import BlockList, Operand, Sequence, read, sequence
from kernels.blocksparse.common.loads import TileCopy
from kernels.blocksparse.common.masks import Mask, MaskRows
from kernels.blocksparse.tuning import forward_tuning
from kernels.blocksparse.variant import NO_SEAMS, Seams, Variant

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
LAG = 8.0  # log2 of how far exponentials may exceed 1, see `softmax`


class Forward:
    """The forward kernel of one variant; calling it (under cute.compile) launches it."""

    SEAMS = ("keep_keys", "correction")

    def __init__(self, variant: Variant, seams: Seams = NO_SEAMS) -> None:
        seams.check(self.SEAMS, "the forward kernel")
        self.variant, self.tuning = variant, forward_tuning(variant)
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]
        self.threads = 32 * self.tuning.warps
        self.keep_keys = seams.pick("keep_keys", keep_keys)
        self.correction = seams.pick("correction", correction)

    @cute.jit
    def __call__(
        self,
        q: cute.Pointer,
        k: cute.Pointer,
        v: cute.Pointer,
        o: cute.Pointer,
        lse: cute.Pointer,
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
        mask_words: cute.Pointer,
        mask_slot: cute.Pointer,
        mask_bounds: cute.Pointer,
        band_offset: cute.Pointer,
        q_stride_batch: Int64,
        q_stride_row: Int64,
        q_stride_head: Int64,
        k_stride_batch: Int64,
        k_stride_row: Int64,
        k_stride_head: Int64,
        v_stride_batch: Int64,
        v_stride_row: Int64,
        v_stride_head: Int64,
        o_stride_batch: Int64,
        o_stride_row: Int64,
        o_stride_head: Int64,
        lse_stride_batch: Int64,
        lse_stride_head: Int64,
        partial_stride_batch: Int64,
        partial_stride_head: Int64,
        full_stride_batch: Int64,
        full_stride_head: Int64,
        bounds_stride_batch: Int64,
        bounds_stride_head: Int64,
        bounds_stride_func: Int64,
        n_func: Int32,
        band_stride: Int32,
        band_left: Int32,
        band_right: Int32,
        batch: Int32,
        heads_q: Int32,
        heads_kv: Int32,
        m_blocks: Int32,
        dim: Int32,
        reverse: Int32,
        section: Int32,
        scale: Float32,
        cap: Float32,
        stream: driver.CUstream,
    ) -> None:
        """Launch over batch × heads_q × m_blocks CTAs.

        q … o          (…, rows, heads, dim) of the variant's dtype, 16-byte aligned; strides are multiples of 8
        lse            fp32; element (batch, head, row) at batch · stride + head · stride + begin + row
        *_begin, *_length   int32 (batch): where a sequence's rows start, counted from the batch's start, and how many
        partial, full  the block lists, common/lists.py; mask_*, band_*: common/masks.py
        reverse        1 to launch tiles from the last one: the long rows of a causal mask first
        section        heads (over all of the batch) whose tiles are launched m_block by m_block together: as many as
                       have their K and V in the L2 cache. Long rows first over many heads leave short ones for the end
        scale, cap     positive
        """
        lists = (
            BlockList(partial_count, partial_begin, partial_index, partial_stride_batch, partial_stride_head),
            BlockList(full_count, full_begin, full_index, full_stride_batch, full_stride_head),
        )
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
        if cutlass.const_expr(self.variant.softcap):
            to_tanh, to_log2 = scale / cap, cap * LOG2_E
        else:
            to_tanh, to_log2 = Float32(1.0), scale * LOG2_E
        self.kernel(
            Operand(q, q_stride_batch, q_stride_row, q_stride_head),
            Operand(k, k_stride_batch, k_stride_row, k_stride_head),
            Operand(v, v_stride_batch, v_stride_row, v_stride_head),
            Operand(o, o_stride_batch, o_stride_row, o_stride_head),
            lse,
            (lse_stride_batch, lse_stride_head),
            (q_begin, q_length),
            (k_begin, k_length),
            lists,
            mask,
            (batch, heads_q, heads_kv, m_blocks),
            dim,
            (reverse, section),
            to_tanh,
            to_log2,
        ).launch(
            grid=[batch * heads_q * m_blocks, 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        o: Operand,
        lse: cute.Pointer,
        lse_strides: tuple[Int64, Int64],
        queries: tuple[cute.Pointer, cute.Pointer],
        keys: tuple[cute.Pointer, cute.Pointer],
        lists: tuple[BlockList, BlockList],
        mask: Mask,
        shape: tuple[Int32, Int32, Int32, Int32],
        dim: Int32,
        order: tuple[Int32, Int32],
        to_tanh: Float32,
        to_log2: Float32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        sequences, heads_q, heads_kv, m_blocks = shape
        reverse, section = order
        heads_before = cta // (section * m_blocks) * section
        heads_here = cutlass.min(section, sequences * heads_q - heads_before)
        place = cta - heads_before * m_blocks
        m_block, group_head = place // heads_here, heads_before + place % heads_here
        batch, head = group_head // heads_q, group_head % heads_q
        if reverse != 0:
            m_block = m_blocks - 1 - m_block
        seq_q = sequence(queries[0], queries[1], batch)
        seq_k = sequence(keys[0], keys[1], batch)
        first_row = m_block * self.variant.tile_m
        storage = self.shared_memory()
        if first_row < seq_q.length:
            head_kv = head // (heads_q // heads_kv)
            lse_row = lse + (batch * lse_strides[0] + head * lse_strides[1] + seq_q.begin + first_row)
            q_row, k_row = Int64(seq_q.begin) + first_row, Int64(seq_k.begin)
            self.tile(
                storage,
                thread,
                dim,
                (q.at(batch, q_row, head), q.stride_row),
                (k.at(batch, k_row, head_kv), k.stride_row),
                (v.at(batch, k_row, head_kv), v.stride_row),
                (o.at(batch, q_row, head), o.stride_row),
                lse_row,
                (batch, head, m_block),
                seq_q,
                seq_k,
                lists,
                mask,
                to_tanh,
                to_log2,
            )

    def shared_memory(self) -> tuple[cute.Pointer, cute.Pointer, cute.Pointer]:
        """Q, later O; the stages of K; the stages of V."""
        memory = SmemAllocator()
        tile = self.tuning.stages * self.tuning.step * self.variant.dim_padded
        return (
            memory.allocate_array(self.dtype, self.variant.tile_m * self.variant.dim_padded, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
        )

    @cute.jit
    def tile(
        self,
        storage,
        thread,
        dim,
        q,
        k,
        v,
        o,
        lse_row,
        place,
        seq_q: Sequence,
        seq_k: Sequence,
        lists,
        mask,
        to_tanh,
        to_log2,
    ) -> None:
        """One query tile. q, k, v, o: (address of the first row, stride of rows); place: (batch, head, m_block)."""
        variant, step, stages = self.variant, self.tuning.step, self.tuning.stages
        tile_m, tile_n, dim_padded = variant.tile_m, variant.tile_n, variant.dim_padded
        batch, head, m_block = place
        first_row = m_block * tile_m
        rows_left = seq_q.length - first_row
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, batch * mask.band_stride)

        copy = TileCopy(self.dtype, self.threads, dim_padded, thread, dim)
        warps = mma.tiled_mma(self.dtype, self.tuning.warps)
        q_layout, kv_layout = layouts.tile_layout(tile_m, dim_padded), layouts.tile_layout(step, dim_padded)
        sQ = cute.make_tensor(storage[0], q_layout)

        # steps of this row: the partial blocks, then the full ones, each in tile_n / step pieces
        partial, full = lists
        n_partial, partial_at = partial.row(batch, head, m_block)
        n_full, full_at = full.row(batch, head, m_block)
        pieces = tile_n // step
        n_steps = (n_partial + n_full) * pieces
        walk = (partial.index, partial_at, n_partial, full.index, full_at - n_partial)

        copy.load(q[0], q[1], rows_left, sQ)
        block = Int32(0)
        if n_steps > 0:
            block = self.listed(walk, Int32(0))
            self.load(copy, k, storage[1], kv_layout, block * tile_n, seq_k.length, Int32(0))
            if cutlass.const_expr(stages == 2):
                self.load(copy, v, storage[2], kv_layout, block * tile_n, seq_k.length, Int32(0))
        cute.arch.cp_async_commit_group()
        block_next = block
        if n_steps > 1:
            block_next = self.listed(walk, Int32(1) // pieces)

        acc_o = mma.accumulator(warps, thread, tile_m, dim_padded)
        acc_o_mn = layouts.rows_columns(acc_o)
        n_rows = cute.size(acc_o_mn, mode=[0])
        row_ref = cute.make_rmem_tensor(n_rows, Float32)
        row_sum = cute.make_rmem_tensor(n_rows, Float32)
        row_ref.fill(-Float32.inf)
        row_sum.fill(0.0)
        mask_rows = MaskRows(warps, thread, (tile_m, step))
        operand_q = mma.SharedOperand(warps, thread, sQ, "A")
        if cutlass.const_expr(self.tuning.q_in_registers):
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            operand_q = operand_q.load_all()

        for s in cutlass.range(n_steps):
            stage = s % stages
            first_column = s % pieces * step
            first_key = block * tile_n + first_column
            is_partial = s // pieces < n_partial
            ends_inside = first_key + step > seq_k.length
            # the block after the next: its index is on its way while this step computes
            block_after = block_next
            if s + 2 < n_steps:
                block_after = self.listed(walk, (s + 2) // pieces)
            # the words of the mask likewise
            if is_partial:
                masks.load_partial(
                    variant.mask,
                    mask_rows,
                    mask,
                    (tile_m, tile_n),
                    partial_at + s // pieces,
                    batch,
                    head,
                    band_offset,
                    first_row,
                    rows_left,
                    block,
                    first_column,
                )
            elif ends_inside:
                masks.fill(mask_rows)

            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            first_key_next = block_next * tile_n + (s + 1) % pieces * step
            if cutlass.const_expr(stages == 2):
                if s + 1 < n_steps:
                    self.load(copy, k, storage[1], kv_layout, first_key_next, seq_k.length, 1 - stage)
                    self.load(copy, v, storage[2], kv_layout, first_key_next, seq_k.length, 1 - stage)
            else:
                self.load(copy, v, storage[2], kv_layout, first_key, seq_k.length, Int32(0))
            cute.arch.cp_async_commit_group()

            acc_s = mma.accumulator(warps, thread, tile_m, step)
            sK = layouts.stage(storage[1], kv_layout, stage)
            mma.multiply(warps, acc_s, operand_q, mma.SharedOperand(warps, thread, sK, "B"))

            if cutlass.const_expr(stages == 1):
                cute.arch.cp_async_wait_group(0)
                cute.arch.sync_threads()
                if s + 1 < n_steps:
                    self.load(copy, k, storage[1], kv_layout, first_key_next, seq_k.length, Int32(0))
                cute.arch.cp_async_commit_group()

            acc_s_mn = layouts.rows_columns(acc_s)
            if cutlass.const_expr(variant.softcap):
                acc_s.store(tanh(acc_s.load() * to_tanh))
            for _ in cutlass.range(masks.branch(is_partial | ends_inside)):
                self.keep_keys(mask_rows, seq_k.length - first_key)
                masks.apply(mask_rows, acc_s_mn, -Float32.inf)
            self.softmax(acc_s_mn, acc_o_mn, row_ref, row_sum, to_log2)
            probabilities = cute.make_rmem_tensor_like(acc_s, self.dtype)
            probabilities.store(acc_s.load().to(self.dtype))

            sV = layouts.stage(storage[2], kv_layout, stage)
            operand_p = mma.RegisterOperand(layouts.as_operand_a(probabilities))
            operand_v = mma.SharedOperand(warps, thread, layouts.transposed(sV), "B", transpose=True)
            mma.multiply(warps, acc_o, operand_p, operand_v)
            block, block_next = block_next, block_after

        self.finish(warps, thread, copy, sQ, acc_o, row_ref, row_sum, to_log2, o, lse_row, rows_left)

    @cute.jit
    def listed(self, walk, entry: Int32) -> Int32:
        """Block of one entry of the row: the partial list first, then the full one."""
        partial_index, partial_at, n_partial, full_index, full_at = walk
        block = Int32(0)
        if entry < n_partial:
            block = read(partial_index, partial_at + entry)
        else:
            block = read(full_index, full_at + entry)
        return block

    @cute.jit
    def load(self, copy: TileCopy, operand, storage, layout, first_key: Int32, length: Int32, stage: Int32) -> None:
        """Start copying `step` rows of K or V from `first_key` on into one stage."""
        pointer, stride = operand
        start = pointer + Int64(first_key) * cute.assume(stride, divby=8)
        copy.load(start, stride, length - first_key, layouts.stage(storage, layout, stage))

    @cute.jit
    def softmax(self, acc_s_mn, acc_o_mn, row_ref, row_sum, to_log2: Float32) -> None:
        """Scores to exponentials relative to the rows' references; the sums and O are rescaled where those move.

        A row's reference is a maximum of its scores so far, not always the latest: it follows when a new one is more
        than 2^LAG times larger, which after a few blocks hardly happens, so that most steps leave O alone. Exponentials
        are then at most 2^LAG, and what is divided by the sum in the end is the same. A row that has met no key yet
        keeps the reference -inf, which is read as 0, so that no inf - inf arises.
        """
        n_rows = cute.size(row_ref)
        row_max = cute.make_rmem_tensor(n_rows, Float32)
        behind = Boolean(False)
        for i in cutlass.range_constexpr(n_rows):
            scores = acc_s_mn[i, None].load()
            row_max[i] = mma.quad_max(scores.reduce(cute.ReductionOp.MAX, row_ref[i], 0))
            behind = behind | ((row_max[i] - row_ref[i]) * to_log2 > LAG)
        for _ in cutlass.range(masks.branch(cute.arch.vote_any_sync(behind))):
            for i in cutlass.range_constexpr(n_rows):
                factor = self.correction(row_ref[i] * to_log2, finite(row_max[i]) * to_log2)
                row_sum[i] = row_sum[i] * factor
                acc_o_mn[i, None] = acc_o_mn[i, None].load() * factor
                row_ref[i] = row_max[i]
        for i in cutlass.range_constexpr(n_rows):
            values = cute.math.exp2(acc_s_mn[i, None].load() * to_log2 - finite(row_ref[i]) * to_log2, fastmath=True)
            row_sum[i] = row_sum[i] + values.reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
            acc_s_mn[i, None] = values

    @cute.jit
    def finish(self, warps, thread, copy, sO, acc_o, row_ref, row_sum, to_log2, o, lse_row, rows_left) -> None:
        """Normalise and write O through shared memory, and the log-sum-exp."""
        acc_o_mn = layouts.rows_columns(acc_o)
        rows = MaskRows(warps, thread, (self.variant.tile_m, 32)).row
        for i in cutlass.range_constexpr(cute.size(row_sum)):
            total = mma.quad_sum(row_sum[i])
            factor = Float32(0.0) if total == 0.0 else cute.arch.rcp_approx(total)
            acc_o_mn[i, None] = acc_o_mn[i, None].load() * factor
            if (thread % 4 == 0) & (rows[i] < rows_left):
                value = -Float32.inf
                if total != 0.0:
                    value = (row_ref[i] * to_log2 + cute.math.log2(total, fastmath=True)) * LN_2
                cute.make_tensor(lse_row + rows[i], cute.make_layout(1))[0] = value

        values = cute.make_rmem_tensor_like(acc_o, self.dtype)
        values.store(acc_o.load().to(self.dtype))
        to_shared = cute.make_tiled_copy_C(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype), warps)
        thread_copy = to_shared.get_slice(thread)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        cute.copy(to_shared, thread_copy.retile(values), thread_copy.partition_D(sO))
        cute.arch.sync_threads()
        copy.store(sO, o[0], o[1], rows_left)


@cute.jit
def keep_keys(mask_rows: MaskRows, keys_left: Int32) -> None:
    """Forbid the keys past the end of the sequence."""
    masks.keep_before(mask_rows, keys_left)


@cute.jit
def finite(reference: Float32) -> Float32:
    """The reference of a row's exponentials: 0 while the row has met no key."""
    return Float32(0.0) if reference == -Float32.inf else reference


@cute.jit
def correction(old: Float32, new: Float32) -> Float32:
    """What sums relative to the old maximum are multiplied with, maxima in units of log2. 0 for an old one of -inf."""
    return cute.math.exp2(old - new, fastmath=True)


def tanh(values: cute.TensorSSA) -> cute.TensorSSA:
    """1 - 2 / (1 + exp(2x)): within 1e-6 of tanh everywhere, where tanh.approx is 5e-4 off. Exact ±1 at the ends."""
    grown = cute.math.exp2(values * (2.0 * LOG2_E), fastmath=True)
    return 1.0 - 2.0 / (grown + 1.0)
