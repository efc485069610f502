# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Tiles between global and shared memory: 16 bytes per thread and instruction, predicated by row and by column.

Loads are cp.async with zero fill: rows at or past the end and columns at or past the true head dim become zeros and
their addresses are never read. So padded columns add nothing to any product and padded rows of V are finite.
"""

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.common.layouts import chunk_columns


class TileCopy:
    """Copies by `threads` threads of (rows, dim_padded) tiles of `dtype` between global and shared memory.

    thread   index of this thread
    dim      the true head dim, at run time, a multiple of 8
    """

    def __init__(self, dtype: type, threads: int, dim_padded: int, thread: Int32, dim: Int32) -> None:
        per_row = chunk_columns(dim_padded) // 8
        self.dtype, self.threads, self.dim_padded, self.thread, self.dim = dtype, threads, dim_padded, thread, dim
        self.rows_per_pass = threads // per_row
        where = cute.make_layout((self.rows_per_pass, per_row), stride=(per_row, 1))
        what = cute.make_layout((1, 8))
        load = cute.make_copy_atom(
            cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), dtype, num_bits_per_copy=128
        )
        store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
        self.loads = cute.make_tiled_copy_tv(load, where, what)
        self.stores = cute.make_tiled_copy_tv(store, where, what)
        self.row = thread // per_row
        column = thread % per_row * 8
        # one predicate per repeat along the columns
        self.inside = [column + j * per_row * 8 < dim for j in range(dim_padded // (per_row * 8))]

    @cute.jit
    def load(self, pointer: cute.Pointer, stride: Int64, rows_left: Int32, sX: cute.Tensor) -> None:
        """Start copying the tile whose first row is at `pointer` into sX; rows from `rows_left` on become zeros.

        stride   elements between rows, a multiple of 8. The caller commits the group.
        """
        gX = global_tile(pointer, stride, cute.size(sX.shape[0]), self.dim_padded)
        thread_copy = self.loads.get_slice(self.thread)
        tXgX, tXsX = thread_copy.partition_S(gX), thread_copy.partition_D(sX)
        for i in cutlass.range_constexpr(cute.size(tXsX, mode=[1])):
            row_inside = self.row + i * self.rows_per_pass < rows_left
            for j in cutlass.range_constexpr(cute.size(tXsX, mode=[2])):
                cute.copy(self.loads, tXgX[None, i, j], tXsX[None, i, j], pred=single(row_inside & self.inside[j]))

    @cute.jit
    def load_rolled(self, pointer: cute.Pointer, stride: Int64, rows_left: Int32, sX: cute.Tensor) -> None:
        """As `load`, by a loop that takes few registers."""
        gX = global_tile(pointer, stride, cute.size(sX.shape[0]), self.dim_padded)
        thread_copy = self.loads.get_slice(self.thread)
        tXgX, tXsX = thread_copy.partition_S(gX), thread_copy.partition_D(sX)
        loads, row, rows_per_pass, inside = self.loads, self.row, self.rows_per_pass, self.inside
        for i in cutlass.range(cute.size(tXsX, mode=[1]), unroll=1):
            for j in cutlass.range_constexpr(cute.size(tXsX, mode=[2])):
                row_inside = row + i * rows_per_pass < rows_left
                cute.copy(loads, tXgX[None, i, j], tXsX[None, i, j], pred=single(row_inside & inside[j]))

    @cute.jit
    def store(self, sX: cute.Tensor, pointer: cute.Pointer, stride: Int64, rows_left: Int32) -> None:
        """Copy the rows of sX below `rows_left` to the tile that starts at `pointer`. The caller has synchronised."""
        gX = global_tile(pointer, stride, cute.size(sX.shape[0]), self.dim_padded)
        thread_copy = self.stores.get_slice(self.thread)
        tXsX, tXgX = thread_copy.partition_S(sX), thread_copy.partition_D(gX)
        values = cute.make_rmem_tensor_like(tXsX, self.dtype)
        cute.copy(self.stores, tXsX, values)
        for i in cutlass.range_constexpr(cute.size(tXgX, mode=[1])):
            row_inside = self.row + i * self.rows_per_pass < rows_left
            for j in cutlass.range_constexpr(cute.size(tXgX, mode=[2])):
                cute.copy(self.stores, values[None, i, j], tXgX[None, i, j], pred=single(row_inside & self.inside[j]))


def global_tile(pointer: cute.Pointer, stride: Int64, rows: int, columns: int) -> cute.Tensor:
    """A row-major (rows, columns) view of global memory, 16-byte aligned in every row."""
    stride = cute.assume(stride, divby=8)
    return cute.make_tensor(pointer.align(16), cute.make_layout((rows, columns), stride=(stride, 1)))


def single(condition: Boolean) -> cute.Tensor:
    """A predicate tensor for the copy of one vector."""
    predicate = cute.make_rmem_tensor(cute.make_layout((1,)), Boolean)
    predicate[0] = condition
    return predicate
