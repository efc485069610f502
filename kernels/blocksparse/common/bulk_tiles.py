# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Tiles between global and shared memory by TMA: one thread of a warp issues the copy of a tile, which takes no
registers.

NOTE [whole tiles] TMA copies tiles whose rows all belong to the sequence. After the last row of a sequence come those
of the next one, or rows that nobody has written; a NaN in such a row of V would stay one, as 0 times NaN is. So the 32
lanes of the warp load a tile with fewer rows with cp.async, which makes zeros of the others, and store its rows alone.
A tensor map then needs no number of rows: it has ROWS, more than any tensor. Columns past the head dim are past the
map's end, where TMA reads zeros and writes nothing. Either way `full` gets one arrival. That of a thread which says how
many bytes will come completes its phase once they have come; cp.async is waited for and fenced for the products before
the arrival.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.common.list_reader import Operand
from kernels.blocksparse.common.tile_loads import TileCopy

ROWS = 2**31 - 1


class BulkOperand(NamedTuple):
    """A tensor and what copies its tiles by TMA: a copy atom with the tensor map, and the map's coordinates (rows, dim,
    heads, batch)."""

    rows: Operand
    atom: Any
    coordinates: Any


def bulk_operand(
    x: Operand, tile: tuple[int, int], heads: Int32, batch: Int32, dim: Int32, *, stored: bool = False
) -> BulkOperand:
    """Host code: the tensor map of x for tiles (rows, dim_padded), which are loaded, or stored. Strides that are 0 have
    the same rows for all."""
    strides = [cute.assume(stride, divby=8) for stride in (x.stride_row, x.stride_head, x.stride_batch)]
    layout = cute.make_layout((ROWS, dim, heads, batch), stride=(strides[0], 1, strides[1], strides[2]))
    operation = cpasync.CopyBulkTensorTileS2GOp() if stored else cpasync.CopyBulkTensorTileG2SOp()
    shared = tcgen05.tile_layout(x.pointer.dtype, *tile, 1)
    atom, coordinates = cpasync.make_tiled_tma_atom(operation, cute.make_tensor(x.pointer, layout), shared, tile)
    return BulkOperand(x, atom, coordinates)


class BulkTiles:
    """One sequence's tiles of an operand, or one tile; trace time only.

    place        (batch, head, first row of the sequence in its batch, or of the tile)
    sX           (rows, dim_padded, stages)
    """

    def __init__(self, operand: BulkOperand, place, sX: cute.Tensor) -> None:
        batch, head, row = place
        self.atom, self.sX, self.operand, self.place = operand.atom, sX, operand.rows, place
        self.rows, self.dim_padded = cute.size(sX, mode=[0]), cute.size(sX, mode=[1])
        self.bytes = self.rows * self.dim_padded * (sX.element_type.width // 8)
        self.first, self.coordinates = row, operand.coordinates[None, None, head, batch]

    def first_row(self):
        """(address, stride of rows) of the row at `place`."""
        batch, head, row = self.place
        return self.operand.at(batch, Int64(row), head), self.operand.stride_row

    def part(self, row: Int32, stage: Int32):
        """(coordinates, shared memory) of the tile that begins `row` rows after the first one."""
        gX = cute.local_tile(
            cute.domain_offset((self.first + row, 0), self.coordinates), (self.rows, self.dim_padded), (0, 0)
        )
        tXsX, tXgX = cpasync.tma_partition(
            self.atom, 0, cute.make_layout(1), cute.group_modes(self.sX, 0, 2), cute.group_modes(gX, 0, 2)
        )
        return tXgX, tXsX[None, stage]


class TileLoads(BulkTiles):
    """Loads of tiles by one warp; trace time only.

    copy         of the warp's lanes, for tiles with fewer rows
    functions    whole, expected_bytes, fence_shared: the functions below and tcgen05's, or a mutant's
    """

    def __init__(self, operand: BulkOperand, place, sX: cute.Tensor, copy: TileCopy, functions: dict) -> None:
        super().__init__(operand, place, sX)
        self.copy, self.functions = copy, functions


@cute.jit
def load(tiles: TileLoads, row: Int32, rows, stage: Int32, full: cute.Pointer) -> None:
    """A whole warp: the tile that begins `row` rows after the first one, into this stage, then an arrival at `full`.
    rows: (address of the first, stride, how many there are)."""
    is_whole = tiles.functions["whole"]
    if is_whole(rows[2], tiles.rows):
        load_whole(tiles, row, stage, full)
    else:
        load_rows(tiles, rows, stage, full)


@cute.jit
def load_whole(tiles: TileLoads, row: Int32, stage: Int32, full: cute.Pointer) -> None:
    """By TMA, one thread of the warp."""
    bytes_of = tiles.functions["expected_bytes"]
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_of(tiles.bytes))
    gX, sX = tiles.part(row, stage)
    cute.copy(tiles.atom, gX, sX, tma_bar_ptr=full)  # elects a thread itself


@cute.jit
def load_rows(tiles: TileLoads, rows, stage: Int32, full: cute.Pointer) -> None:
    """By cp.async, all lanes of the warp."""
    copy, fence_shared = tiles.copy, tiles.functions["fence_shared"]
    copy.load(rows[0], rows[1], rows[2], tiles.sX[None, None, stage])
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    fence_shared()
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(full)


@cute.jit
def store(tiles: BulkTiles, copy: TileCopy, rows_left: Int32, functions: dict) -> None:
    """A whole warp: the tile at `place`, from shared memory. The threads that wrote it have fenced it for TMA
    (`tcgen05.fence_shared`), and this warp has synchronised with them since. Returns once shared memory has been read,
    before which a CTA must not exit.

    copy        of the warp's lanes
    functions   whole, wait_read: the functions below, or a mutant's
    """
    is_whole = functions["whole"]
    if is_whole(rows_left, tiles.rows):
        store_whole(tiles, functions["wait_read"])
    else:
        store_rows(tiles, copy, rows_left)


@cute.jit
def store_whole(tiles: BulkTiles, wait_read) -> None:
    """By TMA, one thread of the warp: a store elects none itself, unlike a load."""
    gX, sX = tiles.part(Int32(0), Int32(0))
    if cute.arch.lane_idx() == 0:
        cute.copy(tiles.atom, sX, gX)
        cute.arch.cp_async_bulk_commit_group()
        wait_read()


@cute.jit
def store_rows(tiles: BulkTiles, copy: TileCopy, rows_left: Int32) -> None:
    """The first rows, by all lanes of the warp, a few rows at a time: they take few registers."""
    few = copy.rows_per_pass
    for i in cutlass.range((rows_left + few - 1) // few, unroll=1):
        store_few(tiles, copy, i, rows_left - i * few)


@cute.jit
def store_few(tiles: BulkTiles, copy: TileCopy, i: Int32, rows_left: Int32) -> None:
    """Those rows that the lanes copy with one instruction each, or rows_left if that is less."""
    (pointer, stride), few = tiles.first_row(), copy.rows_per_pass
    sX = cute.local_tile(tiles.sX[None, None, 0], (few, tiles.dim_padded), (i, 0))
    copy.store(sX, pointer + cute.assume(i * few * stride, divby=8), stride, rows_left)


@cute.jit
def wait_read() -> None:
    """Waits until this thread's bulk stores have read shared memory."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def whole(left: Int32, rows: cutlass.Constexpr) -> Boolean:
    """True where all rows of a tile belong to the sequence, which has `left` from its first one on."""
    return left >= rows


def expected_bytes(count: int) -> int:
    """Bytes that `full` waits for: a tile, also where it has columns past the head dim."""
    return count
