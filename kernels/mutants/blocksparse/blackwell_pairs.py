"""Mutants of the forward kernel with products by tcgen05 that has two query tiles in a CTA: what the tiles share, and
what each has of its own. They change nothing in a CTA of one query tile."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute

from kernels.blocksparse.forward.blackwell import query_tiles
from kernels.mutants.blocksparse.registration import register_mutant

register_mutant(
    "keys_released_by_first_tile",
    "tcgen05: a stage of K and V is released when the products of the first of two query tiles have read it.",
    "invented, after the stages of K and V that two query tiles share in FlashAttention-4",
    forward={"reads_last": lambda tile, tiles: tile == 0},
)


def _of_first_tile(first: cute.Pointer, tile: Int32, count: int) -> cute.Pointer:
    return first


register_mutant(
    "barriers_of_first_tile",
    "tcgen05: the softmax of both query tiles waits for the scores and for the products of the first one.",
    "invented, after the barriers of FlashAttention-4, two of each kind in one array",
    forward={"own_barrier": _of_first_tile},
)


def _one_output(variant: Any, tuning: Any, tile: Int32 | int, what: str) -> Int32 | int:
    """The columns of O are those of the first tile."""
    return query_tiles.first_column(variant, tuning, tile if what == "scores" else 0, what)


register_mutant(
    "output_of_both_tiles",
    "tcgen05: both query tiles add their products with V to the same columns of tensor memory.",
    "invented, after the offsets of scores and of O that such a kernel counts by hand",
    forward={"first_column": _one_output},
)

register_mutant(
    "rows_left_of_both_tiles",
    "tcgen05: the second query tile is taken to have as many rows of the sequence as both have.",
    "invented, after the bounds of a tile that is cut in two",
    forward={"rows_of_tile": lambda rows_left, tile: rows_left},
)


def _meet_own(tile: Int32, tiles: int) -> None:
    query_tiles.meet(query_tiles.MEETING + 1 + tile)


register_mutant(
    "columns_freed_by_first_tile",
    "tcgen05: tensor memory is given back when the first query tile is done, while the second one may use it.",
    "PTX ISA, tcgen05.dealloc; invented for two warpgroups",
    forward={"meet_all": _meet_own},
)
