# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Bulk copies (TMA) between global and shared memory: tiles by tensor maps, runs of bytes, and sums.

One thread issues a copy, which takes no registers. Loads arrive at an mbarrier with the bytes that they bring.

NOTE [whole tiles] Tensor maps here load tiles whose rows all belong to the sequence. After the last row of a sequence
come those of the next one, or rows that nobody has written: a NaN in such a row would stay one, as 0 times NaN is. So
the lanes of the loading warp copy a tile with fewer rows with cp.async, which makes zeros of the others. A tensor map
then needs no number of rows: it has ROWS, more than any tensor. Columns past the head dim are past the map's end, where
TMA writes zeros.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync
from cutlass.cutlass_dsl import dsl_user_op

from kernels.blocksparse.common.list_reader import Operand
from kernels.blocksparse.common.tile_loads import single

ROWS = 2**31 - 1


class BulkOperand(NamedTuple):
    """An operand and what loads it by TMA: a copy atom with the tensor map, and the map's coordinates (rows, dim,
    heads, batch)."""

    rows: Operand
    atom: Any
    coordinates: Any


def bulk_operand(x: Operand, tile: tuple[int, int], shared: Any, heads: Int32, batch: Int32, dim: Int32) -> BulkOperand:
    """Host code: the tensor map of x for tiles (rows, dim_padded) that lie in shared memory as `shared` says. Strides
    that are 0 have the same rows for all."""
    strides = [cute.assume(stride, divby=8) for stride in (x.stride_row, x.stride_head, x.stride_batch)]
    layout = cute.make_layout((ROWS, dim, heads, batch), stride=(strides[0], 1, strides[1], strides[2]))
    atom, coordinates = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), cute.make_tensor(x.pointer, layout), shared, tile
    )
    return BulkOperand(x, atom, coordinates)


@cute.jit
def load_whole(
    operand: BulkOperand, place: tuple[Int32, Int32, Int32], sX: cute.Tensor, stage: Int32, full: cute.Pointer
) -> None:
    """A whole warp: starts the TMA load of a tile into a stage of sX (rows, dim_padded, stages), whose bytes `full`
    expects. place: (batch, head, the tile's first row in its batch)."""
    batch, head, row = place
    shape = (cute.size(sX, mode=[0]), cute.size(sX, mode=[1]))
    gX = cute.local_tile(cute.domain_offset((row, 0), operand.coordinates[None, None, head, batch]), shape, (0, 0))
    tXsX, tXgX = cpasync.tma_partition(
        operand.atom, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    )
    cute.copy(operand.atom, tXgX, tXsX[None, stage], tma_bar_ptr=full)  # elects a thread itself


@cute.jit
def load_rows(first: cute.Pointer, stride: Int64, rows_left: Int32, dim: Int32, sX: cute.Tensor, lane: Int32) -> None:
    """A whole warp: copies a tile (rows, dim_padded) with cp.async, rows from `rows_left` on and columns from `dim` on
    as zeros, until it is there for products and other bulk copies.

    first    address of the first row; stride: elements between rows
    A loop that is not unrolled: warps that load have few registers.
    """
    rows, columns = cute.size(sX, mode=[0]), cute.size(sX, mode=[1])
    per_row = columns // 8
    at_once = 32 // per_row
    atom = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), sX.element_type, num_bits_per_copy=128
    )
    column = lane % per_row
    for i in cutlass.range(rows // at_once, unroll=1):
        row = i * at_once + lane // per_row
        offset = row * cute.assume(stride, divby=8) + column * 8
        eight = cute.make_layout(((8, 1),))
        source = cute.make_tensor((first + cute.assume(offset, divby=8)).align(16), eight)
        target = cute.make_tensor(cute.local_tile(sX, (1, 8), (row, column)).iterator, eight)
        cute.copy(atom, source, target, pred=single((row < rows_left) & (column * 8 < dim)))
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()


@dsl_user_op
def load_run(target, source, bytes_, full, *, loc=None, ip=None) -> None:
    """One thread: starts the copy of `bytes_` adjacent bytes, a multiple of 16, int or Int32, from global to shared
    memory; `full` expects them."""
    name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    size, constraint, more = _size(bytes_, 3, loc, ip)
    values = [*_addresses((target, source, full), loc, ip), *more]
    _assembly(f"{name} [$0], [$1], {size}, [$2];", "r,l,r" + constraint, values, loc, ip)


@dsl_user_op
def send_run(target, source, bytes_: int, full, *, loc=None, ip=None) -> None:
    """One thread: starts the copy of `bytes_` adjacent bytes, a multiple of 16, from this CTA's shared memory to that
    of another CTA of its cluster, whose `full` expects them."""
    name = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    _assembly(f"{name} [$0], [$1], {bytes_}, [$2];", "r,r,r", _addresses((target, source, full), loc, ip), loc, ip)


@dsl_user_op
def add_run(target, source, bytes_, *, loc=None, ip=None) -> None:
    """One thread: starts adding `bytes_` of adjacent floats, a multiple of 16, int or Int32, in shared memory to those
    in global memory, each atomically; as a part of its next bulk group."""
    _to_global("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", target, source, bytes_, loc, ip)


@dsl_user_op
def store_run(target, source, bytes_, *, loc=None, ip=None) -> None:
    """One thread: starts the copy of `bytes_` adjacent bytes, a multiple of 16, int or Int32, from shared to global
    memory; as a part of its next bulk group."""
    _to_global("cp.async.bulk.global.shared::cta.bulk_group", target, source, bytes_, loc, ip)


def _to_global(name: str, target, source, bytes_, loc, ip) -> None:
    size, constraint, more = _size(bytes_, 2, loc, ip)
    values = [*_addresses((target, source), loc, ip), *more]
    _assembly(f"{name} [$0], [$1], {size};", "l,r" + constraint, values, loc, ip)


def _size(bytes_, place: int, loc, ip) -> tuple[str, str, list]:
    """(text of a size in an instruction, its constraint, its operand): a number has no operand, an Int32 that of this
    place."""
    if isinstance(bytes_, int):
        return str(bytes_), "", []
    return f"${place}", ",r", [Int32(bytes_).ir_value(loc=loc, ip=ip)]


def _addresses(pointers: tuple, loc, ip) -> list:
    return [pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip) for pointer in pointers]


def _assembly(text: str, constraints: str, values: list, loc, ip) -> None:
    llvm.inline_asm(
        None,
        values,
        text,
        constraints,
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
