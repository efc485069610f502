# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Sums of a part of a tile in the forward kernel, and those of the tile from the sums of all its parts: NOTE [split
tiles] of common/split_tiles.py.

Of a thread's two rows: their references and sums, then O before it is divided; value i of a thread at i · threads +
thread. float32 (tiles, parts, values of a thread, multiplying threads).
"""

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute

from kernels.blocksparse.common import layouts
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.common.split_tiles import SplitTiles
from kernels.blocksparse.forward.hopper.tuning import WARPGROUP


@cute.jit
def combine(
    w,
    splits: SplitTiles,
    tile: Int32,
    part: Int32,
    group: Int32,
    thread: Int32,
    threads: cutlass.Constexpr,
    acc_o,
    row_ref,
    row_sum,
) -> Boolean:
    """Leaves the sums of a warpgroup's rows of a part. Returns True for the last one of a tile to do so, whose acc_o,
    row_ref and row_sum are then those of all parts.

    tile, part       the tile's number among those that are split, and the part's among the tile's
    thread, threads  among all that multiply, and how many there are
    w                `meet`, by which the warpgroup's threads wait for each other, `sLast` (warpgroups,), `arrive` of
                     common/split_tiles.py, and `correction`, `finite` and `to_log2` as of the main loop
    """
    count = (cute.size(acc_o) + 2 * cute.size(row_sum)) * threads
    first = splits.sums + (Int64(tile * splits.parts) * count + thread)
    _write(first + Int64(part) * count, threads, acc_o, row_ref, row_sum)
    rows, sLast = tile * (threads // WARPGROUP) + group, cute.make_tensor(w.sLast.iterator + group, cute.make_layout(1))
    last = w.arrive(splits, rows, sLast, thread % WARPGROUP == 0, lambda: w.meet(group))
    if last:
        _read_all(w, splits.parts, first, count, threads, acc_o, row_ref, row_sum)
    return last


def _write(first: cute.Pointer, threads: int, acc_o, row_ref, row_sum) -> None:
    """The sums of a thread, `threads` elements apart."""
    rows, size = cute.size(row_sum), cute.size(acc_o)
    to = cute.make_tensor(first, cute.make_layout(size + 2 * rows, stride=threads))
    for i in range(rows):
        to[i], to[rows + i] = row_ref[i], row_sum[i]
    for i in range(size):
        to[2 * rows + i] = acc_o[i]


@cute.jit
def _read_all(w, parts: Int32, first: cute.Pointer, count: Int32, threads: cutlass.Constexpr, acc_o, row_ref, row_sum):
    """The sums of all parts, in their order, relative to the largest reference."""
    rows, factor_of, finite_of = cute.size(row_sum), w.correction, w.finite
    row_ref.fill(-Float32.inf)
    for part in cutlass.range(parts, unroll=1):
        for i in cutlass.range_constexpr(rows):
            row_ref[i] = cutlass.max(row_ref[i], read(first, Int64(part) * count + i * threads))
    row_sum.fill(0.0)
    acc_o.fill(0.0)
    values = cute.make_rmem_tensor_like(acc_o)
    acc_o_mn, values_mn = layouts.rows_columns(acc_o), layouts.rows_columns(values)
    for part in cutlass.range(parts, unroll=1):
        at = first + Int64(part) * count
        for i in cutlass.range_constexpr(cute.size(acc_o)):
            values[i] = read(at, (2 * rows + i) * threads)
        for i in cutlass.range_constexpr(rows):
            factor = factor_of(read(at, i * threads), finite_of(row_ref[i]), w.to_log2)
            row_sum[i] = row_sum[i] + read(at, (rows + i) * threads) * factor
            acc_o_mn[i, None] = acc_o_mn[i, None].load() + values_mn[i, None].load() * factor
