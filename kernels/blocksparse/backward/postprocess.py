"""The kernel after the backward kernel: dQ from its fp32 sums, times the scale of q·k, in the dtype of q, or in float32
where the variant says so; and dK and dV from those of several units, where a group was split: NOTE [group split] of
group_split.py.

The sums lie in the order in which the backward kernel's threads hold them (NOTE [dQ accumulator] of
backward/dq_accumulator.py, NOTE [dK and dV partials] of backward/dkv_partials.py): the same threads read them here and
write them out through shared memory. With ordered adds a tile of dQ that no block was added to has no sums, and is
zeros: NOTE [first add] of backward/dq_accumulator.py.
"""

import cutlass
from cuda.bindings import driver
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward.dkv_partials import keys_product, read_sums, sums_of
from kernels.blocksparse.backward.dq_accumulator import Tiles, dq_product, is_added, read_fragment, tile_number
from kernels.blocksparse.backward.gemms import share, store_float32
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.tiling import THREADS, choose_tiling
from kernels.blocksparse.common.arguments import entry, operand, sequence_order_of, sequences_of
from kernels.blocksparse.common.layouts import tile_layout
from kernels.blocksparse.common.list_reader import Operand, Sequences, sequence
from kernels.blocksparse.common.sequence_order import SequenceOrder, tile_at
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant


