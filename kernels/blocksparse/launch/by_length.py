"""Launching the tiles that packed sequences have: NOTE [sequences by length] of lists/lpt.py.

How many tiles there are is on the device; the host knows how many there are at most. Lists that no builder of this
package has made have no order of the sequences.
"""

from __future__ import annotations

from torch import Tensor

from kernels.blocksparse.lists.types import BlockSparse, SequenceOrder
from kernels.blocksparse.spec.variant import PAIR_KEYS


def order_of_queries(q: Tensor, blocks: BlockSparse) -> SequenceOrder | None:
    """The order of the sequences by which tiles of queries are launched; None: as they come, each with as many tiles
    as the longest has."""
    return _order_for(None if blocks.lpt is None else blocks.lpt.queries, q, blocks.tile_m, blocks.m_blocks)


def order_of_keys(k: Tensor, blocks: BlockSparse) -> SequenceOrder | None:
    """The order by which the backward kernel's tiles of keys are launched, likewise. None without backward lists, and
    under a permutation that may have blocks past a sequence's end before others."""
    schedule = blocks.schedule
    return _by_keys(k, blocks) if schedule.positions is None or schedule.own_first else None


def order_of_partials(k: Tensor, blocks: BlockSparse) -> SequenceOrder | None:
    """The order by which partial sums of dK and dV are added up, likewise. None for lists of pairs of CTAs, each of
    which has sums of its own."""
    return None if blocks.tile_n == PAIR_KEYS else _by_keys(k, blocks)


def tiles_to_launch(order: SequenceOrder | None, x: Tensor, tile: int, sequences: int, blocks: int) -> int:
    """Tiles of one head to launch, of x's rows in all: what the sequences have at most, or `blocks` for each."""
    return sequences * blocks if order is None else x.shape[0] // tile + sequences


def halves_to_launch(order: SequenceOrder | None, x: Tensor, tile: int, sequences: int, blocks: int) -> int:
    """Tiles of one head to launch, likewise, where each cluster of two CTAs has a pair of tiles: `pairs_before` of
    common/sequence_order.py says how many pairs the sequences have at most."""
    tiles = tiles_to_launch(order, x, tile, sequences, blocks)
    return 2 * (sequences * -(-blocks // 2) if order is None else (tiles + sequences) // 2)


def order_values(order: SequenceOrder | None, of: str = "") -> dict[str, Tensor | int]:
    """Arguments: the order of the sequences. of: "key_" for the one of tiles of keys, beside another."""
    sequence, start = (0, 0) if order is None else (order.sequence, order.start)
    return {f"{of}order_sequence": sequence, f"{of}order_start": start}


def _by_keys(k: Tensor, blocks: BlockSparse) -> SequenceOrder | None:
    if blocks.backward is None or blocks.lpt is None:
        return None
    return _order_for(blocks.lpt.keys, k, blocks.tile_n, blocks.backward.rows)


def _order_for(order: SequenceOrder | None, x: Tensor, tile: int, blocks: int) -> SequenceOrder | None:
    """None where x (…, rows, heads, dim) is padded, or the order would launch no fewer tiles: of sequences of one
    length."""
    if order is None or x.dim() != 3:
        return None
    sequences = order.sequence.numel()
    return order if tiles_to_launch(order, x, tile, sequences, blocks) < sequences * blocks else None
