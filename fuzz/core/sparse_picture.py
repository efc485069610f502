"""The blocks that each tile of queries sees, in native sparse attention, as lines of characters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.rules import sees_compressed, sees_window
from oracles.native_sparse.selection import chosen_of

SELECTED, WINDOW, POOLED, NOTHING = "█", "▒", "+", "·"
MOST_TOKENS = 1 << 12  # of a sequence that is drawn


def sparse_picture(
    p: NativeSparse,
    choices: Mapping[str, Tensor],
    batch: int,
    head: int,
    bad_rows: tuple[int, int] | None = None,
    width: int = 64,
) -> list[str]:
    """One line for each tile of queries, one character for each block: selected, else in the window, else seen as a
    mean only, or not at all. Longer lines are cut.

    choices   lists of blocks and groups, of `p.shapes()`
    bad_rows  query rows to mark
    """
    length = p.lengths[batch]
    rows = sparse_rows(p, choices, batch, head)
    if rows is None:
        return [f"(not drawn: {length} tokens)"]
    lines = [
        f"rows: {p.tiles(length)} tiles of {p.q_tile} queries, columns: {p.blocks(length)} blocks of "
        f"{p.compress_block_size} tokens; {SELECTED} selected, {WINDOW} in the window, {POOLED} as a mean only"
    ]
    for tile, row in enumerate(rows):
        start, stop = tile * p.q_tile, min((tile + 1) * p.q_tile, length)
        marked = bad_rows is not None and start < bad_rows[1] and bad_rows[0] < stop
        lines.append(f"{start:>6} {row[:width]}{'…' * (len(row) > width)}{' ◀ wrong' if marked else ''}")
    return lines


def sparse_rows(p: NativeSparse, choices: Mapping[str, Tensor], batch: int, head: int) -> list[str] | None:
    """A string for each tile of queries, of one character for each block; None: no tokens, or too many to draw."""
    length = p.lengths[batch]
    if not 0 < length <= MOST_TOKENS:
        return None
    blocks, groups = chosen_of(p, choices, batch)
    size = p.compress_block_size
    window = sees_window(p, length, blocks.device)[0]
    pooled = sees_compressed(p, length, groups, blocks.device)[head if groups is not None else 0]
    found = []
    for tile in range(p.tiles(length)):
        rows, row = slice(tile * p.q_tile, min((tile + 1) * p.q_tile, length)), ""
        for block in range(p.blocks(length)):
            keys = slice(block * size, min((block + 1) * size, length))
            if bool(blocks[head, tile, block]):
                row += SELECTED
            elif bool(window[rows, keys].any()):
                row += WINDOW
            else:
                row += POOLED if bool(pooled[rows, block].any()) else NOTHING
        found.append(row)
    return found
