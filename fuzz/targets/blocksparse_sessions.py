"""Which kernels a session of `blocksparse` draws: tens for a thousand cases, though thousands could be compiled.

A compile costs seconds, so dtype, head dim and softcap each bring one or two choices of tiles, mask and determinism
with them, laid out so that every pair of choices occurs. What costs no compile (layout of the lists, schedule; on the
emulator the number of resident CTAs and the order of warps) varies freely.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from fuzz.targets.blocksparse_blocks import LISTS, SCHEDULES, expressible
from kernels.blocksparse.variant import PADDED_DIMS, padded_dim
from oracles.problem import Problem

_TILES = ((128, 128), (64, 64), (64, 128), (128, 64))


def kernels_for(problem: Problem) -> list[dict[str, Any]]:
    """The choices of tiles, mask and determinism for a problem: each is one forward and one backward kernel."""
    at = PADDED_DIMS.index(padded_dim(problem.dim))
    half = problem.dtype == "float16"
    if problem.softcap:
        return [_kernel(at + 2 * half + 1, "bits", not half)]
    first = [_kernel(at + half, "bits", half), _kernel(at + half + 2, "bits", not half)]
    special = "band" if half else "intervals"
    if expressible(problem, special):
        first[1] = _kernel(at + half + 2, special, not half)
    return first[: 1 if half and first[1]["mask"] == "bits" else 2]


def variants_for(problem: Problem, *, emulated: bool) -> tuple[dict[str, Any], ...]:
    """Everything that a session draws a case's variant from."""
    free: list[dict[str, Any]] = [
        {"lists": lists, "schedule": schedule} for lists, schedule in product(LISTS, SCHEDULES)
    ]
    if emulated:
        orders = ("in_order", "random", "starve_oldest", "one_first")
        free = [
            choice | {"slots": slots, "warps": warps, "seed": 7 * i + slots}
            for i, choice in enumerate(free)
            for slots, warps in zip((1, 2, 3, 8), orders[i % 4 :] + orders[: i % 4], strict=True)
        ]
    return tuple(kernel | choice for kernel, choice in product(kernels_for(problem), free))


def _kernel(tiles: int, mask: str, deterministic: bool) -> dict[str, Any]:
    tile_m, tile_n = _TILES[tiles % len(_TILES)]
    return {"tile_m": tile_m, "tile_n": tile_n, "mask": mask, "deterministic": deterministic}
