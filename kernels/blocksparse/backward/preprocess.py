"""Before the backward kernel: what it needs of each query's row, and for atomic adds clean sums to add to.

NOTE [statistics] lse2 and delta are fp32, (heads_q, tiles, tile_m), `Tiles` of backward/dq_accumulator.py: every tile
of queries has all its rows, so that the backward kernel loads them without predicates. delta = sum over d of dO·O, the
inner product that the softmax's gradient subtracts. lse2 = LSE / ln 2, so that P = exp2(score / ln 2 - lse2), and +inf
for rows without keys and rows past the sequence's end: their probabilities are then exactly 0, whatever their scores.
"""

import math
from typing import Any

import cutlass
from cuda.bindings import driver
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.common.arguments import entry, operand, sequence_order_of, sequences_of
from kernels.blocksparse.common.list_reader import Operand, Sequence, Sequences, read, sequence
from kernels.blocksparse.common.sequence_order import SequenceOrder, tile_at
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant, semaphores_of_tile

THREADS = 256
AT_ONCE = 4  # rows that a thread has loads under way for
LOG2_E = math.log2(math.e)


class Preprocess:
    """The preprocessing kernel of one variant (dtype, dim_padded, tile_m); calling it (under cute.compile) launches
    it."""

    INJECTION_POINTS = ("clear", "zero")

    def __init__(self, variant: Variant, injection: Injection = NO_INJECTION) -> None:
        injection.check(self.INJECTION_POINTS, "the preprocessing kernel")
        self.variant = variant
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]
        self.clear = injection.pick("clear", dq_accumulator.clear)
        self.zero = injection.pick("zero", zero)
        # threads that share a row, sixteen bytes each: a power of two, for the shuffles
        self.per_row = 1 << (variant.dim_padded // 8 - 1).bit_length()

    @entry("preprocess")
    @cute.jit
    def __call__(self, arguments, stream: driver.CUstream) -> None:
        """Launch over `tiles_to_launch` CTAs, at least one: batch x heads_q x m_blocks or, where sequences have an
        order, as many as they have tiles at most.

        o, do          (…, rows, heads, dim) of the variant's dtype, 16-byte aligned; strides are multiples of 8
        lse            fp32, as forward writes it
        lse2, delta    outputs: NOTE [statistics]
        tile_counter   int32 (1,): zeroed
        dq_sum         fp32 (heads_q, tiles, tile_m · dim_padded), 16-byte aligned: zeroed. Null where adds are ordered:
                       NOTE [first add] of dq_accumulator.py
        semaphores     int32 (semaphores_of_tile, batch, heads_q, m_blocks): zeroed. Variants with a separate dQ have
                       neither of the two
        order_*        common/sequence_order.py's SequenceOrder, of tiles of queries; null: none
        """
        a = arguments
        self.kernel(
            operand(a, "o"),
            operand(a, "do"),
            (a.lse, a.lse_stride_batch, a.lse_stride_head),
            (a.lse2, a.delta),
            a.dq_sum.align(16),
            sequences_of(a, "q"),
            a.tile_counter,
            a.semaphores,
            (a.batch, a.heads_q, a.m_blocks),
            sequence_order_of(a, "order"),
            a.dim,
            dq_accumulator.Tiles(a.tiles_stride_batch, a.tiles_total),
        ).launch(grid=[a.tiles_to_launch, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(
        self,
        o: Operand,
        do: Operand,
        lse: tuple[cute.Pointer, Int64, Int64],
        statistics: tuple[cute.Pointer, cute.Pointer],
        dq_sum: cute.Pointer,
        queries: Sequences,
        tile_counter: cute.Pointer,
        semaphores: cute.Pointer,
        shape: tuple[Int32, Int32, Int32],
        order: SequenceOrder,
        dim: Int32,
        tiles: dq_accumulator.Tiles,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        batch, head, m_block = tile_at(order, *shape, cta)
        if thread == 0:
            if cutlass.const_expr(not self.variant.separate_dq):
                self.clear_all(semaphores, shape, (batch, head, m_block))
            if cta == 0:
                write(tile_counter, Int32(0), Int32(0))
        seq_q = sequence(queries, batch)
        first_row = m_block * self.variant.tile_m
        if first_row < seq_q.length:
            tile = dq_accumulator.tile_number(tiles, batch, head, seq_q.begin, self.variant.tile_m) + m_block
            lse_row = lse[0] + (batch * lse[1] + head * lse[2] + seq_q.begin + first_row)
            self.rows(o, do, lse_row, statistics, (batch, head, tile), seq_q, first_row, dim, thread)
            if cutlass.const_expr(not self.variant.separate_dq):
                size = cutlass.const_expr(self.variant.tile_m * self.variant.dim_padded)
                if dq_sum.toint() != 0:
                    self.zero(dq_sum + tile * size, thread, size)

    @cute.jit
    def clear_all(self, semaphores, shape, place) -> None:
        """The semaphores of a tile, if it is one. shape: (sequences, heads_q, m_blocks); place: of its coordinates."""
        sequences, heads_q, m_blocks = shape
        batch, head, m_block = place
        if m_block < m_blocks:
            first = (batch * heads_q + head) * m_blocks + m_block
            for i in cutlass.range_constexpr(semaphores_of_tile(self.variant.tile_m, self.variant.dim_padded)):
                self.clear(semaphores + (i * sequences * heads_q * m_blocks + first))

    @cute.jit
    def rows(
        self,
        o: Operand,
        do: Operand,
        lse_row: cute.Pointer,
        statistics: Any,
        place: Any,
        seq_q: Sequence,
        first_row: Int32,
        dim: Int32,
        thread: Int32,
    ) -> None:
        """The statistics of one tile of queries. place: (batch, head, number of the tile). A thread loads its share of
        AT_ONCE rows before it adds any up, so that it waits once for all."""
        batch, head, tile = place
        column = thread % self.per_row * 8
        rows_left = seq_q.length - first_row
        rows_at_once = THREADS // self.per_row
        for first in cutlass.range_constexpr(0, self.variant.tile_m, rows_at_once * AT_ONCE):
            count = cutlass.const_expr(min(AT_ONCE, (self.variant.tile_m - first) // rows_at_once))
            rO, rdO = (cute.make_rmem_tensor((8, count), self.dtype) for _ in range(2))
            rLSE = cute.make_rmem_tensor(count, Float32)
            rO.fill(self.dtype(0.0))
            rdO.fill(self.dtype(0.0))
            rLSE.fill(-Float32.inf)
            for i in cutlass.range_constexpr(count):
                row = first + i * rows_at_once + thread // self.per_row
                if row < rows_left:
                    at = Int64(seq_q.begin) + first_row + row
                    if column < dim:
                        load_eight(o.at(batch, at, head) + column, rO[None, i])
                        load_eight(do.at(batch, at, head) + column, rdO[None, i])
                    rLSE[i] = read(lse_row, row)
            for i in cutlass.range_constexpr(count):
                products = rO[None, i].load().to(Float32) * rdO[None, i].load().to(Float32)
                total = products.reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
                for log in cutlass.range_constexpr(self.per_row.bit_length() - 1):
                    total = total + cute.arch.shuffle_sync_bfly(total, offset=1 << log)
                if column == 0:
                    at = tile * self.variant.tile_m + first + i * rows_at_once + thread // self.per_row
                    write(statistics[0], at, Float32.inf if rLSE[i] == -Float32.inf else rLSE[i] * LOG2_E)
                    write(statistics[1], at, total)


@cute.jit
def load_eight(source: cute.Pointer, target: cute.Tensor) -> None:
    """Eight elements of a row, 16 bytes, to registers."""
    cute.autovec_copy(cute.make_tensor(source.align(16), cute.make_layout(8)), target)


@cute.jit
def zero(target: cute.Pointer, thread: Int32, size: cutlass.Constexpr) -> None:
    """Zeroes one tile of the dQ accumulator."""
    zeros = cute.make_rmem_tensor(4, Float32)
    zeros.fill(Float32(0.0))
    for at in cutlass.range_constexpr(0, size, 4 * THREADS):
        cute.autovec_copy(zeros, cute.make_tensor(target + (at + 4 * thread), cute.make_layout(4)))


@cute.jit
def write(pointer: cute.Pointer, at: Int32 | Int64, value: Any) -> None:
    """pointer[at] = value in global memory."""
    cute.make_tensor(pointer + at, cute.make_layout(1))[0] = value