class Postprocess:
    """The postprocessing kernel of one variant; calling it (under cute.compile) launches it.

    The variant has the dtype, dim_padded, tiles, tuning and float32 of the backward variant whose sums it reads.
    """

    INJECTION_POINTS = ("is_added",)
    tune = staticmethod(choose_tiling)

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        injection.check(self.INJECTION_POINTS, "the postprocessing kernel")
        self.is_added = injection.pick("is_added", is_added)
        self.tiling, self.float32 = self.tune(variant, arch), variant.float32
        # so many that one loads while another stores; a thread holds its share of a tile's sums, 32 or 64 registers
        self.ctas_per_sm = 3 if variant.tile_m * self.tiling.dim <= 32 * THREADS else 2
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]

    @entry("postprocess")
    @cute.jit
    def __call__(self, arguments, stream: driver.CUstream) -> None:
        """Launch over `tiles_to_launch` CTAs, at least one, and, where group_split is more than 1,
        `key_tiles_to_launch` more: batch x heads_q x m_blocks and batch x heads_kv x n_blocks or, where sequences have
        an order, as many as they have tiles at most.

        dq, dk, dv   outputs: (…, rows, heads, dim) of the variant's dtype, or float32, 16-byte aligned; strides are
                     multiples of 8
        dq_sum, dkv_sum  fp32, 16-byte aligned; dk, dv and dkv_sum are used where group_split is more than 1
        order_*, key_order_*  common/sequence_order.py's SequenceOrder, of tiles of queries and of keys; null: none
        semaphores   int32 (batch, heads_q, m_blocks) as ordered adds have left them, of several for each tile the first
                     ones; null where adds were atomic
        """
        a = arguments
        of_keys = a.key_tiles_to_launch if a.group_split > 1 else Int32(0)
        self.kernel(
            operand(a, "dq"),
            (operand(a, "dk"), operand(a, "dv")),
            (a.dq_sum.align(16), a.semaphores),
            a.dkv_sum.align(16),
            sequences_of(a, "q"),
            sequences_of(a, "k"),
            ((a.batch, a.heads_q, a.m_blocks), Tiles(a.tiles_stride_batch, a.tiles_total)),
            ((a.batch, a.heads_kv, a.n_blocks), Tiles(a.key_tiles_stride_batch, a.key_tiles_total)),
            (sequence_order_of(a, "order"), sequence_order_of(a, "key_order")),
            a.tiles_to_launch,
            a.group_split,
            a.dim,
            a.scale,
        ).launch(
            grid=[a.tiles_to_launch + of_keys, 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
            min_blocks_per_mp=self.ctas_per_sm,
            # said, so that a build need not ask a driver how much a multiprocessor has
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(
        self,
        mdQ: Operand,
        mdKV: tuple[Operand, Operand],
        sums: tuple[cute.Pointer, cute.Pointer],
        dkv_sum: cute.Pointer,
        queries: Sequences,
        keys: Sequences,
        sizes_q: tuple[tuple[Int32, Int32, Int32], Tiles],
        sizes_k: tuple[tuple[Int32, Int32, Int32], Tiles],
        orders: tuple[SequenceOrder, SequenceOrder],
        of_queries: Int32,
        group_split: Int32,
        dim: Int32,
        scale: Float32,
    ) -> None:
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        memory = SmemAllocator()
        rows = max(tiling.step_m, tiling.tile_n)
        shared = memory.allocate_tensor(self.dtype, tile_layout(rows, tiling.dim), byte_alignment=1024)
        sdQ = cute.make_tensor(shared.iterator, tile_layout(tiling.step_m, tiling.dim))
        sdKV = cute.make_tensor(shared.iterator, tile_layout(tiling.tile_n, tiling.dim))
        copy = TileCopy(self.dtype, THREADS, tiling.dim, thread, dim)
        if cta < of_queries:
            batch, head, m_block = tile_at(orders[0], *sizes_q[0], cta)
            _, heads, m_blocks = sizes_q[0]
            added, tile = Boolean(False), (batch, head, m_block)
            if m_block < m_blocks:
                added = self.is_added(sums[1], (batch * heads + head) * m_blocks + m_block)
            self.queries(mdQ, sums[0], added, queries, sizes_q[1], tile, copy, sdQ, thread, scale)
        else:
            tile = tile_at(orders[1], *sizes_k[0], cta - of_queries)
            self.keys(mdKV, dkv_sum, keys, sizes_k[1], tile, group_split, copy, sdKV, thread)

    @cute.jit
    def queries(self, mdQ, dq_sum, added, queries, tiles, coordinates, copy, sdQ, thread, scale) -> None:
        """The tile of dQ at these coordinates, (batch, head, m_block). added: it has sums."""
        tiling, (batch, head, m_block) = self.tiling, coordinates
        seq_q = sequence(queries, batch)
        tile = tile_number(tiles, batch, head, seq_q.begin, tiling.tile_m) + m_block
        mma = dq_product(tiling, self.dtype).tiled_mma()
        for step in cutlass.range_constexpr(tiling.steps):
            first_row = m_block * tiling.tile_m + step * tiling.step_m
            if first_row < seq_q.length:
                shape = (tiling.dim, tiling.step_m) if tiling.dq_by_dim else (tiling.step_m, tiling.dim)
                rdQ = _registers(mma, thread, shape)
                offset = tile * tiling.tile_m * tiling.dim
                rdQ.fill(Float32(0.0))
                if added:
                    read_fragment(rdQ, dq_sum + cute.assume(offset, divby=4), step, thread, tiling)
                    rdQ.store(rdQ.load() * scale)
                place = (batch, seq_q, first_row, head)
                more = step + 1 < tiling.steps
                self.store(copy, mma, rdQ, sdQ, mdQ, place, thread, more, tiling.dq_by_dim)

    @cute.jit
    def keys(self, mdKV, dkv_sum, keys, tiles, coordinates, group_split, copy, sdKV, thread) -> None:
        """The tile of dK and dV at these coordinates, (batch, head, n_block)."""
        tiling, (batch, head, n_block) = self.tiling, coordinates
        seq_k = sequence(keys, batch)
        first_row = n_block * tiling.tile_n
        mma = keys_product(tiling, self.dtype).tiled_mma()
        if first_row < seq_k.length:
            for which in cutlass.range_constexpr(2):
                rD, rPart = (_registers(mma, thread, (tiling.tile_n, tiling.dim)) for _ in range(2))
                rD.fill(Float32(0.0))
                for part in cutlass.range(group_split, unroll=1):
                    tile = tile_number(tiles, batch, head * group_split + part, seq_k.begin, tiling.tile_n) + n_block
                    read_sums(rPart, sums_of(dkv_sum, tile, which, tiling), thread)
                    rD.store(rD.load() + rPart.load())
                place = (batch, seq_k, first_row, head)
                self.store(copy, mma, rD, sdKV, mdKV[which], place, thread, which == 0)

    @cute.jit
    def store(
        self, copy, mma, rD, sD, mD, place, thread, more: cutlass.Constexpr, by_dim: cutlass.Constexpr = False
    ) -> None:
        """Writes a thread's share of a tile to an operand, rounded ones by way of sD. place: (batch, sequence, the
        tile's first row in it, head); more: sD is written again; by_dim: `mma` has the tile's columns as rows."""
        tiling, (batch, seq, first_row, head) = self.tiling, place
        if cutlass.const_expr(self.float32):
            row = mD.at(batch, Int64(seq.begin) + first_row, head)
            shape = (cute.size(sD, mode=[0]), tiling.dim)
            store_float32(mma, rD, shape, (row, mD.stride_row), seq.length - first_row, copy.dim, thread, by_dim)
        else:
            share(mma, rD, sD, thread, tiling.wide_stores, by_dim)
            cute.arch.sync_threads()
            row = mD.at(batch, Int64(seq.begin) + first_row, head)
            store_rows(copy, sD, (row, mD.stride_row), seq.length - first_row)
            if cutlass.const_expr(more):
                cute.arch.sync_threads()


def _registers(mma: cute.TiledMma, thread: Int32, shape: tuple[int, int]) -> cute.Tensor:
    """A thread's share of a result."""
    return cute.make_rmem_tensor(mma.get_slice(thread).partition_shape_C(shape), Float32)
