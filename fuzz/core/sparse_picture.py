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
    if not 0 < length <= MOST_TOKENS:
        return [f"(not drawn: {length} tokens)"]
    blocks, groups = chosen_of(p, choices, batch)
    size, count = p.compress_block_size, p.blocks(length)
    window = sees_window(p, length, blocks.device)[0]
    pooled = sees_compressed(p, length, groups, blocks.device)[head if groups is not None else 0]
    lines = [
        f"rows: {p.tiles(length)} tiles of {p.q_tile} queries, columns: {count} blocks of {size} tokens; "
        f"{SELECTED} selected, {WINDOW} in the window, {POOLED} as a mean only"
    ]
    for tile in range(p.tiles(length)):
        rows = slice(tile * p.q_tile, min((tile + 1) * p.q_tile, length))
        row = ""
        for block in range(min(count, width)):
            keys = slice(block * size, min((block + 1) * size, length))
            if bool(blocks[head, tile, block]):
                row += SELECTED
            elif bool(window[rows, keys].any()):
                row += WINDOW
            else:
                row += POOLED if bool(pooled[rows, block].any()) else NOTHING
        marked = bad_rows is not None and rows.start < bad_rows[1] and bad_rows[0] < rows.stop
        lines.append(f"{rows.start:>6} {row}{'…' * (count > width)}{' ◀ wrong' if marked else ''}")
    return lines
