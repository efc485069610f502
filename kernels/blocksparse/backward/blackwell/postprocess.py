# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Postprocess of sums in the order of the Blackwell backward kernel: NOTE [dQ of tcgen05] of dq_warps.py."""

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward.blackwell.dq_warps import VECTOR
from kernels.blocksparse.backward.blackwell.tuning import blackwell_backward_tuning
from kernels.blocksparse.backward.dkv_partials import sums_of
from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.postprocess import Postprocess
from kernels.blocksparse.common.list_reader import sequence
from kernels.blocksparse.spec.sm100 import ROWS

EIGHT = 8  # columns of a thread at a time: sixteen bytes of shared memory


class BlackwellPostprocess(Postprocess):
    """The postprocessing kernel of one variant with products "tcgen05"."""

    tune = staticmethod(lambda variant, arch: blackwell_backward_tuning(variant))

    @cute.jit
    def queries(self, mdQ, dq_sum, added, queries, tiles, coordinates, copy, sdQ, thread, scale) -> None:
        """See Postprocess."""
        tiling, (batch, head, m_block) = self.tiling, coordinates
        seq_q = sequence(queries, batch)
        first_row = m_block * tiling.tile_m
        if first_row < seq_q.length:
            tile = tile_number(tiles, batch, head, seq_q.begin, tiling.tile_m) + m_block
            source = dq_sum + cute.assume(tile * (tiling.tile_m * tiling.dim), divby=VECTOR)
            if added:
                self.share_sums(source, Int64(0), Int32(1), scale, sdQ, thread)
            else:
                self.share_zeros(sdQ, thread)
            cute.arch.sync_threads()
            row = mdQ.at(batch, Int64(seq_q.begin) + first_row, head)
            store_rows(copy, sdQ, (row, mdQ.stride_row), seq_q.length - first_row)

    @cute.jit
    def keys(self, mdKV, dkv_sum, keys, tiles, coordinates, group_split, copy, sdKV, thread) -> None:
        """See Postprocess."""
        tiling, (batch, head, n_block) = self.tiling, coordinates
        seq_k = sequence(keys, batch)
        first_row = n_block * tiling.tile_n
        if first_row < seq_k.length:
            tile = tile_number(tiles, batch, head * group_split, seq_k.begin, tiling.tile_n) + n_block
            between = Int64(tiles.total) * (2 * tiling.tile_n * tiling.dim)  # units
            for which in cutlass.range_constexpr(2):
                source = sums_of(dkv_sum, tile, which, tiling)
                self.share_sums(source, between, group_split, Float32(1.0), sdKV, thread)
                cute.arch.sync_threads()
                row = mdKV[which].at(batch, Int64(seq_k.begin) + first_row, head)
                store_rows(copy, sdKV, (row, mdKV[which].stride_row), seq_k.length - first_row)
                if cutlass.const_expr(which == 0):
                    cute.arch.sync_threads()

    @cute.jit
    def share_zeros(self, sX: cute.Tensor, thread) -> None:
        """A tile of zeros to shared memory."""
        zeros = cute.make_rmem_tensor(EIGHT, self.dtype)
        zeros.fill(self.dtype(0.0))
        row, half, pieces = thread % ROWS, thread // ROWS, self.tiling.dim // 2 // EIGHT
        for piece in cutlass.range_constexpr(pieces):
            own = cute.local_tile(sX, (1, EIGHT), (row, half * pieces + piece))
            cute.autovec_copy(zeros, own[0, None])

    @cute.jit
    def share_sums(self, source, between: Int64, parts: Int32, scale: Float32, sX: cute.Tensor, thread) -> None:
        """Sums of `parts` tiles, so far apart in memory, times scale, to shared memory in 16 bits."""
        row, half, pieces = thread % ROWS, thread // ROWS, self.tiling.dim // 2 // EIGHT
        for piece in cutlass.range_constexpr(pieces):
            column = (half * pieces + piece) * EIGHT
            total = cute.make_rmem_tensor(EIGHT, Float32)
            total.fill(0.0)
            for part in cutlass.range(parts, unroll=1):
                rPart = cute.make_rmem_tensor(EIGHT, Float32)
                start = source + cute.assume(part * between + column * ROWS + row * VECTOR, divby=VECTOR)
                for at in cutlass.range_constexpr(0, EIGHT, VECTOR):
                    four = cute.make_tensor((start + at * ROWS).align(16), cute.make_layout(VECTOR))
                    cute.autovec_copy(four, cute.make_tensor(rPart.iterator + at, cute.make_layout(VECTOR)))
                total.store(total.load() + rPart.load())
            rounded = cute.make_rmem_tensor(EIGHT, self.dtype)
            rounded.store((total.load() * scale).to(self.dtype))
            own = cute.local_tile(sX, (1, EIGHT), (row, half * pieces + piece))
            cute.autovec_copy(rounded, own[0, None])
