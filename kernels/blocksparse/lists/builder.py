"""Code that all builders of block lists share: lengths of the sequences, and lists from ranges of blocks.

The number of entries depends on the data. Without a `capacity` the builder asks the device for it, once; with one it
never synchronises, and a capacity that is too small is an asynchronous device assertion, never a list cut short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from kernels.blocksparse.lists.lpt import with_lpt_order
from kernels.blocksparse.lists.schedule import ALIKE, ASCENDING, Schedule, permutation
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockMask, BlockSparse, exclusive_sum
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.spec.variant import PAIR, PAIR_KEYS, WIDE

TILES = (64, 128)
Align = Literal["top_left", "bottom_right"]
LengthsLike = int | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False)
class Shape:
    """Lengths of the sequences and the tiles over them. len_q, len_k int64 (batch,) on the device, batch 1 where all
    sequences are alike; longest_q, longest_k on the host."""

    len_q: Tensor
    len_k: Tensor
    longest_q: int
    longest_k: int
    tile_m: int
    tile_n: int

    @property
    def batch(self) -> int:
        """Sequences, or 1 where all have the same lengths."""
        return self.len_q.shape[0]

    @property
    def m_blocks(self) -> int:
        """Tiles of the longest query sequence."""
        return ceil_div(self.longest_q, self.tile_m)

    @property
    def n_blocks(self) -> int:
        """Tiles of the longest key sequence."""
        return ceil_div(self.longest_k, self.tile_n)


def shape_of(
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    tile_m: int,
    tile_n: int,
    device: torch.device | str | None = None,
    longest: tuple[int, int] | None = None,
) -> Shape:
    """Lengths given as a number (for all sequences), numbers, or an integer tensor (batch,).

    longest  (longest_q, longest_k), so that lengths on a device need not be asked
    Raises ValueError for tiles other than 64 and 128 (tile_m: and 192 and 256, tile_n: and 256), lengths of unequal
    number, negative ones (those of a tensor are looked at where `longest` is not given).
    """
    for name, tile, tiles in (("tile_m", tile_m, (*TILES, WIDE, PAIR)), ("tile_n", tile_n, (*TILES, PAIR_KEYS))):
        if tile not in tiles:
            raise ValueError(f"{name}: needs one of {tiles}, got {tile}")
    (len_q, longest_q, given_q), (len_k, longest_k, given_k) = (
        _lengths(value, name, device, None if longest is None else longest[at])
        for at, (name, value) in enumerate((("lengths_q", lengths_q), ("lengths_k", lengths_k)))
    )
    if given_q != given_k and 1 not in (given_q, given_k):
        raise ValueError(f"lengths_k: needs {given_q} lengths as lengths_q, got {given_k}")
    len_q, len_k = torch.broadcast_tensors(len_q, len_k)
    return Shape(len_q, len_k, longest_q, longest_k, tile_m, tile_n)


def list_of_ranges(start: Tensor, stop: Tensor, capacity: int | None = None) -> BlockList:
    """The list whose row r holds the blocks start[…, r, s] … stop[…, r, s] - 1 of every range s, in that order.

    start, stop  int64 (batch, heads, rows, ranges); stop <= start is an empty range
    capacity     elements of index; None: the number of entries (at least 1), asked of the device
    """
    length = (stop - start).clamp_(min=0)
    count = length.sum(-1)
    index = _expand(start.reshape(-1), length.reshape(-1), capacity)
    return BlockList(count.to(torch.int32), index, exclusive_sum(count))


def list_of_segments(row: Tensor, start: Tensor, length: Tensor, rows: tuple[int, int, int], capacity: int | None):
    """A list, as of `list_of_ranges`, from ranges (any number,) that name their row of (batch, heads, rows) and ascend
    in it."""
    count = torch.zeros(rows[0] * rows[1] * rows[2], dtype=torch.int64, device=row.device)
    count = count.scatter_add_(0, row, length).view(rows)
    return BlockList(count.to(torch.int32), _expand(start, length, capacity), exclusive_sum(count))


def finished(
    forward: BlockLists,
    mask: BlockMask,
    shape: Shape,
    schedule: Schedule | None,
    backward: bool,
) -> BlockSparse:
    """Forward lists completed by all that is derived from them: backward lists, ranks and launch orders. schedule: None
    for LPT: the longest KV tiles first. Raises ValueError for backward lists of tiles of 192 or 256 queries."""
    if backward and (tile_m := shape.tile_m) not in TILES:
        raise ValueError(f"tile_m: needs one of {TILES} for backward lists, got {tile_m}; backward=False makes none")
    blocks = BlockSparse(forward, None, mask, shape.tile_m, shape.tile_n, schedule or ASCENDING)
    if not backward:
        return with_lpt_order(blocks, shape.len_q)
    blocks = with_lpt_order(with_backward(blocks, shape.n_blocks), shape.len_q, shape.len_k)
    if schedule is None:
        assert blocks.lpt is not None and blocks.lpt.columns is not None
        schedule = replace(permutation(blocks.lpt.columns), own_first=True)
    return with_order(blocks, schedule)


def dense(
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = ALIKE,
    backward: bool = True,
    device: torch.device | str | None = None,
    wide: bool | int = False,
) -> BlockSparse:
    """Lists for queries that see every key of their sequence: all blocks are full. wide: also of larger tiles, 192
    queries (or True), which Hopper's forward kernel takes up to head dim 64, or 256, which Blackwell's takes up to
    128."""
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, device)
    stop = torch.where(tile_starts(shape) < shape.len_q[:, None], ceil_div(shape.len_k, tile_n)[:, None], 0)
    stop = stop[:, None, :, None]
    full = list_of_ranges(torch.zeros_like(stop), stop)
    nothing = BlockList.empty(shape.batch, 1, shape.m_blocks, full.index.device)
    blocks = finished(BlockLists(nothing, full, alike=True), None, shape, schedule, backward)
    if not wide:
        return blocks
    tile_m = WIDE if wide is True else wide
    return replace(
        blocks, wide=dense(lengths_q, lengths_k, tile_m=tile_m, tile_n=tile_n, backward=False, device=device)
    )


def tile_starts(shape: Shape) -> Tensor:
    """First query of each m block, int64 (m_blocks,)."""
    return torch.arange(shape.m_blocks, device=shape.len_q.device) * shape.tile_m


def ceil_div(value, by: int):
    """Rounded up; numbers and integer tensors."""
    return (value + (by - 1)) // by


def _expand(start: Tensor, length: Tensor, capacity: int | None) -> Tensor:
    ends = length.cumsum(0)
    total = ends[-1] if ends.numel() else ends.new_zeros(())
    if capacity is None:
        capacity = max(int(total), 1)
    else:
        torch._assert_async(total <= capacity, "capacity: more entries than that")
    if not ends.numel():
        return torch.zeros(capacity, dtype=torch.int32, device=start.device)
    at = torch.arange(capacity, device=start.device)
    segment = torch.searchsorted(ends, at, right=True).clamp_(max=ends.numel() - 1)
    at += (start - ends + length)[segment]
    return at.to(torch.int32)


def _lengths(value: LengthsLike, name: str, device: torch.device | str | None, longest: int | None):
    """The lengths (one where all are alike), the longest, and how many were given."""
    if isinstance(value, Tensor):
        if value.dim() != 1 or value.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name}: needs an int32 or int64 tensor (batch,), got {value.dtype} {tuple(value.shape)}")
        if not value.numel():
            raise ValueError(f"{name}: needs at least one length, got none")
        if longest is None:
            least, longest = torch.stack(value.aminmax()).tolist()
            if least < 0:
                raise ValueError(f"{name}: needs no negative length, got {least}")
        return value.to(device=device, dtype=torch.int64), longest, len(value)
    numbers = list(value) if isinstance(value, Iterable) else [value]
    if not numbers or not all(isinstance(number, Integral) for number in numbers) or min(numbers) < 0:
        raise ValueError(f"{name}: needs at least one length, whole numbers, none negative, got {numbers}")
    alike = numbers if len(set(numbers)) > 1 else numbers[:1]
    return torch.tensor(alike, dtype=torch.int64, device=device), max(numbers), len(numbers)
