"""The check of halves: that backward lists keep the promise of `BlockLists.halves`, and a schedule its own."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.validate.nested import begins_otherwise


def check_halves(blocks: BlockSparse, tiles: Tensor) -> None:
    """Refuses backward lists that promise halves and have an odd row with other blocks than the row before, and
    schedules that promise them and whose even positions do not name a half of each tile that is there. Raises
    ValueError.

    blocks  lists whose entries, and positions, are in range
    tiles   tiles of keys of each sequence, int64 (batch,)
    """
    lists, positions = blocks.backward, blocks.schedule.positions
    if lists is not None and lists.halves:
        of_list = tiles.min().view(1) if lists.partial.batch == 1 else tiles
        number = torch.arange(lists.rows, device=of_list.device)
        odd = ((number % 2 == 1) & (number < of_list.view(-1, 1, 1))).expand(lists.full.count.shape)
        for kind in ("partial", "full"):
            one = getattr(lists, kind)
            differs = begins_otherwise(one, odd) | (odd & (one.count != one.count.roll(1, -1)))
            if bool(differs.any()):
                row = int(differs.flatten().nonzero()[0]) % one.rows
                raise ValueError(
                    f"blocks.backward.{kind}: needs the same blocks in both halves of a tile, as "
                    f"blocks.backward.halves says, row {row} differs from the one before"
                )
    if blocks.schedule.halves and positions is not None:
        for count in tiles.tolist():
            own = (positions[..., ::2] // 2).sort(-1).values[..., : (count + 1) // 2]
            if not torch.equal(own, torch.arange(own.shape[-1], device=own.device).expand_as(own).to(own.dtype)):
                raise ValueError(
                    "schedule.positions: needs the halves of a tile as neighbours, as schedule.halves says, in a "
                    f"sequence of {count} tiles of keys"
                )
