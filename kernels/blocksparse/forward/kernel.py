# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The forward kernel: online softmax over the listed key blocks of one query tile.

One CTA per (m_block, query head, batch). It iterates over the row's partial blocks and then its full ones in steps of
`step` keys, with K and V of the next step in flight; scores, probabilities and the output stay in registers. Writes O
and the natural log-sum-exp; rows without any key get O = 0 and -inf. Rows at or past the end of a sequence are not
written.
"""

import cutlass
from cuda.bindings import driver
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.common import layouts, mma
from kernels.blocksparse.common.arguments import block_list, entry, mask_of, operand, sequences_of
from kernels.blocksparse.common.list_reader import (
    BlockList,
    Operand,
    Sequence,
    Sequences,
    read,
    sequence,
    tile_iterator_of,
)
from kernels.blocksparse.common.mask_words import Mask, MaskRows
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.forward import mainloop
from kernels.blocksparse.forward.mainloop import LN_2, LOG2_E, Work
from kernels.blocksparse.forward.tile_order import Order, order_of, place_of
from kernels.blocksparse.forward.tuning import portable_tuning
from kernels.blocksparse.spec.variant import (
    NO_INJECTION,
    OF_CLUSTERS,
    OF_NESTED,
    OF_SPLITS,
    OF_TCGEN05,
    Injection,
    Variant,
)

# Injection points of what a row's numbers become, and of whose they are
NUMBERS = ("finite", "allow_all", "kv_head_of", "inverse_of", "lse_of")


class Forward:
    """The forward kernel of one variant; calling it (under cute.compile) launches it."""

    INJECTION_POINTS = ("keep_keys", "correction", "key_offset", "keys_left", *NUMBERS)
    PERSISTENT = False  # CTAs go on to further tiles
    cluster = None  # (CTAs of a cluster, 1, 1)
    tune = staticmethod(portable_tuning)

    def __init__(self, variant: Variant, injection: Injection = NO_INJECTION) -> None:
        injection.check(
            (*self.INJECTION_POINTS, *OF_TCGEN05, *OF_CLUSTERS, *OF_NESTED, *OF_SPLITS), "the forward kernel"
        )
        self.variant, self.tuning = variant, self.tune(variant)
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]
        self.threads = self.tuning.threads(variant)
        self.keep_keys = injection.pick("keep_keys", mainloop.keep_keys)
        self.correction = injection.pick("correction", mainloop.correction)
        self.key_offset = injection.pick("key_offset", mainloop.key_offset)
        self.keys_left = injection.pick("keys_left", mainloop.keys_left)
        self.finite = injection.pick("finite", mainloop.finite)
        self.allow_all = injection.pick("allow_all", mainloop.allow_all)
        self.kv_head_of = injection.pick("kv_head_of", kv_head_of)
        self.inverse_of = injection.pick("inverse_of", inverse_of)
        self.lse_of = injection.pick("lse_of", lse_of)

    @entry("forward")
    @cute.jit
    def __call__(self, arguments, stream: driver.CUstream) -> None:
        """Launch over `resident` CTAs: one for each tile of batch × heads_q × m_blocks, or of those that sequences have
        where they have an order; or persistent ones, by wgmma and tcgen05.

        q … o          (…, rows, heads, dim) of the variant's dtype, 16-byte aligned; strides are multiples of 8
        lse            fp32; element (batch, head, row) at batch · stride + head · stride + begin + row
        *_begin, *_length   int32 (batch): where a sequence's rows start, counted from the batch's start, and how many
        partial, full  the block lists, common/list_reader.py; mask_*, band_*: common/mask_words.py
        schedule       0 to launch a head's tiles from the first, 1 from the last, 2 as in positions, int32: the m block
                       of each launch position, at [b · stride + head · stride + position]
        l2_head_section   heads (over all of the batch, or of the longest sequence where these have an order) whose
                       tiles are launched m_block by m_block together: as many as have their K and V in the L2 cache.
                       Long rows first over many heads leave short ones for the end
        order_sequence, order_start   `SequenceOrder` of common/sequence_order.py, of tiles of queries; null: none
        resident, tile_counter   persistent CTAs, and where they take the numbers of further tiles from: int32, 0 before
                       the launch, not read where each tile has a CTA
        first_split, split_parts, split_sums, split_arrivals   `SplitTiles` of common/split_tiles.py
        scale, cap     positive
        """
        a = arguments
        if cutlass.const_expr(self.variant.softcap):
            to_tanh, to_log2 = a.scale / a.cap, a.cap * LOG2_E
        else:
            to_tanh, to_log2 = Float32(1.0), a.scale * LOG2_E
        self.kernel(
            self.operand(a, "q"),
            self.operand(a, "k"),
            self.operand(a, "v"),
            self.operand(a, "o"),
            a.lse,
            (a.lse_stride_batch, a.lse_stride_head),
            sequences_of(a, "q"),
            sequences_of(a, "k"),
            (block_list(a, "partial"), block_list(a, "full")),
            mask_of(a),
            (a.batch, a.heads_q, a.heads_kv, a.m_blocks),
            a.dim,
            order_of(a),
            self.persistent(a),
            to_tanh,
            to_log2,
        ).launch(
            grid=[a.resident, 1, 1],
            block=[self.threads, 1, 1],
            cluster=self.cluster,
            stream=stream,
            min_blocks_per_mp=self.tuning.ctas,
            # said, so that a build need not ask a driver how much a multiprocessor has
            preferred_smem_carveout=100 if self.tuning.ctas > 1 else None,
        )

    def persistent(self, arguments) -> tuple:
        """(resident, tile_counter), as the kernel takes them."""
        return arguments.resident, arguments.tile_counter

    def operand(self, arguments, name: str) -> Operand:
        """The tensor of that name, as the kernel takes it."""
        return operand(arguments, name)

    @cute.kernel
    def kernel(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
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
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        batch, head, m_block = place_of(cta, shape, order)
        seq_q = sequence(queries, batch)
        seq_k = sequence(keys, batch)
        first_row = m_block * self.variant.tile_m
        storage = self.shared_memory()
        if first_row < seq_q.length:
            tile_iterator = tile_iterator_of(lists, (batch, head, m_block))
            head_kv = self.kv_head_of(head, shape[1], shape[2])
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
                tile_iterator,
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
        tile_iterator,
        mask,
        to_tanh,
        to_log2,
    ) -> None:
        """One query tile. q, k, v, o: (address of the first row, stride of rows); place: (batch, head, m_block)."""
        variant, step = self.variant, self.tuning.step
        tile_m, dim_padded = variant.tile_m, variant.dim_padded
        batch, _, m_block = place
        first_row = m_block * tile_m
        rows_left = seq_q.length - first_row
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, batch * mask.band_stride)

        copy = TileCopy(self.dtype, self.threads, dim_padded, thread, dim)
        warps = mma.tiled_mma(self.dtype, self.tuning.warps)
        sQ = cute.make_tensor(storage[0], layouts.tile_layout(tile_m, dim_padded))
        copy.load(q[0], q[1], rows_left, sQ)

        acc_o = mma.accumulator(warps, thread, tile_m, dim_padded)
        n_rows = cute.size(layouts.rows_columns(acc_o), mode=[0])
        row_ref = cute.make_rmem_tensor(n_rows, Float32)
        row_sum = cute.make_rmem_tensor(n_rows, Float32)
        row_ref.fill(-Float32.inf)
        row_sum.fill(0.0)
        work = Work(
            variant=variant,
            tuning=self.tuning,
            dtype=self.dtype,
            keep_keys=self.keep_keys,
            correction=self.correction,
            key_offset=self.key_offset,
            keys_left=self.keys_left,
            finite=self.finite,
            allow_all=self.allow_all,
            thread=thread,
            copy=copy,
            warps=warps,
            kv_layout=layouts.tile_layout(step, dim_padded),
            k=(*k, storage[1]),
            v=(*v, storage[2]),
            length_k=seq_k.length,
            tile_iterator=tile_iterator,
            mask=mask,
            mask_rows=MaskRows(warps, thread, (tile_m, step)),
            place=place,
            first_row=first_row,
            rows_left=rows_left,
            band_offset=band_offset,
            operand_q=mma.SharedOperand(warps, thread, sQ, "A"),
            acc_o=acc_o,
            row_ref=row_ref,
            row_sum=row_sum,
            to_tanh=to_tanh,
            to_log2=to_log2,
        )
        if cutlass.const_expr(self.tuning.pipelined):
            mainloop.pipelined(work)
        else:
            mainloop.one_by_one(work)
        self.finish(warps, thread, copy, sQ, acc_o, row_ref, row_sum, to_log2, o, lse_row, rows_left)

    @cute.jit
    def finish(self, warps, thread, copy, sO, acc_o, row_ref, row_sum, to_log2, o, lse_row, rows_left) -> None:
        """Normalise and write O through shared memory, and the log-sum-exp."""
        rows = MaskRows(warps, thread, (self.variant.tile_m, 32))
        self.normalise(thread, rows, layouts.rows_columns(acc_o), row_ref, row_sum, to_log2, lse_row, rows_left)
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
    def normalise(self, thread, mask_rows: MaskRows, acc_o_mn, row_ref, row_sum, to_log2, lse_row, rows_left) -> None:
        """Divide the rows of O by their sums, and write their log-sum-exp."""
        rows, lse = mask_rows.row, self.lse_of
        for i in cutlass.range_constexpr(cute.size(row_sum)):
            total = mma.quad_sum(row_sum[i])
            factor = self.inverse_of(total)
            acc_o_mn[i, None] = acc_o_mn[i, None].load() * factor
            if (thread % 4 == 0) & (rows[i] < rows_left):
                value = -Float32.inf
                if total != 0.0:
                    value = lse(row_ref[i] * to_log2, total)
                cute.make_tensor(lse_row + rows[i], cute.make_layout(1))[0] = value


@cute.jit
def kv_head_of(head: Int32, heads_q: Int32, heads_kv: Int32) -> Int32:
    """The KV head that a query head reads: consecutive ones share it."""
    return head // (heads_q // heads_kv)


@cute.jit
def inverse_of(total: Float32) -> Float32:
    """The final factor of O: 0 for a row without keys."""
    return Float32(0.0) if total == 0.0 else cute.arch.rcp_approx(total)


@cute.jit
def lse_of(reference: Float32, total: Float32) -> Float32:
    """The natural log-sum-exp of a row with keys, from its reference in units of log2 and its sum."""
    return (reference + cute.math.log2(total, fastmath=True)) * LN_2
