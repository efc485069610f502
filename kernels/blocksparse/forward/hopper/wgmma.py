# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Products of a warpgroup: m64nNk16 in fp32, B and the first product's A from swizzled shared memory, P from registers.

NOTE [asynchronous wgmma] A product is issued and runs on while the warpgroup does other things; groups of products end
in the order of their commits. Until `warpgroup.wait_group` says so, no thread touches its accumulator, the registers of
its A, or the shared memory that it reads. `warpgroup.fence` comes before a product whose registers were written.

Relies on rows of shared tiles being swizzled as tile_layout says, at addresses that are multiples of 1,024.
"""

from collections.abc import Callable
from typing import NamedTuple

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernels.blocksparse.common.held_operand import DEPTH, load_held
from kernels.blocksparse.common.layouts import chunk_columns
from kernels.blocksparse.common.mask_words import MaskRows
from kernels.blocksparse.forward.hopper.tuning import ROWS

_K, _MN = OperandMajorMode.K, OperandMajorMode.MN
_SHARED, _REGISTERS = warpgroup.OperandSource.SMEM, warpgroup.OperandSource.RMEM


def tile_layout(dtype: type, rows: int, dim: int, stages: int) -> cute.ComposedLayout:
    """Layout of `stages` (rows, dim) tiles of 16-bit elements; the swizzle permutes pieces of rows, 128 or 64 bytes."""
    kind = warpgroup.SmemLayoutAtomKind.K_SW128 if chunk_columns(dim) == 64 else warpgroup.SmemLayoutAtomKind.K_SW64
    return cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, dtype), (rows, dim, stages), (0, 1, 2))


def shared_tiles(pointer: cute.Pointer, dtype: type, rows: int, dim: int, stages: int) -> cute.Tensor:
    """(rows, dim, stages) tiles at `pointer`, which the swizzle is moved to: products take plain layouts."""
    layout = tile_layout(dtype, rows, dim, stages)
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, dtype), layout.outer)


def transposed(sX: cute.Tensor) -> cute.Tensor:
    """View of (rows, dim, stages) as (dim, rows, stages)."""
    return cute.make_tensor(sX.iterator, cute.select(sX.layout, [1, 0, 2]))


def scores_mma(dtype: type, tile_m: int, step: int) -> cute.TiledMma:
    """Q · Kᵀ: a warpgroup for each 64 rows of the tile."""
    return _tiled(dtype, tile_m, step, _K, _SHARED)


def values_mma(dtype: type, tile_m: int, dim: int) -> cute.TiledMma:
    """P · V, with P in registers and V as it lies."""
    return _tiled(dtype, tile_m, dim, _MN, _REGISTERS)


def _tiled(dtype: type, tile_m: int, columns: int, b_major: OperandMajorMode, a_source) -> cute.TiledMma:
    operation = _operation(dtype, columns, b_major, a_source)
    return cute.make_tiled_mma(cute.make_mma_atom(operation), (tile_m // ROWS, 1, 1))


def _operation(dtype: type, columns: int, b_major: OperandMajorMode, a_source) -> warpgroup.MmaF16BF16Op:
    return warpgroup.MmaF16BF16Op(dtype, Float32, (ROWS, columns, DEPTH), a_source, _K, b_major)


def values_operation(dtype: type, columns: int) -> warpgroup.MmaF16BF16Op:
    """The instruction of `values_mma` that computes so many of its columns: B is a part of the operand then."""
    return _operation(dtype, columns, _MN, _REGISTERS)


def accumulator(columns: int) -> cute.Tensor:
    """An fp32 accumulator of this thread: ((2, 2), 1, columns / 8), as the layout views of mma.sync's have it."""
    return cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, columns // 8)), Float32)


@cute.jit
def rounded(acc: cute.Tensor, dtype: cutlass.Constexpr, columns: cutlass.Constexpr) -> cute.Tensor:
    """An accumulator in 16 bits, with zeros in the columns that it lacks of so many."""
    values = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, columns // 8)), dtype)
    values.fill(dtype(0.0))
    cute.make_tensor(values.iterator, acc.layout).store(acc.load().to(dtype))
    return values


def as_accumulator(acc: cute.Tensor) -> cute.Tensor:
    """The view of it that a product takes: ((2, 2, columns / 8), 1, 1)."""
    (column, row), _, atoms = acc.layout.shape
    return cute.make_tensor(acc.iterator, cute.make_layout(((column, row, atoms), 1, 1)))


class Held(NamedTuple):
    """The first columns of a product's A in registers: the instruction that reads them there, and a thread's part."""

    operation: warpgroup.MmaF16BF16Op
    values: cute.Tensor
    columns: int


def hold_queries(sQ: cute.Tensor, columns: int, step: int, thread: Int32) -> Held | None:
    """So many columns of Q for `scores_mma`, from a warpgroup's rows in shared memory; None where `columns` is 0.
    thread: of the warpgroup."""
    if not columns:
        return None
    operation = _operation(sQ.element_type, step, _K, _REGISTERS)
    return Held(operation, load_held(cute.make_tiled_mma(cute.make_mma_atom(operation)), sQ, columns, thread), columns)


def multiply(
    operation: warpgroup.MmaF16BF16Op,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    add: bool,
    halfway: Callable[[], None] | None = None,
    depth: int = 0,
    held: Held | None = None,
) -> None:
    """Issue acc (+)= A · Bᵀ as one group. a, b: fragments (…, rows or columns, k); halfway: what is done when half of
    it has been issued; depth: the product is over the first `depth` of k, as the others are zeros; 0: all; held: the
    first columns of A where registers have them. The caller has fenced."""
    atom, target = cute.make_mma_atom(operation), as_accumulator(acc)
    steps = depth // DEPTH or cute.size(a, mode=[2])
    in_registers = 0 if held is None else held.columns // DEPTH
    for k in range(steps):
        if halfway is not None and k == steps // 2:
            halfway()
        this, source = (cute.make_mma_atom(held.operation), held.values) if k < in_registers else (atom, a)
        this.set(warpgroup.Field.ACCUMULATE, add or k > 0)
        cute.gemm(this, target, source[None, None, k], b[None, None, k], target)
    warpgroup.commit_group()


class AccumulatorRows(MaskRows):
    """MaskRows of a warpgroup's accumulator."""

    def __init__(self, mma: cute.TiledMma, thread: Int32, tile: tuple[int, int]) -> None:
        coordinates = mma.get_slice(thread).partition_C(cute.make_identity_tensor(tile))
        (columns, rows, atoms), _, _ = coordinates.layout.shape
        self.rows, self.columns = rows, columns * atoms
        self.row = [coordinates[(0, i, 0), 0, 0][0] for i in range(rows)]
        self.first = coordinates[(0, 0, 0), 0, 0][1]
        self.offset = [c % columns + c // columns * 8 for c in range(self.columns)]
        self.n_words = tile[1] // 32
        self.words = cute.make_rmem_tensor(
            cute.make_layout((self.rows, self.n_words), stride=(self.n_words, 1)), cutlass.Uint32
        )
