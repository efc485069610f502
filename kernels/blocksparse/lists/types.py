"""Block lists: which tiles of the score matrix are computed, as data for the kernels.

A list names, for each row of tiles, the tiles of the other direction that it meets: forward, row m lists n blocks;
backward, row n lists m blocks. Rows start anywhere in one flat tensor (`begin`), so that padded, compact and CSR
layouts are one thing to a kernel. Building, transposing, ranking and checking are in the files beside this one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.blocksparse.lists.schedule import Schedule

AT_ONCE = 1 << 18  # elements that travel between devices in one copy
INT32_MAX = 2**31 - 1
OPEN = (1 << 30) - 1  # a band's side without a limit; positions are smaller

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BlockList:
    """One kind of block (partial or full) in one direction.

    count  int32 (batch|1, heads_q|1, rows): entries of each row; 1 means one list for every sequence or head
    index  int32 (entries or more,), at least one element: block numbers, local to the sequence, distinct within a row,
           in any order
    begin  int64, the shape of count: where a row's entries start in `index`. Rows share no element of `index`
    """

    count: Tensor
    index: Tensor
    begin: Tensor

    @classmethod
    def padded(cls, count: Tensor, index: Tensor) -> BlockList:
        """A list from index (…, rows, width) with count[…, r] valid entries first in row r; compact is a smaller width.

        A count above width is a ValueError on the CPU; elsewhere, where the host does not wait for it, a device
        assertion.
        """
        *rows, width = index.shape
        if tuple(count.shape) != tuple(rows):
            raise ValueError(f"count: needs index's shape without its last dimension, {tuple(rows)}, got {count.shape}")
        if index.device.type == "cpu" and bool((count > width).any()):
            raise ValueError(f"count: needs at most {width} entries in a row, index's width, got {int(count.max())}")
        torch._assert_async((count <= width).all(), "count: more entries in a row than index is wide")
        begin = torch.arange(count.numel(), device=index.device, dtype=torch.int64).view(count.shape) * width
        return cls(_int32(count, "count").contiguous(), _not_empty(_int32(index, "index").reshape(-1)), begin)

    @classmethod
    def csr(cls, count: Tensor, index: Tensor, offset: Tensor | None = None) -> BlockList:
        """A list from rows one after the other. offset: exclusive prefix sum of count, one element longer; None:
        computed."""
        count = _int32(count, "count").contiguous()
        if offset is None:
            begin = exclusive_sum(count)
        else:
            if offset.numel() != count.numel() + 1:
                raise ValueError(
                    f"offset: needs {count.numel() + 1} elements, one more than rows, got {offset.numel()}"
                )
            begin = offset.reshape(-1)[:-1].to(torch.int64).view(count.shape).contiguous()
        return cls(count, _not_empty(_int32(index, "index").reshape(-1)), begin)

    @classmethod
    def empty(cls, batch: int, heads: int, rows: int, device: torch.device | str = "cpu") -> BlockList:
        """A list without entries in any row."""
        count = torch.zeros((batch, heads, rows), dtype=torch.int32, device=device)
        return cls(count, torch.zeros(1, dtype=torch.int32, device=device), count.to(torch.int64))

    @property
    def batch(self) -> int:
        """Sequences, or 1 where all have the same list."""
        return self.count.shape[0]

    @property
    def heads(self) -> int:
        """Query heads, or 1 where all have the same list."""
        return self.count.shape[1]

    @property
    def rows(self) -> int:
        """Rows of tiles of the longest sequence."""
        return self.count.shape[2]

    @property
    def capacity(self) -> int:
        """Elements of `index`; the number of entries is at most this, and known without asking the device."""
        return self.index.numel()

    def to_padded(self, width: int, fill: int = 0) -> tuple[Tensor, Tensor]:
        """(count, index (batch, heads, rows, width)), unused places holding `fill`. Entries past width are dropped."""
        at = torch.arange(width, device=self.index.device)
        place = (self.begin[..., None] + at).clamp(0, self.capacity - 1)
        return self.count, torch.where(at < self.count[..., None], self.index[place], fill)

    def to_csr(self) -> BlockList:
        """A list with the rows of this one, one after the other and nothing between them; index keeps its capacity."""
        e = entries(self)
        begin = exclusive_sum(self.count)
        return BlockList(self.count, torch.where(e.valid, self.index[e.place], 0).to(torch.int32), begin)


@dataclass(frozen=True, eq=False)
class BlockLists:
    """Both kinds of blocks of one direction, of equal shapes: `partial` ones apply the mask, `full` ones do not. No
    block is in both.

    alike  all rows of a (sequence, head), but for those past its end, have the same blocks in the same order: a kernel
           may read one row's list for another. validate/ checks it
    nested every row of an odd number has all blocks of the row before it, whose full ones are the first full ones of
           this row; the mask, a Band, hides the blocks that only this row has from the queries of the row before. A
           kernel may read the odd row's list for both. It speaks of pairs that a sequence has both rows of. validate/
           checks it
    halves of backward lists: rows 2i and 2i + 1, where a sequence has both, have the same blocks in the same order, as
           halves of one tile of keys. A kernel may read one's list for both. validate/ checks it
    """

    partial: BlockList
    full: BlockList
    alike: bool = field(default=False, kw_only=True)
    nested: bool = field(default=False, kw_only=True)
    halves: bool = field(default=False, kw_only=True)

    @property
    def rows(self) -> int:
        """Rows of tiles of the longest sequence."""
        return self.partial.rows


@dataclass(frozen=True, eq=False)
class Bits:
    """The mask of partial blocks, one bit per element.

    words          int32 (slots, tile_m, tile_n / 32): bit j of words[s, r, w] says whether query r of the block sees
                   its key 32 w + j. Bits of rows and keys past a sequence's end mean nothing: kernels apply the bounds
    slot           int32, parallel to forward.partial.index: the block's slot. Blocks of equal masks may share one
    slot_backward  int32, parallel to backward.partial.index; None without backward lists
    """

    words: Tensor
    slot: Tensor
    slot_backward: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Intervals:
    """Query q sees key k where k < F[0, q] or F[2i+1, q] <= k < F[2i+2, q] for some i; an interval with end <= start is
    empty.

    bounds  int32 (batch|1, heads_q|1, n_func, length), n_func odd, length at least the longest query sequence;
            positions inside the sequence, none below -OPEN. The encoding of HSTU masks and of MagiAttention's ranges
    """

    bounds: Tensor


@dataclass(frozen=True, eq=False)
class Band:
    """Query q of sequence b sees keys k with -left <= k - (q + offset[b]) <= right. Causal is left=OPEN, right=0.

    left, right  0 … OPEN (no limit), or negative to move that edge to the other side of the diagonal
    offset       int32 (batch|1,): 0 aligns at the top left, len_k - len_q at the bottom right
    """

    left: int
    right: int
    offset: Tensor


BlockMask = Bits | Intervals | Band | None  # None: every listed block is full


@dataclass(frozen=True, eq=False)
class WriteOrder:
    """Rank of each backward entry (n, m) among all blocks, partial and full, that add to the same dQ tile, in launch
    order: int32, parallel to backward.partial.index and backward.full.index. NOTE [write order] in write_order.py."""

    partial: Tensor
    full: Tensor


@dataclass(frozen=True, eq=False)
class SequenceOrder:
    """Sequences in the order in which their tiles are launched: NOTE [sequences by length] of lpt.py.

    sequence  int32 (batch,): the number of each
    start     int32 (batch + 1,): tiles of those before it; the last one is the tiles of all
    """

    sequence: Tensor
    start: Tensor


@dataclass(frozen=True, eq=False)
class LPTOrder:
    """Launch orders by LPT (longest processing time first), see lpt.py; they change times, not results.

    rows     int32 (batch|1, heads_q|1, m_blocks): the m block of each launch position of the forward pass
    columns  int32 (batch|1, 1, n_blocks): n blocks likewise, of the atomic backward pass; None without backward lists
    queries  order of the sequences by their tiles of queries, of packed ones; None: as they come
    keys     by their tiles of keys, for the backward pass; None: as they come
    """

    rows: Tensor
    columns: Tensor | None = None
    queries: SequenceOrder | None = None
    keys: SequenceOrder | None = None


@dataclass(frozen=True, eq=False)
class BlockSparse:
    """Block lists and the mask, as `block_sparse_attention` takes them.

    forward   rows are m blocks (tile_m queries each), entries n blocks (tile_n keys each)
    backward  its transpose; None where there is no backward pass
    mask      how partial blocks are masked
    schedule  the order in which the backward pass launches n blocks
    order     ranks for the deterministic backward pass under that schedule; None: computed at each call
    lpt       launch orders of the forward and of the atomic backward pass; None: by the mask, and by the schedule
    merged    in what order the backward pass visits a row's blocks: ascending, partial and full ones merged, which
              needs rows of backward lists that ascend; else first the partial ones, then the full ones, as listed
    wide      lists of the same mask over tiles of 192 or 256 queries, without backward lists: the forward pass takes
              these where its kernel has such tiles (NOTE [wide tiles] of forward/hopper/tuning.py, NOTE [two query
              tiles] of forward/blackwell/kernel.py); None: there are none
    paired    lists of the same mask over tiles of 128 queries and 256 keys, with backward lists: the backward pass
              takes these, with their own schedule and order, where its kernel runs on pairs of CTAs
              (backward/blackwell/pairs); None: there are none
    """

    forward: BlockLists
    backward: BlockLists | None
    mask: BlockMask
    tile_m: int
    tile_n: int
    schedule: Schedule
    order: WriteOrder | None = None
    lpt: LPTOrder | None = None
    merged: bool = False
    wide: BlockSparse | None = None
    paired: BlockSparse | None = None

    @property
    def m_blocks(self) -> int:
        """Tiles of the longest query sequence."""
        return self.forward.partial.rows

    @property
    def device(self) -> torch.device:
        """Device of the lists."""
        return self.forward.partial.index.device

    def to(self, device: torch.device | str) -> BlockSparse:
        """A copy with every tensor on that device; all at once where they are small, as each wait for a GPU costs."""
        if self.device.type == torch.device(device).type or self.elements > AT_ONCE:
            return _map(self, lambda tensor: tensor.to(device))
        return self._at_once(device)

    def _at_once(self, device: torch.device | str) -> BlockSparse:
        tensors = self.tensors()
        whole = torch.cat([x.reshape(-1).to(torch.int64) for x in tensors]).to(device)
        pieces = iter(whole.split([x.numel() for x in tensors]))
        return _map(self, lambda tensor: next(pieces).view(tensor.shape).to(tensor.dtype, copy=True))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors hold, each storage once."""
        storages = {s._cdata: s.nbytes() for s in [x.untyped_storage() for x in self.tensors()]}
        return sum(storages.values())

    @property
    def elements(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All tensors; one may be there several times."""
        tensors: list[Tensor] = []

        def noted(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        _map(self, noted)
        return tensors


@dataclass(frozen=True, eq=False)
class Entries:
    """All entries of a list, in the order of its rows: `capacity` of them, of which `valid` ones come first.

    row    int64: number of the row, (b * heads + h) * rows + r
    place  int64: where the entry stands in `index`; 0 where not valid
    valid  bool
    """

    row: Tensor
    place: Tensor
    valid: Tensor


def entries(blocks: BlockList) -> Entries:
    """Enumerates a list without asking the device how many entries it has. O(entries log rows)."""
    count = blocks.count.reshape(-1)
    ends = count.cumsum(0, dtype=torch.int64)
    at = torch.arange(blocks.capacity, device=count.device)
    valid = at < ends[-1:] if count.numel() else torch.zeros_like(at, dtype=torch.bool)
    if not count.numel():
        return Entries(torch.zeros_like(at), torch.zeros_like(at), valid)
    row = torch.searchsorted(ends, at, right=True).clamp_(max=count.numel() - 1)
    place = at
    place += (blocks.begin.reshape(-1) - (ends - count))[row]
    place *= valid
    return Entries(row, place, valid)


def exclusive_sum(count: Tensor) -> Tensor:
    """Start of each row when rows follow one another: int64, the shape of count."""
    flat = count.reshape(-1)
    return (flat.cumsum(0, dtype=torch.int64) - flat).view(count.shape)


def replaced(blocks: BlockSparse, **changes: Any) -> BlockSparse:
    """A copy with some fields exchanged; nothing is recomputed."""
    return replace(blocks, **changes)


def _int32(given: Tensor, name: str) -> Tensor:
    """A tensor as int32: what an int32 cannot hold stays out of range, and validate/ refuses it."""
    if given.is_floating_point() or given.is_complex():
        raise ValueError(f"{name}: needs integers, got {given.dtype}")
    return given.to(torch.int32) if given.dtype != torch.int64 else given.clamp(-1, INT32_MAX).to(torch.int32)


def _not_empty(index: Tensor) -> Tensor:
    return index if index.numel() else index.new_zeros(1)


def _map(value: T, change: Any) -> T:
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _map(getattr(value, f.name), change) for f in fields(value)})
    return value


def spread(blocks: BlockList, batch: int, heads: int) -> BlockList:
    """A copy with a list of its own for every (sequence, head) where one was shared: count (batch, heads, rows)."""
    if blocks.batch not in (1, batch) or blocks.heads not in (1, heads):
        raise ValueError(
            f"count: needs batch 1 or {batch} and heads 1 or {heads}, got {blocks.batch} and {blocks.heads}"
        )
    copies = (batch // blocks.batch) * (heads // blocks.heads)
    copy = torch.arange(copies, device=blocks.index.device)
    copy = copy.view(batch // blocks.batch, heads // blocks.heads, 1) * blocks.capacity
    shape = (batch, heads, blocks.rows)
    begin = (blocks.begin + copy).expand(shape) if copies > 1 else blocks.begin
    return BlockList(blocks.count.expand(shape).contiguous(), blocks.index.repeat(copies), begin.contiguous())
