"""The check of nested rows: that forward lists keep the promise of `BlockLists.nested`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.blocksparse.lists.types import Band, BlockList, BlockSparse, entries


def check_nested(blocks: BlockSparse, rows: Tensor) -> None:
    """Refuses forward lists that promise nested rows and have an odd row that lacks a block of the row before, that
    begins with other full blocks than it, or that has a further block which the band does not hide from it. Raises
    ValueError.

    blocks  lists whose entries are in range
    rows    tiles of queries of each sequence, int64 (batch,)
    """
    lists, band = blocks.forward, blocks.mask
    if not isinstance(band, Band):
        raise ValueError(f"blocks.forward.nested: needs a mask that is a band, got {type(band).__name__}")
    of_list = rows.min().view(1) if lists.partial.batch == 1 else rows
    number = torch.arange(lists.rows, device=of_list.device)
    odd = ((number % 2 == 1) & (number < of_list.view(-1, 1, 1))).expand(lists.full.count.shape)
    differs = begins_otherwise(lists.full, odd)
    _refuse(differs, "blocks.forward.full: needs the full blocks of the row before as the first ones of row")

    every = [_listed(one) for one in (lists.partial, lists.full)]
    row, column = (torch.cat(parts) for parts in zip(*every, strict=True))
    width = int(column.max()) + 1 if column.numel() else 1
    place = row * width + column
    at, upper = odd.flatten()[row], torch.roll(odd.flatten(), -1)[row]  # entries of odd rows, and of the rows before
    missing = torch.zeros_like(odd).flatten()
    missing[row[upper & ~torch.isin(place + width, place[at])] + 1] = True
    _refuse(missing.view_as(odd), "blocks.forward: needs all blocks of the row before in row")

    beside = at & ~torch.isin(place, place[upper] + width)
    seen = torch.zeros_like(missing)
    seen[row[beside & ~_hidden(blocks, band, row, column)]] = True
    _refuse(seen.view_as(odd), "blocks.forward: needs a band that hides from the row before what it lacks of row")


def _listed(one: BlockList) -> tuple[Tensor, Tensor]:
    """Number of the row among all rows, and block, of every entry: int64."""
    e = entries(one)
    return e.row[e.valid], one.index[e.place[e.valid]].long()


def begins_otherwise(full: BlockList, odd: Tensor) -> Tensor:
    """True for odd rows that do not begin with the blocks of the row before in a list, in that order."""
    before = full.count.roll(1, -1)
    differs = odd & (full.count < before)
    e = entries(full)
    row, place = e.row[e.valid], e.place[e.valid]
    begin = full.begin.flatten()
    number = place - begin[row]
    compared = odd.flatten()[row] & (number < before.flatten()[row])
    row, place, number = row[compared], place[compared], number[compared]
    other = full.index[place] != full.index[begin[row - 1] + number]
    differs = differs.flatten()
    differs[row[other]] = True
    return differs.view_as(odd)


def _hidden(blocks: BlockSparse, band: Band, row: Tensor, column: Tensor) -> Tensor:
    """True for blocks of these rows in which no query of the row before sees a key, whatever the sequence."""
    heads, rows = blocks.forward.full.count.shape[1:]
    least, most = band.offset.min(), band.offset.max()
    if blocks.forward.full.batch > 1 and len(band.offset) > 1:
        least = most = band.offset[row // (heads * rows)]
    last = row % rows * blocks.tile_m - 1
    first = last - blocks.tile_m + 1
    above = column * blocks.tile_n > last + most + band.right
    return above | ((column + 1) * blocks.tile_n - 1 < first + least - band.left)


def _refuse(wrong: Tensor, message: str) -> None:
    """wrong: bool (batch|1, heads|1, rows)."""
    if bool(wrong.any()):
        raise ValueError(f"{message} {int(wrong.nonzero()[0, -1])}, as blocks.forward.nested says")
