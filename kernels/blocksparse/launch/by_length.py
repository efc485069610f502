"""Launching the tiles that packed sequences have: NOTE [sequences by length] of lists/lpt.py.

How many tiles there are is on the device; the host knows what they are at most.
"""

from __future__ import annotations

from torch import Tensor

from kernels.blocksparse.lists.types import SequenceOrder


def order_for(order: SequenceOrder | None, x: Tensor, tile: int, blocks: int) -> SequenceOrder | None:
    """The order by which tiles of x's rows are launched; None where there is none, x (…, rows, heads, dim) is padded,
    or `blocks` tiles for each sequence are as few: those of sequences of one length.

    tile, blocks  rows of a tile, and tiles of the longest sequence
    """
    if order is None or x.dim() != 3:
        return None
    sequences = order.sequence.numel()
    return order if most_tiles(x, tile, sequences) < sequences * blocks else None


def most_tiles(x: Tensor, tile: int, sequences: int) -> int:
    """Tiles that so many packed sequences have at most, of x's rows in all."""
    return x.shape[0] // tile + sequences


def order_tensors(order: SequenceOrder | None) -> dict[str, Tensor | int]:
    """Arguments: the order of the sequences."""
    if order is None:
        return {"order_sequence": 0, "order_start": 0}
    return {"order_sequence": order.sequence, "order_start": order.start}
