"""The five products of the backward kernel as a thread sees them: of warps (mma.py) or warpgroups (wgmma.py)."""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import warp

from kernels.blocksparse.backward.dkv_partials import keys_product
from kernels.blocksparse.backward.dq_accumulator import dq_product
from kernels.blocksparse.backward.mma import Product, ThreadProduct, transposed
from kernels.blocksparse.backward.tiling import Tiling
from kernels.blocksparse.backward.wgmma import (
    GroupProduct,
    GroupThread,
    as_issued,
    is_of_groups,
    operand,
    transposed_operand,
)


def thread_products(tiling: Tiling, dtype: type, storage: Any, thread: Any) -> tuple[Any, Any, Any, Any, Any]:
    """(S, dP, dV, dK, dQ) over the tiles of `storage`: sQ, sdO, sK, sV, sP and sdS of kernel.Storage."""
    s, (step_m, tile_n, dim) = storage, (tiling.step_m, tiling.tile_n, tiling.dim)
    by_keys, to_dq = keys_product(tiling, dtype), dq_product(tiling, dtype)
    if not tiling.wgmma:
        by_scores = Product(dtype, (step_m, tile_n, dim), tiling.warps_s, columns_together=True)
        return (
            ThreadProduct(by_scores, thread, s.sQ, s.sK),
            ThreadProduct(by_scores, thread, s.sdO, s.sV),
            ThreadProduct(by_keys, thread, transposed(s.sP), transposed(s.sdO)),
            ThreadProduct(by_keys, thread, transposed(s.sdS), transposed(s.sQ)),
            ThreadProduct(to_dq, thread, s.sdS, transposed(s.sK)),
        )
    of_queries, of_keys = (step_m, dim, tiling.stages), (tile_n, dim)
    of_scores, of_ds = (step_m, tile_n, tiling.stages_p), (step_m, tile_n, tiling.stages_ds)
    of_groups = GroupProduct(dtype, (step_m, tile_n, dim), tiling.warps_s)
    return (
        GroupThread(of_groups, thread, operand(s.sQ, *of_queries), operand(s.sK, *of_keys), tiling.depth),
        GroupThread(of_groups, thread, operand(s.sdO, *of_queries), operand(s.sV, *of_keys), tiling.depth),
        GroupThread(by_keys, thread, transposed_operand(s.sP, *of_scores), transposed_operand(s.sdO, *of_queries)),
        GroupThread(by_keys, thread, transposed_operand(s.sdS, *of_ds), transposed_operand(s.sQ, *of_queries)),
        GroupThread(to_dq, thread, operand(s.sdS, *of_ds), transposed_operand(s.sK, *of_keys)),
    )


@cute.jit
def share(
    mma: cute.TiledMma,
    rD: cute.Tensor,
    sD: cute.Tensor,
    thread: Int32,
    wide: cutlass.Constexpr,
    turned: cutlass.Constexpr = False,
) -> None:
    """Writes a thread's results of `mma` to shared memory, in 16 bits; wide: `Tiling.wide_stores`; turned: sD has the
    result's columns as rows, which needs wide."""
    rounded = cute.make_rmem_tensor_like(rD, sD.element_type)
    rounded.store(rD.load().to(sD.element_type))
    share_rounded(mma, rounded, sD, thread, wide, turned)


@cute.jit
def share_rounded(
    mma: cute.TiledMma,
    rounded: cute.Tensor,
    sD: cute.Tensor,
    thread: Int32,
    wide: cutlass.Constexpr = True,
    turned: cutlass.Constexpr = False,
) -> None:
    """Writes results of `mma` that are in 16 bits already, likewise."""
    if cutlass.const_expr(is_of_groups(mma)):
        rounded = as_issued(rounded)
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), sD.element_type, num_bits_per_copy=32)
    if cutlass.const_expr(wide):
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=turned, num_matrices=4), sD.element_type)
    if cutlass.const_expr(turned):
        sD = transposed(sD)
    copy = cute.make_tiled_copy_C(atom, mma).get_slice(thread)
    cute.copy(copy, copy.retile(rounded), copy.partition_D(sD))


@cute.jit
def store_straight(
    mma: cute.TiledMma,
    rD: cute.Tensor,
    shape: cutlass.Constexpr,
    rows: tuple[cute.Pointer, Int64],
    rows_left: Int32,
    dim: Int32,
    thread: Int32,
) -> None:
    """Writes a thread's results of `mma`, of a tile of `shape`, to float32 rows in global memory: two columns at a
    time, so that four threads fill 32 bytes. rows: (address of the first, elements between rows); dim: columns."""
    where = mma.get_slice(thread).partition_C(cute.make_identity_tensor(shape))
    pairs = cute.size(rD) // 2
    values = cute.make_tensor(rD.iterator, cute.make_layout((2, pairs)))
    for pair in cutlass.range_constexpr(pairs):
        row, column = where[2 * pair]
        if row < rows_left and column < dim:
            target = rows[0] + cute.assume(row * rows[1] + column, divby=2)
            cute.autovec_copy(values[None, pair], cute.make_tensor(target, cute.make_layout(2)))


@cute.jit
def store_turned(mma, rD, shape: cutlass.Constexpr, rows, rows_left: Int32, dim: Int32, thread: Int32) -> None:
    """`store_float32` of results whose rows are the tile's columns."""
    where = mma.get_slice(thread).partition_C(cute.make_identity_tensor((shape[1], shape[0])))
    for i in cutlass.range_constexpr(cute.size(rD)):
        column, row = where[i]
        if row < rows_left and column < dim:
            cute.make_tensor(rows[0] + (row * rows[1] + column), cute.make_layout(1))[0] = rD[i]


@cute.jit
def store_float32(
    mma,
    rD,
    shape: cutlass.Constexpr,
    rows,
    rows_left: Int32,
    dim: Int32,
    thread: Int32,
    by_dim: cutlass.Constexpr = False,
) -> None:
    """Writes a thread's results of a tile of `shape` to float32 rows; by_dim: `mma` has the tile's columns as rows."""
    if cutlass.const_expr(by_dim):
        store_turned(mma, rD, shape, rows, rows_left, dim, thread)
    else:
        store_straight(mma, rD, shape, rows, rows_left, dim, thread)
