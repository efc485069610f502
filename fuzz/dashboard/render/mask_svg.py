"""A mask as a small SVG picture: rows are queries, columns keys; kept tokens are filled."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from fuzz.core.mask_tiles import MaskTiles, mask_tiles
from oracles.masks import tag
from oracles.problem import AnyProblem

MOST = 64  # tiles along a side
LEAST, LETTERS = 16, 3000  # tiles along a side, where paths have more letters
SIDE = 96  # pixels of the longer side


def mask_svg(problem: AnyProblem, batch: int = 0, head: int = 0) -> Markup:
    """The mask of one sequence and head. Tiles that are kept in part are paler."""
    tiles, paths = _drawn(problem, batch, head)
    name = f"mask {tag(problem.mask)}, {problem.lengths_q[batch]} queries by {problem.lengths_k[batch]} keys"
    if tiles is None:
        return Markup('<span class="quiet">{}: no pairs</span>').format(name)
    kept = sum(map(sum, tiles.shares)) / sum(map(len, tiles.shares))
    high, wide = len(tiles.shares), len(tiles.shares[0])
    scale = SIDE / max(high, wide)
    return Markup(
        '<svg class="mask" role="img" width="{:.0f}" height="{:.0f}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<title>{}; {:.0%} kept</title><rect class="none" width="{}" height="{}"/>'
        '<path class="few" d="{}"/><path class="most" d="{}"/><path class="full" d="{}"/></svg>'
    ).format(max(wide * scale, 6), max(high * scale, 6), wide, high, escape(name), kept, wide, high, *paths)


def _drawn(problem: AnyProblem, batch: int, head: int) -> tuple[MaskTiles | None, list[str]]:
    """Tiles and their three paths, in fewer tiles where a mask at random would make them long."""
    most = MOST
    while True:
        tiles = mask_tiles(problem, batch, head, most, most)
        if tiles is None:
            return None, []
        paths = [_path(tiles, *bounds) for bounds in ((0, 0.5), (0.5, 1), (1, 2))]
        if sum(map(len, paths)) <= LETTERS or most <= LEAST:
            return tiles, paths
        most //= 2


def _path(tiles: MaskTiles, above: float, to: float) -> str:
    """Runs of tiles in a row as rectangles: those of which a share in (0, 0.5), [0.5, 1) or [1, 2) is kept."""
    found = []
    for y, row in enumerate(tiles.shares):
        wanted = [share > 0 and above <= share < to for share in row]
        found += [f"M{a} {y}h{b - a}v1h-{b - a}z" for a, b in runs(wanted)]
    return "".join(found)


def runs(wanted: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, one past the last) of each run of True."""
    found, start = [], -1
    for x, one in enumerate([*wanted, False]):
        if one and start < 0:
            start = x
        elif not one and start >= 0:
            found.append((start, x))
            start = -1
    return found
