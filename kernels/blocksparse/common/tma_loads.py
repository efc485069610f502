# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Loads of Q, K and V by TMA: one thread of a warp issues the copy of a tile, which takes no registers.

NOTE [whole tiles] TMA loads tiles whose rows all belong to the sequence. After the last row of a sequence come those of
the next one, or rows that nobody has written; a NaN in such a row of V would stay one, as 0 times NaN is. So the 32
lanes of the warp copy a tile with fewer rows with cp.async, which makes zeros of the others. A tensor map then needs no
number of rows: it has ROWS, more than any tensor. Columns past the head dim are past the map's end, where TMA writes
zeros. Either way `full` gets one arrival. That of a thread which says how many bytes will come completes its phase once
they have come; cp.async is waited for and fenced for the products before the arrival.

NOTE [multicast] CTAs of a cluster that need the same tiles load them for each other: each loads its share of a tile's
rows, which comes into the shared memory of all, at the same place, and counts at the `full` of all. So a stage is empty
when all CTAs have read it: each arrives at the `empty` of all, and all load the same tiles in the same order. A tile
with rows past the sequence's end is copied by each CTA for itself.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int16, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernels.blocksparse.common.clusters import ALONE, Cluster
from kernels.blocksparse.common.list_reader import Operand
from kernels.blocksparse.common.tile_loads import TileCopy

ROWS = 2**31 - 1


class BulkOperand(NamedTuple):
    """Q, K or V and what loads it by TMA: a copy atom with the tensor map, and the map's coordinates (rows, dim, heads,
    batch)."""

    rows: Operand
    atom: Any
    coordinates: Any


def bulk_operand(
    x: Operand,
    shared: cute.ComposedLayout,
    heads: Int32,
    batch: Int32,
    dim: Int32,
    *,
    stored: bool = False,
    ctas: int = 1,
) -> BulkOperand:
    """Host code: the tensor map of x for tiles that lie in shared memory as `shared` (rows, dim_padded, 1) does, and
    are loaded, or stored. Strides that are 0 have the same rows for all. ctas: of a cluster that load a tile for each
    other, NOTE [multicast]."""
    strides = [cute.assume(stride, divby=8) for stride in (x.stride_row, x.stride_head, x.stride_batch)]
    layout = cute.make_layout((ROWS, dim, heads, batch), stride=(strides[0], 1, strides[1], strides[2]))
    tile = tuple(cute.size(shared, mode=[i]) for i in range(2))
    loads = cpasync.CopyBulkTensorTileG2SOp() if ctas == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    operation = cpasync.CopyBulkTensorTileS2GOp() if stored else loads
    atom, coordinates = cpasync.make_tiled_tma_atom(
        operation, cute.make_tensor(x.pointer, layout), shared, tile, num_multicast=ctas
    )
    return BulkOperand(x, atom, coordinates)


class TileLoads:
    """Loads of one sequence's tiles by one warp; trace time only.

    operand      Q, K or V; place: (batch, head, first row of the sequence in its batch, or of the tile)
    sX           (rows, dim_padded, stages)
    dim          the true head dim
    cluster      CTAs that load tiles for each other, NOTE [multicast]
    functions    by name: whole and expected_bytes below, fence_shared, and offset(rows, stride) in elements; or a
                 mutant's
    """

    def __init__(
        self, operand: BulkOperand, place, sX: cute.Tensor, dim: Int32, functions: dict, cluster: Cluster = ALONE
    ) -> None:
        batch, head, row = place
        self.operand, self.place, self.sX, self.dim, self.functions = operand, place, sX, dim, functions
        self.cluster = cluster
        self.rows, self.dim_padded = cute.size(sX, mode=[0]), cute.size(sX, mode=[1])
        self.bytes = self.rows * self.dim_padded * (sX.element_type.width // 8)
        self.first, self.coordinates = row, operand.coordinates[None, None, head, batch]

    def start(self, row: Int32):
        """(address, stride of rows) of the tile that begins `row` rows after the first one."""
        (batch, head, first), rows, offset = self.place, self.operand.rows, self.functions["offset"]
        return rows.at(batch, Int64(first), head) + offset(row, cute.assume(rows.stride_row, divby=8)), rows.stride_row

    def part(self, row: Int32, stage: Int32):
        """(coordinates, shared memory) of the tile that begins `row` rows after the first one."""
        gX = cute.local_tile(
            cute.domain_offset((self.first + row, 0), self.coordinates), (self.rows, self.dim_padded), (0, 0)
        )
        tXsX, tXgX = cpasync.tma_partition(
            self.operand.atom,
            self.cluster.rank,
            cute.make_layout(self.cluster.ctas),
            cute.group_modes(self.sX, 0, 2),
            cute.group_modes(gX, 0, 2),
        )
        return tXgX, tXsX[None, stage]


@cute.jit
def load(tiles: TileLoads, row: Int32, left: Int32, stage: Int32, full: cute.Pointer, sPlace=None, place=()) -> None:
    """A whole warp: the tile that begins `row` rows after the first one, into this stage, then an arrival at `full`.
    left: rows of the sequence from there on; place: numbers that are in sPlace before the arrival."""
    is_whole = tiles.functions["whole"]
    if is_whole(left, tiles.rows):
        load_whole(tiles, row, stage, full, sPlace, place)
    else:
        load_rows(tiles, row, left, stage, full, sPlace, place)


@cute.jit
def load_whole(tiles: TileLoads, row: Int32, stage: Int32, full: cute.Pointer, sPlace, place) -> None:
    """By TMA, one thread of the warp."""
    bytes_of = tiles.functions["expected_bytes"]
    with cute.arch.elect_one():
        write_place(sPlace, place)
        cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_of(tiles.bytes))
    gX, sX = tiles.part(row, stage)
    # elects a thread itself
    if cutlass.const_expr(tiles.cluster.ctas == 1):
        cute.copy(tiles.operand.atom, gX, sX, tma_bar_ptr=full)
    else:
        everyone = Int16((1 << tiles.cluster.ctas) - 1)
        cute.copy(tiles.operand.atom, gX, sX, tma_bar_ptr=full, mcast_mask=everyone)


@cute.jit
def load_rows(tiles: TileLoads, row: Int32, left: Int32, stage: Int32, full: cute.Pointer, sPlace, place) -> None:
    """By cp.async, all lanes of the warp."""
    fence_shared, (pointer, stride) = tiles.functions["fence_shared"], tiles.start(row)
    copy = TileCopy(tiles.sX.element_type, 32, tiles.dim_padded, cute.arch.lane_idx(), tiles.dim)
    copy.load_rolled(pointer, stride, left, tiles.sX[None, None, stage])
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    fence_shared()
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        write_place(sPlace, place)
        cute.arch.mbarrier_arrive(full)


def write_place(sPlace, place) -> None:
    """One thread: numbers that come with a tile."""
    for i, number in enumerate(place if sPlace is not None else ()):
        sPlace[i] = number


@cute.jit
def whole(left: Int32, rows: cutlass.Constexpr) -> Boolean:
    """True where all rows of a tile belong to the sequence, which has `left` from its first one on."""
    return left >= rows


def expected_bytes(count: int) -> int:
    """Bytes that `full` waits for: a tile, also where it has columns past the head dim."""
    return count
