"""Long block lists: rows and columns of 32, 64, 128 and more blocks, of few tokens each on the other side.

Lists are made by sorts, prefix sums and loops over words of 32, and go wrong at just such counts. To check the lists is
cheap, to run a kernel on them is not where there is no GPU: there a case has `variant={"run": False}`, and its block
lists and the order of its semaphores are all that is judged.
"""

from __future__ import annotations

import random
from typing import Any

from fuzz.core.case import Case, Inputs
from fuzz.targets.blocksparse.block_lists import LISTS, SCHEDULES, options_of
from fuzz.targets.blocksparse.variants import kernels_for
from oracles.masks import Blocks, Full, Mask
from oracles.problem import Dtype, Problem

COUNTS = (32, 64, 96, 128)  # entries of the longest list
NEAR = (0, 0, 0, 0, -1, 1)
HOLES = (0, 0, 1, 5)  # blocks beside them that are not listed
DIMS = (8, 32, 64)
MOST_PAIRS = 1 << 17


def runs(case: Case) -> bool:
    """False where the case's metadata alone is judged."""
    return bool(options_of(case).get("run", True))


def seed_cases(target: str) -> tuple[Case, ...]:
    """A column of 64 full and 128 masked blocks, a row of 128 full and 96 masked ones: what every session without a GPU
    begins with. Full and masked blocks have lists of their own."""
    variant = {"tile_m": 64, "tile_n": 64, "run": False}
    kinds = ((True, 64 * ["M", "F", "M"]), (False, 32 * ["F", "M", "F", "M", "F", "M", "F"]))
    return tuple(_case(target, "bfloat16", 32, 1, columns, cells, variant, 1) for columns, cells in kinds)


def draw_case(draw: random.Random, target: str, repeats: int, *, run: bool) -> Case:
    """A case whose longest row or column has a number of blocks of COUNTS, or one more or less."""
    dtypes: tuple[Dtype, ...] = ("bfloat16", "float16")
    dtype, dim, heads = draw.choice(dtypes), draw.choice(DIMS), draw.choice((1, 1, 1, 2))
    kernel = draw.choice(kernels_for(Problem((1,), (1,), 1, 1, dim, dim, dtype)))
    count = draw.choice(COUNTS) + draw.choice(NEAR)
    cells = [draw.choice("FFM")] * count if draw.choice((True, False)) else [draw.choice("FM") for _ in range(count)]
    if kernel["mask"] != "bits":
        cells = ["F"] * count
    for _ in range(draw.choice(HOLES) if kernel["mask"] == "bits" else 0):
        cells.insert(draw.randint(0, len(cells)), ".")
    variant: dict[str, Any] = kernel | {"lists": draw.choice(LISTS), "schedule": draw.choice(SCHEDULES)}
    if not run:
        variant["run"], repeats = False, 1
    return _case(target, dtype, dim, heads, draw.choice((True, True, False)), cells, variant, repeats)


def _case(
    target: str,
    dtype: Dtype,
    dim: int,
    heads: int,
    columns: bool,
    cells: list[str],
    variant: dict[str, Any],
    repeats: int,
) -> Case:
    """A case with this column (or row) of blocks. Letters are those of the mask Blocks."""
    tile_m, tile_n = int(variant["tile_m"]), int(variant["tile_n"])
    along, across = (tile_m, tile_n) if columns else (tile_n, tile_m)
    length = len(cells) * along
    width = min(across // 4, MOST_PAIRS // (length * heads))
    mask: Mask = Full()
    if set(cells) != {"F"}:
        mask = Blocks(tile_m, tile_n, tuple(cells) if columns else ("".join(cells),), 1)
    len_q, len_k = (length, width) if columns else (width, length)
    problem = Problem((len_q,), (len_k,), heads, 1, dim, dim, dtype, mask=mask)
    return Case(target, problem, Inputs(), variant, repeats=repeats)
