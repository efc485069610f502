"""Tensor-core products of the backward kernel: eight warps, operands from shared memory, portable mma.sync and
ldmatrix.

A `Product` is one of the five matrix products, D (m, n) += A (m, k) B (n, k): which thread computes what, and how it
reads its operands. Operands lie in shared memory with k contiguous ("straight") or with m or n contiguous
("transposed").
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warp

from kernels.blocksparse.common.layouts import tile_layout


@dataclass(frozen=True)
class Product:
    """shape is (m, n, k); warps (m, n); transpose_a, transpose_b: the operand lies with m (n) contiguous in shared
    memory; rows_together, columns_together: a warp's rows (columns) are adjacent, else interleaved with other warps' in
    pieces of 16. Warps are numbered down the columns, or where rows are together, along the rows: see NOTE [groups] of
    mainloop_mma.py.
    """

    dtype: type
    shape: tuple[int, int, int]
    warps: tuple[int, int]
    transpose_a: bool = False
    transpose_b: bool = False
    rows_together: bool = False
    columns_together: bool = False

    def tiled_mma(self) -> cute.TiledMma:
        """The tiled mma of all warps."""
        warps_m, warps_n = self.warps
        rows, columns, warps = warps_m * 16, warps_n * 16, cute.make_layout((warps_m, warps_n, 1))
        if self.rows_together:
            per_warp = self.shape[0] // warps_m
            rows = cute.make_layout((16, warps_m, per_warp // 16), stride=(1, per_warp, 16))
            warps = cute.make_layout((warps_m, warps_n, 1), stride=(warps_n, 1, 0))
        if self.columns_together:
            per_warp = self.shape[1] // warps_n
            columns = cute.make_layout((8, warps_n, per_warp // 8), stride=(1, per_warp, 8))
        op = warp.MmaF16BF16Op(self.dtype, cutlass.Float32, (16, 8, 16))
        return cute.make_tiled_mma(op, warps, permutation_mnk=(rows, columns, 16))

    def copies(self, tiled_mma: cute.TiledMma, tidx) -> tuple:
        """Copies of A and of B from shared memory, for this thread."""
        a = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=self.transpose_a, num_matrices=4), self.dtype)
        b = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=self.transpose_b, num_matrices=4), self.dtype)
        return (
            cute.make_tiled_copy_A(a, tiled_mma).get_slice(tidx),
            cute.make_tiled_copy_B(b, tiled_mma).get_slice(tidx),
        )


class ThreadProduct:
    """A product seen by one thread: its share of the operands in shared memory, and where its results lie."""

    def __init__(self, product: Product, tidx, sA: cute.Tensor, sB: cute.Tensor):
        """sA (m, k[, stages]) and sB (n, k[, stages])."""
        self.product = product
        self.mma = product.tiled_mma()
        self.thread = self.mma.get_slice(tidx)
        self.copy_a, self.copy_b = product.copies(self.mma, tidx)
        self.tAsA = self.copy_a.partition_S(sA)
        self.tBsB = self.copy_b.partition_S(sB)
        self.staged_a, self.staged_b = cute.rank(sA) == 3, cute.rank(sB) == 3
        self.rA_like = self.thread.partition_A(sA[None, None, 0] if self.staged_a else sA)
        self.rB_like = self.thread.partition_B(sB[None, None, 0] if self.staged_b else sB)

    def by_atoms(self, sums: cute.Tensor) -> cute.Tensor:
        """A thread's part of a result as ((2, 2), m, n / 8): so it lies already."""
        return sums


def accumulator(product) -> cute.Tensor:
    """Registers for this thread's share of D, not initialised: ((2, 2), m, n)."""
    rD = cute.make_rmem_tensor(product.thread.partition_shape_C(product.product.shape[:2]), cutlass.Float32)
    return product.by_atoms(rD)


def coordinates(product) -> cute.Tensor:
    """(row, column) of each of this thread's elements of D."""
    coordinates = product.thread.partition_C(cute.make_identity_tensor(product.product.shape[:2]))
    return product.by_atoms(coordinates)


@cute.jit
def multiply(product: ThreadProduct, rD: cute.Tensor, stage_a=0, stage_b=0):
    """D += A B, with the operands of those stages, where they have some."""
    tAsA = product.tAsA[None, None, None, stage_a] if cutlass.const_expr(product.staged_a) else product.tAsA
    tBsB = product.tBsB[None, None, None, stage_b] if cutlass.const_expr(product.staged_b) else product.tBsB
    rA = product.thread.make_fragment_A(product.rA_like)
    rB = product.thread.make_fragment_B(product.rB_like)
    tArA = product.copy_a.retile(rA)
    tBrB = product.copy_b.retile(rB)
    cute.copy(product.copy_a, tAsA[None, None, 0], tArA[None, None, 0])
    cute.copy(product.copy_b, tBsB[None, None, 0], tBrB[None, None, 0])
    for k in cutlass.range_constexpr(cute.size(tAsA, mode=[2])):
        if cutlass.const_expr(k + 1 < cute.size(tAsA, mode=[2])):
            cute.copy(product.copy_a, tAsA[None, None, k + 1], tArA[None, None, k + 1])
            cute.copy(product.copy_b, tBsB[None, None, k + 1], tBrB[None, None, k + 1])
        cute.gemm(product.mma, rD, rA[None, None, k], rB[None, None, k], rD)


@cute.jit
def begin(product: ThreadProduct):
    """Registers for B, which has no stages, and its first piece on its way there."""
    rB = product.thread.make_fragment_B(product.rB_like)
    cute.copy(product.copy_b, product.tBsB[None, None, 0], product.copy_b.retile(rB)[None, None, 0])
    return rB


@cute.jit
def multiply_each(product: ThreadProduct, rDs, stages_a, rB):
    """Each D of rDs += A B with its own stage of A; B, begun, is read from shared memory once for all."""
    tBrB, tAsA, rA, tArA = product.copy_b.retile(rB), [], [], []
    for stage in stages_a:
        tAsA.append(product.tAsA[None, None, None, stage])
        rA.append(product.thread.make_fragment_A(product.rA_like))
        tArA.append(product.copy_a.retile(rA[-1]))
    pieces = cute.size(product.tBsB, mode=[2])
    for k in cutlass.range_constexpr(-1, pieces):
        # the next pieces are on their way while these are multiplied
        if cutlass.const_expr(k + 1 < pieces):
            if cutlass.const_expr(k >= 0):
                cute.copy(product.copy_b, product.tBsB[None, None, k + 1], tBrB[None, None, k + 1])
            for i in cutlass.range_constexpr(len(rDs)):
                cute.copy(product.copy_a, tAsA[i][None, None, k + 1], tArA[i][None, None, k + 1])
        if cutlass.const_expr(k >= 0):
            for i in cutlass.range_constexpr(len(rDs)):
                cute.gemm(product.mma, rDs[i], rA[i][None, None, k], rB[None, None, k], rDs[i])


def transposed(tensor: cute.Tensor) -> cute.Tensor:
    """(rows, columns[, stages]) seen as (columns, rows[, stages])."""
    rows, columns, *stages = (cute.size(tensor, mode=[i]) for i in range(cute.rank(tensor)))
    layout = cute.make_layout((columns, rows, *stages), stride=(rows, 1, *(rows * columns for _ in stages)))
    return cute.composition(tensor, layout)


def staged_layout(rows: int, columns: int, stages: int) -> cute.ComposedLayout:
    """`stages` tiles of `tile_layout`, one after another: (rows, columns, stages)."""
    return cute.tile_to_shape(tile_layout(rows, columns), (rows, columns, stages), (0, 1, 2))
