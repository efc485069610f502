# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Layouts of tiles in shared memory, and views of accumulators.

Shared tiles are row-major (rows, dim) in 16-byte chunks whose position is XORed with the row, so that both cp.async's
16-byte stores and ldmatrix's eight 16-byte rows touch every bank once. Relies on dim being a multiple of 32.
"""

import cutlass
from cutlass import cute


def chunk_columns(dim: int) -> int:
    """Columns of the swizzle's atom: 64 (one 128-byte line) where they divide `dim`, else 32."""
    return 64 if dim % 64 == 0 else 32


def tile_layout(rows: int, dim: int) -> cute.ComposedLayout:
    """Layout of a (rows, dim) tile of 16-bit elements in shared memory, free of bank conflicts. Needs rows % 8 == 0."""
    columns = chunk_columns(dim)
    atom = cute.make_composed_layout(
        cute.make_swizzle(3 if columns == 64 else 2, 3, 3), 0, cute.make_layout((8, columns), stride=(columns, 1))
    )
    return cute.tile_to_shape(atom, (rows, dim), (0, 1))


def transposed(sX: cute.Tensor) -> cute.Tensor:
    """View of a (rows, dim) tile as (dim, rows): the operand that ldmatrix.trans reads."""
    rows, dim = sX.shape[0], sX.shape[1]
    rows, dim = cute.size(rows), cute.size(dim)
    return cute.composition(sX, cute.make_layout((dim, rows), stride=(rows, 1)))


def stage(pointer: cute.Pointer, layout: cute.ComposedLayout, index: cutlass.Int32 | int) -> cute.Tensor:
    """Tile number `index` of an array of equal tiles in shared memory that starts at `pointer` (1,024-byte aligned)."""
    size = cute.cosize(layout)
    return cute.make_tensor(pointer + cute.assume(index * size, divby=size), layout)


def rows_columns(acc: cute.Tensor) -> cute.Tensor:
    """View of an accumulator ((2, 2), atoms_m, atoms_n) as (rows of this thread, columns of this thread)."""
    (column, row), atoms_m, atoms_n = acc.layout.shape
    (column_stride, row_stride), m_stride, n_stride = acc.layout.stride
    layout = cute.make_layout(
        ((row, atoms_m), (column, atoms_n)), stride=((row_stride, m_stride), (column_stride, n_stride))
    )
    return cute.make_tensor(acc.iterator, layout)


def as_operand_a(values: cute.Tensor) -> cute.Tensor:
    """View of 16-bit values in accumulator order ((2, 2), m, n) as the next mma's operand A ((2, 2, 2), m, n / 2)."""
    (column, row), atoms_m, atoms_n = values.layout.shape
    (column_stride, row_stride), m_stride, n_stride = values.layout.stride
    layout = cute.make_layout(
        ((column, row, 2), atoms_m, atoms_n // 2),
        stride=((column_stride, row_stride, n_stride), m_stride, 2 * n_stride),
    )
    return cute.make_tensor(values.iterator, layout)
