# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Stores of a tile by TMA, as tma_loads.py loads them: tiles whose rows all belong to the sequence. TMA would write the
rows after a sequence's last one too, which are the next sequence's; so the lanes of the warp store a tile with fewer
rows. Columns past the head dim are past the map's end, where TMA writes nothing."""

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.common.tma_loads import BulkOperand, TileLoads


class TileStore(TileLoads):
    """The store of one tile by one warp; trace time only.

    operand, place, sX, dim   as those of TileLoads; the tensor map is one for stores
    functions                 whole of tma_loads.py and wait_read below, or a mutant's
    stage                     of sX
    """

    def __init__(self, operand: BulkOperand, place, sX: cute.Tensor, dim: Int32, functions: dict, stage: int = 0):
        super().__init__(operand, place, sX, dim, functions)
        self.stage = stage

    def first_row(self):
        """(address, stride of rows) of the tile."""
        (batch, head, row), rows = self.place, self.operand.rows
        return rows.at(batch, Int64(row), head), rows.stride_row


@cute.jit
def store(tile: TileStore, left: Int32) -> None:
    """A whole warp: the tile, from shared memory. The threads that wrote it there have fenced it for TMA, and this warp
    has synchronised with them since. Returns once shared memory has been read, before which a CTA must not exit.
    left: rows of the sequence from the tile's first one on."""
    is_whole = tile.functions["whole"]
    if is_whole(left, tile.rows):
        store_whole(tile)
    else:
        store_rows(tile, left)


@cute.jit
def store_whole(tile: TileStore) -> None:
    """By TMA, one thread of the warp: a store elects none itself, unlike a load."""
    gX, sX = tile.part(Int32(0), Int32(tile.stage))
    wait = tile.functions["wait_read"]
    if cute.arch.lane_idx() == 0:
        cute.copy(tile.operand.atom, sX, gX)
        cute.arch.cp_async_bulk_commit_group()
        wait()


@cute.jit
def store_rows(tile: TileStore, left: Int32) -> None:
    """The first rows, by all lanes, a few at a time: they take few registers."""
    copy = TileCopy(tile.sX.element_type, 32, tile.dim_padded, cute.arch.lane_idx(), tile.dim)
    few = copy.rows_per_pass
    for i in cutlass.range((left + few - 1) // few, unroll=1):
        store_few(tile, copy, i, left - i * few)


@cute.jit
def store_few(tile: TileStore, copy: TileCopy, i: Int32, left: Int32) -> None:
    """Those rows that the lanes copy with one instruction each, or `left` if that is less."""
    (pointer, stride), few = tile.first_row(), copy.rows_per_pass
    sX = cute.local_tile(tile.sX[None, None, tile.stage], (few, tile.dim_padded), (i, 0))
    copy.store(sX, pointer + cute.assume(i * few * stride, divby=8), stride, left)


@cute.jit
def wait_read() -> None:
    """Waits until this thread's bulk stores have read shared memory."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)
