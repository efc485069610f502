"""Schedules: the order in which the backward pass launches its KV tiles.

One value serves the kernel's tile scheduler and the ranks of `write_order`, so that the two cannot disagree: both read
`launch_order`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["ascending", "descending", "permutation"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """An order of the n blocks of every (sequence, KV head).

    kind         ascending, descending (last KV tile first, the shortest first under a causal mask), or permutation
    positions    int32 (batch|1, heads_kv|1, n_blocks), only for a permutation: the n block of each launch position
    pairs        concurrent (sequence, unit) pairs where adds are ordered, as a computed order was made for; None: as
                 many as the launcher chooses. Changes times; and of causal masks in which order the last groups sum
                 (NOTE [reversed groups] of backward/tile_iterator.py)
    group_split  units of each KV head where adds are ordered (NOTE [group split] of group_split.py), as a computed
                 order was made for; None: `group_split_of` of the launcher
    alike        every row of the backward lists that has blocks has the same ones, in the same order: a CTA that starts
                 after another stays behind it, and so waits little with few concurrent pairs. Kernels rely on it
    own_first    of a permutation: each sequence's own blocks come before those past its end, which NOTE [sequences by
                 length] of lpt.py needs
    reverses     where adds are ordered, the last group of concurrent pairs is launched and visited in reverse: NOTE
                 [reversed groups]; of causal masks under their own schedule it always is, of sequences by length never
    halves       of a permutation: n blocks 2i and 2i + 1, the halves of a tile, are launched one after the other, and a
                 second half past its sequence's end comes behind all blocks that are there. Kernels rely on it
    """

    kind: Kind = "ascending"
    positions: Tensor | None = None
    pairs: int | None = None
    group_split: int | None = None
    alike: bool = False
    own_first: bool = False
    reverses: bool = False
    halves: bool = False

    def launch_order(self, n_blocks: int, device: torch.device | str) -> Tensor:
        """The n block of each launch position, int32 (batch|1, heads_kv|1, n_blocks), contiguous."""
        if self.positions is not None:
            return self.positions
        order = torch.arange(n_blocks, dtype=torch.int32, device=device)
        return (order if self.kind == "ascending" else order.flip(0)).view(1, 1, n_blocks)


ASCENDING = Schedule("ascending")
DESCENDING = Schedule("descending")
ALIKE = Schedule("ascending", alike=True)
NAMED = {"ascending": ASCENDING, "descending": DESCENDING}


def permutation(positions: Tensor) -> Schedule:
    """The schedule that launches n block positions[b, h, p] at position p; see `Schedule`."""
    return Schedule("permutation", positions)


def schedule_of(given: Schedule | str | Tensor) -> Schedule:
    """A Schedule from a user's argument: one, "ascending", "descending", or the positions of a permutation."""
    if isinstance(given, Schedule):
        return given
    if isinstance(given, Tensor):
        return permutation(given)
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    raise ValueError(f"schedule: needs 'ascending', 'descending', a Schedule or a permutation, got {given!r}")
