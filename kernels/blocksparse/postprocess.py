"""After the backward kernel: dQ from its fp32 sums, times the scale of q·k, in the dtype of q.

The sums lie in the order in which the backward kernel's threads hold them (NOTE [dQ accumulator] of backward/dq.py):
the same threads read them here and write them out through shared memory.
"""

import cutlass
from cuda.bindings import driver
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from kernels.blocksparse.backward.dq import Tiles, dq_product, read_fragment, tile_number
from kernels.blocksparse.backward.kernel import share
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.tiling import THREADS, choose_tiling
from kernels.blocksparse.common.layouts import tile_layout
from kernels.blocksparse.common.lists import Operand, sequence
from kernels.blocksparse.common.loads import TileCopy
from kernels.blocksparse.variant import NO_SEAMS, Seams, Variant


class Postprocess:
    """The postprocessing kernel of one variant; calling it (under cute.compile) launches it.

    The variant has the dtype, dim_padded, tiles and tuning of the backward variant whose sums it reads.
    """

    SEAMS = ()

    def __init__(self, variant: Variant, arch: str, seams: Seams = NO_SEAMS) -> None:
        seams.check(self.SEAMS, "the postprocessing kernel")
        self.tiling = choose_tiling(variant, arch)
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.dtype]

    @cute.jit
    def __call__(
        self,
        dq: cute.Pointer,
        dq_sum: cute.Pointer,
        q_begin: cute.Pointer,
        q_length: cute.Pointer,
        dq_stride_batch: Int64,
        dq_stride_row: Int64,
        dq_stride_head: Int64,
        batch: Int32,
        heads_q: Int32,
        m_blocks: Int32,
        dim: Int32,
        tiles_stride_batch: Int32,
        tiles_total: Int32,
        scale: Float32,
        stream: driver.CUstream,
    ) -> None:
        """Launch over batch x heads_q x m_blocks CTAs, at least one.

        dq      output: (…, rows, heads, dim) of the variant's dtype, 16-byte aligned; strides are multiples of 8
        dq_sum  fp32, 16-byte aligned
        """
        self.kernel(
            Operand(dq, dq_stride_batch, dq_stride_row, dq_stride_head),
            dq_sum.align(16),
            (q_begin, q_length),
            heads_q,
            m_blocks,
            dim,
            Tiles(tiles_stride_batch, tiles_total),
            scale,
        ).launch(grid=[batch * heads_q * m_blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(
        self,
        mdQ: Operand,
        dq_sum: cute.Pointer,
        queries: tuple[cute.Pointer, cute.Pointer],
        heads_q: Int32,
        m_blocks: Int32,
        dim: Int32,
        tiles: Tiles,
        scale: Float32,
    ) -> None:
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        m_block, head, batch = cta % m_blocks, cta // m_blocks % heads_q, cta // m_blocks // heads_q
        seq_q = sequence(queries[0], queries[1], batch)
        tile = tile_number(tiles, batch, head, seq_q.begin, tiling.tile_m) + m_block
        memory = SmemAllocator()
        sdQ = memory.allocate_tensor(self.dtype, tile_layout(tiling.step_m, tiling.dim), byte_alignment=1024)
        copy = TileCopy(self.dtype, THREADS, tiling.dim, thread, dim)
        mma = dq_product(tiling, self.dtype).tiled_mma()
        for step in cutlass.range_constexpr(tiling.steps):
            first_row = m_block * tiling.tile_m + step * tiling.step_m
            if first_row < seq_q.length:
                rdQ = cute.make_rmem_tensor(
                    mma.get_slice(thread).partition_shape_C((tiling.step_m, tiling.dim)), Float32
                )
                offset = (tile * tiling.tile_m + step * tiling.step_m) * tiling.dim
                read_fragment(rdQ, dq_sum + cute.assume(offset, divby=4), thread, tiling.vector)
                rdQ.store(rdQ.load() * scale)
                share(mma, rdQ, sdQ, thread, tiling.wide_stores)
                cute.arch.sync_threads()
                row = mdQ.at(batch, Int64(seq_q.begin) + first_row, head)
                store_rows(copy, sdQ, (row, mdQ.stride_row), seq_q.length - first_row)
                if cutlass.const_expr(step + 1 < tiling.steps):
                    cute.arch.sync_threads()
