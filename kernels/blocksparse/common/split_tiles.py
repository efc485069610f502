# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The last tiles of a launch, each of which several CTAs share.

NOTE [split tiles] A launch of equally long tiles ends with a wave that has a tile for some CTAs and none for others. So
the tiles of that wave are split into `parts`: a CTA takes a part of a tile's listed blocks as it would take a tile, and
leaves its sums in memory. The last one to arrive reads the sums of all parts, in their order, and finishes the tile.
Nobody waits, and which one is last changes no bit. The launcher chooses how many tiles are split, and into how many
parts (launch/split_tiles.py), by the number of CTAs that the GPU runs at once: so the last bits of these tiles depend
on that. In clusters of CTAs numbers are of the tiles of a cluster together, which are split alike; each of them has
sums and arrivals of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, cute


class SplitTiles(NamedTuple):
    """The tiles that are split.

    first     number of the first one in the launch order; all later ones are split too
    parts     of each tile, at least 1
    sums      float32, of each part as its kernel leaves them
    arrivals  int32, 0 before the launch: of each tile, or of a warpgroup's rows of it, the parts whose sums are there
    """

    first: Int32
    parts: Int32
    sums: cute.Pointer
    arrivals: cute.Pointer


def split_tiles_of(arguments) -> SplitTiles:
    """Those among the arguments of a kernel."""
    a = arguments
    return SplitTiles(a.first_split, a.split_parts, a.split_sums.align(16), a.split_arrivals)


@cute.jit
def numbers_of(tiles: Int32, splits: SplitTiles | None) -> Int32:
    """Numbers that CTAs take, of so many tiles: one for each whole tile, and then one for each part. splits: None where
    no tile is split, here and below."""
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


@cute.jit
def arrive(splits: SplitTiles, of_rows: Int32, sLast: cute.Tensor, leads: Boolean, meet: Callable[[], None]) -> Boolean:
    """Threads that have left the sums of their rows of a part: True for those of the last part. of_rows: which of
    `arrivals` counts these rows; sLast (1,) in shared memory; leads: one of the threads; meet: by which they wait for
    each other."""
    meet()
    if leads:
        sLast[0] = Int32(cute.arch.atomic_add(splits.arrivals + of_rows, Int32(1), sem="acq_rel", scope="gpu"))
    meet()
    return cute.arch.make_warp_uniform(sLast[0]) == splits.parts - 1
