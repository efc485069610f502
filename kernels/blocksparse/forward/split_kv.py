# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The last tiles of a launch, whose keys several CTAs share.

NOTE [split tiles] A launch of equally long tiles ends with a wave that has a tile for some CTAs and none for others. So
the tiles of that wave are split into `parts`: a CTA takes a part of a tile's listed blocks as it would take a tile, and
leaves its sums in memory: the row's reference and sum, and O before it is divided. The warpgroup that arrives last of
those that have the same rows reads the sums of all parts, in their order, and finishes these rows. Nobody waits, and
which one is last changes no bit. How many tiles are split, and into how many parts, is the launcher's choice
(launch/split_kv.py): it depends on how many CTAs the GPU runs at once, and with it the last bits of these tiles.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute

from kernels.blocksparse.common import layouts
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.forward.hopper.tuning import WARPGROUP


class SplitTiles(NamedTuple):
    """The tiles that are split.

    first     number of the first one in the launch order; all later ones are split too
    parts     of each tile, at least 1
    sums      float32 (tiles, parts, sums of a thread, multiplying threads)
    arrivals  int32 (tiles, multiplying warpgroups), 0 before the launch: parts whose sums are there
    """

    first: Int32
    parts: Int32
    sums: cute.Pointer
    arrivals: cute.Pointer


@cute.jit
def numbers_of(tiles: Int32, splits: SplitTiles | None) -> Int32:
    """Numbers that CTAs take, of so many tiles: one for each whole tile, and then one for each part."""
    numbers = tiles
    if cutlass.const_expr(splits is not None):
        numbers = splits.first + (tiles - splits.first) * splits.parts
    return numbers


@cute.jit
def tile_of(number: Int32, splits: SplitTiles | None) -> tuple[Int32, Int32]:
    """(the tile of a number, the part's number among all parts; -1 for a whole tile)."""
    tile, split = number, Int32(-1)
    if cutlass.const_expr(splits is not None):  # noqa: SIM102  (decided when the kernel is built)
        if number >= splits.first:
            split = number - splits.first
            tile = splits.first + split // splits.parts
    return tile, split


@cute.jit
def entries_of(split: Int32, entries: Int32, splits: SplitTiles) -> tuple[Int32, Int32]:
    """(first, end) of a part among a tile's entries; all of them for a whole tile."""
    first, end = Int32(0), entries
    if split >= 0:
        part = split % splits.parts
        first, end = entries * part // splits.parts, entries * (part + 1) // splits.parts
    return first, end


class Part(NamedTuple):
    """A warpgroup's share of a part: its number among all parts, the warpgroup, the thread among all that multiply, and
    how many there are."""

    split: Int32
    group: Int32
    thread: Int32
    threads: int


@cute.jit
def combine(w, tiles: SplitTiles, part: Part, acc_o, row_ref, row_sum) -> Boolean:
    """Leaves the sums of a part. Returns True for the last one of a tile to do so, whose acc_o, row_ref and row_sum are
    then those of all parts. w: `meet`, by which the warpgroup's threads wait for each other, `sLast` (warpgroups,), and
    `correction`, `finite` and `to_log2` as of the main loop."""
    count, tile = _count(acc_o, row_sum) * part.threads, part.split // tiles.parts
    first = tiles.sums + (Int64(tile * tiles.parts) * count + part.thread)
    _write(first + Int64(part.split % tiles.parts) * count, part.threads, acc_o, row_ref, row_sum)
    sLast, arrival = w.sLast, tiles.arrivals + (tile * (part.threads // WARPGROUP) + part.group)
    w.meet(part.group)
    if part.thread % WARPGROUP == 0:
        sLast[part.group] = Int32(cute.arch.atomic_add(arrival, Int32(1), sem="acq_rel", scope="gpu"))
    w.meet(part.group)
    last = cute.arch.make_warp_uniform(sLast[part.group]) == tiles.parts - 1
    if last:
        _read_all(w, tiles.parts, first, count, part.threads, acc_o, row_ref, row_sum)
    return last


def _count(acc_o, row_sum) -> int:
    return cute.size(acc_o) + 2 * cute.size(row_sum)


def _write(first: cute.Pointer, threads: int, acc_o, row_ref, row_sum) -> None:
    """The sums of a thread, `threads` elements apart."""
    rows, to = cute.size(row_sum), cute.make_tensor(first, cute.make_layout(_count(acc_o, row_sum), stride=threads))
    for i in range(rows):
        to[i], to[rows + i] = row_ref[i], row_sum[i]
    for i in range(cute.size(acc_o)):
        to[2 * rows + i] = acc_o[i]


@cute.jit
def _read_all(w, parts: Int32, first: cute.Pointer, count: Int32, threads: cutlass.Constexpr, acc_o, row_ref, row_sum):
    """The sums of all parts, in their order, relative to the largest reference."""
    rows, factor_of, finite_of = cute.size(row_sum), w.correction, w.finite
    row_ref.fill(-Float32.inf)
    for part in cutlass.range(parts, unroll=1):
        for i in cutlass.range_constexpr(rows):
            reference = read(first, Int64(part) * count + i * threads)
            row_ref[i] = cutlass.max(row_ref[i], reference)
    row_sum.fill(0.0)
    acc_o.fill(0.0)
    acc_o_mn = layouts.rows_columns(acc_o)
    values = cute.make_rmem_tensor_like(acc_o)
    values_mn = layouts.rows_columns(values)
    for part in cutlass.range(parts, unroll=1):
        at = first + Int64(part) * count
        for i in cutlass.range_constexpr(cute.size(acc_o)):
            values[i] = read(at, (2 * rows + i) * threads)
        for i in cutlass.range_constexpr(rows):
            factor = factor_of(read(at, i * threads), finite_of(row_ref[i]), w.to_log2)
            row_sum[i] = row_sum[i] + read(at, (rows + i) * threads) * factor
            acc_o_mn[i, None] = acc_o_mn[i, None].load() + values_mn[i, None].load() * factor
