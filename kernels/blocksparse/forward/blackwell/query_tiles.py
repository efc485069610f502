# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""What each query tile of a CTA has of its own: rows, columns of tensor memory, barriers. NOTE [two query tiles] of
kernel.py."""

from cutlass import Int32, Int64, cute

from kernels.blocksparse.forward.blackwell.tuning import SOFTMAX_WARPS
from kernels.blocksparse.spec.sm100 import ROWS
from kernels.blocksparse.spec.variant import Variant

SOFTMAX_THREADS = 32 * SOFTMAX_WARPS  # of a query tile
MEETING = 1  # the named barrier of all softmax threads; those of each query tile have the ones that follow


def tiles_of(variant: Variant) -> int:
    """Query tiles of a CTA: NOTE [two query tiles]."""
    return variant.tile_m // ROWS


def rows_of_tile(rows_left: Int32, tile: Int32 | int) -> Int32:
    """Rows of the sequence from a query tile's first one on; none or fewer where it begins past the end."""
    return rows_left - tile * ROWS


def rows_before(tile: Int32, stride: Int64) -> Int64:
    """Elements from the CTA's first row to that of a query tile."""
    return cute.assume(tile * ROWS * stride, divby=8)


def first_column(variant: Variant, tuning, tile: Int32 | int, what: str) -> Int32 | int:
    """The column where a query tile's scores begin, or its O: scores of all tiles come first."""
    scores = tuning.buffers * tuning.step
    return tile * scores if what == "scores" else tiles_of(variant) * scores + tile * variant.dim_padded


def own_barrier(first: cute.Pointer, tile: Int32, count: int) -> cute.Pointer:
    """The barriers of a query tile, which has so many of those that begin at `first`."""
    return first + tile * count


def meet(number: Int32 | int, threads: int = SOFTMAX_THREADS) -> None:
    """Threads of a named barrier wait for each other."""
    cute.arch.barrier(barrier_id=number, number_of_threads=threads)


def meet_all(tile: Int32, tiles: int) -> None:
    """The softmax threads of all query tiles wait for each other: tensor memory is freed after that."""
    meet(MEETING, tiles * SOFTMAX_THREADS)


def next_due(tiles: int) -> int:
    """The named barrier at which the announcing warp waits for the one that loads K: NOTE [tiles] of
    tile_scheduler.py."""
    return MEETING + 1 + tiles


def takers(warps: int) -> int:
    """Warps that read an announced tile before the next one takes its place: all."""
    return warps
