"""What a kernel may be given: every refusal is a ValueError that names the field, what it got and what it needs.

`check_shapes` asks the device nothing and runs at every call. `check_contents` reads the lists; a wrong one would be a
read out of bounds, a wrong result, or (NOTE [write order]) a GPU that spins for ever. The public call runs it once for
every BlockSparse and shape that it meets, and not while compiling or capturing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import TILES, ceil_div
from kernels.blocksparse.lists.schedule import Schedule
from kernels.blocksparse.lists.types import (
    OPEN,
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockSparse,
    Intervals,
    LongestFirst,
    WriteOrder,
    entries,
)
from kernels.blocksparse.lists.write_order import write_order


@dataclass(frozen=True, eq=False)
class Sizes:
    """Of the problem that lists are checked against: longest_q, longest_k on the host; lengths_q, lengths_k (batch,) on
    the lists' device, None where all sequences have the longest's length."""

    batch: int
    heads_q: int
    heads_kv: int
    longest_q: int
    longest_k: int
    lengths_q: Tensor | None = None
    lengths_k: Tensor | None = None


def check_shapes(
    blocks: BlockSparse, sizes: Sizes, *, backward: bool = False, device: torch.device | None = None
) -> None:
    """Types, dtypes, devices, shapes. backward: whether backward lists are needed. Raises ValueError."""
    check_types(blocks)
    device = blocks.device if device is None else device
    for name in ("tile_m", "tile_n"):
        if getattr(blocks, name) not in TILES:
            raise ValueError(f"blocks.{name}: needs one of {TILES}, got {getattr(blocks, name)}")
    m_blocks, n_blocks = ceil_div(sizes.longest_q, blocks.tile_m), ceil_div(sizes.longest_k, blocks.tile_n)
    first = blocks.forward.partial.count.shape[:2]
    _check_lists(blocks.forward, "blocks.forward", m_blocks, first, sizes, device)
    if blocks.backward is not None:
        _check_lists(blocks.backward, "blocks.backward", n_blocks, first, sizes, device)
    elif backward:
        raise ValueError("blocks.backward: needs backward lists (see transpose.with_backward), got None")
    _check_mask(blocks, sizes, device)
    _check_schedule(blocks.schedule, n_blocks, first, sizes, device)
    _check_longest(blocks, n_blocks, first, device)
    if blocks.order is not None and blocks.backward is None:
        raise ValueError("blocks.order: needs backward lists beside it, got none")
    if blocks.order is not None and blocks.backward is not None:
        for kind in ("partial", "full"):
            parallel = getattr(blocks.backward, kind).index
            _check_tensor(
                getattr(blocks.order, kind), f"blocks.order.{kind}", torch.int32, tuple(parallel.shape), device
            )


def check_types(blocks: BlockSparse) -> None:
    """That every part is what its field says, as annotations alone do not. Raises ValueError."""
    _check_type(blocks, BlockSparse, "blocks")
    for name, lists in (("blocks.forward", blocks.forward), ("blocks.backward", blocks.backward)):
        if lists is None and name == "blocks.backward":
            continue
        _check_type(lists, BlockLists, name)
        for kind in ("partial", "full"):
            one = getattr(lists, kind)
            _check_type(one, BlockList, f"{name}.{kind}")
            _check_tensors(one, f"{name}.{kind}", "count", "index", "begin")
    mask = blocks.mask
    if isinstance(mask, Bits):
        _check_tensors(mask, "blocks.mask", "words", "slot")
    elif isinstance(mask, Intervals):
        _check_tensors(mask, "blocks.mask", "bounds")
    elif isinstance(mask, Band):
        _check_tensors(mask, "blocks.mask", "offset")
    elif mask is not None:
        raise ValueError(f"blocks.mask: needs Bits, Intervals, Band or None, got {type(mask).__name__}")
    _check_type(blocks.schedule, Schedule, "blocks.schedule")
    if blocks.schedule.positions is not None:
        _check_tensors(blocks.schedule, "schedule", "positions")
    if blocks.order is not None:
        _check_type(blocks.order, WriteOrder, "blocks.order")
        _check_tensors(blocks.order, "blocks.order", "partial", "full")
    if blocks.longest is not None:
        _check_type(blocks.longest, LongestFirst, "blocks.longest")
        _check_tensors(blocks.longest, "blocks.longest", "rows")


def check_contents(blocks: BlockSparse, sizes: Sizes) -> None:
    """Everything that the lists must satisfy, after `check_shapes`; asks the device. Raises ValueError.

    Rows within the index tensor and not shared, none for blocks past a sequence's end; entries in range, none twice,
    none both partial and full; backward lists the transpose of forward lists; slots in range and the same both ways; a
    permutation that is one; ranks that are those of the schedule; rows that ascend where they are merged. A list for
    all sequences must fit the shortest. Where the mask is computed (Intervals, Band), backward lists may have full
    blocks as partial ones (transpose.in_one_list). Without any sequence nothing is read, here and by the kernels.
    """
    if not sizes.batch:
        return
    rows = _blocks_of(sizes.lengths_q, sizes.longest_q, blocks.tile_m, sizes, blocks.device)
    cols = _blocks_of(sizes.lengths_k, sizes.longest_k, blocks.tile_n, sizes, blocks.device)
    forward = _check_entries(blocks.forward, "blocks.forward", rows, cols, "n_block")
    _check_permutation(blocks.schedule.positions, "schedule.positions", "n_block")
    if blocks.longest is not None:
        _check_permutation(blocks.longest.rows, "blocks.longest.rows", "m_block")
        _check_permutation(blocks.longest.columns, "blocks.longest.columns", "n_block")
    if isinstance(blocks.mask, Intervals):
        bounds = blocks.mask.bounds
        _refuse(bounds < -OPEN, f"blocks.mask.bounds: needs no number below {-OPEN}", bounds)
    if isinstance(blocks.mask, Band):  # positions and edges of the band are 32-bit numbers in a kernel
        offset, least, most = blocks.mask.offset, sizes.longest_k - OPEN, OPEN - sizes.longest_q
        _refuse((offset < least) | (offset > most), f"blocks.mask.offset: needs {least} to {most}", offset)
    slots = None
    if isinstance(blocks.mask, Bits):
        slots = _check_slots(blocks.mask.slot, blocks.forward.partial, blocks.mask.words, "blocks.mask.slot")
    if blocks.backward is None:
        return
    backward = _check_entries(blocks.backward, "blocks.backward", cols, rows, "m_block")
    m_blocks, n_blocks = blocks.forward.rows, blocks.backward.rows
    if isinstance(blocks.mask, Intervals | Band):
        forward = _moved_to_partial(forward, backward, m_blocks, n_blocks)
    for kind, one, other in zip(("partial", "full"), forward, backward, strict=True):
        here, by_here = ((one.group * m_blocks + one.row) * n_blocks + one.col).sort()
        there, by_there = ((other.group * m_blocks + other.col) * n_blocks + other.row).sort()
        if here.shape != there.shape or not torch.equal(here, there):
            where = _first_difference(here, there, m_blocks, n_blocks)
            raise ValueError(
                f"blocks.backward.{kind}: needs the transpose of blocks.forward.{kind}, got lists that differ {where}"
            )
        if kind == "partial" and isinstance(blocks.mask, Bits):
            assert blocks.mask.slot_backward is not None and slots is not None
            slots_backward = _check_slots(
                blocks.mask.slot_backward, blocks.backward.partial, blocks.mask.words, "blocks.mask.slot_backward"
            )
            _check_same_bits(slots[by_here], slots_backward[by_there], blocks.mask.words)
    if blocks.merged:
        _check_ascending(backward)
    if blocks.order is not None:
        _check_order(blocks)


@dataclass(frozen=True, eq=False)
class _Listed:
    """Valid entries: (sequence, head) group, row, column; int64."""

    group: Tensor
    row: Tensor
    col: Tensor


def _check_lists(
    lists: BlockLists, name: str, rows: int, first: torch.Size, sizes: Sizes, device: torch.device
) -> None:
    for kind in ("partial", "full"):
        one = getattr(lists, kind)
        field = f"{name}.{kind}"
        shape = tuple(one.count.shape)
        if not (len(shape) == 3 and _shares(shape[:2], sizes.batch, sizes.heads_q) and shape[2] == rows):
            raise ValueError(
                f"{field}.count: needs shape ({_either(sizes.batch)}, {_either(sizes.heads_q)}, {rows}), got {shape}"
            )
        if shape[:2] != tuple(first):
            raise ValueError(
                f"{field}.count: needs batch and heads as blocks.forward.partial's {tuple(first)}, got {shape}"
            )
        _check_tensor(one.count, f"{field}.count", torch.int32, shape, device)
        _check_tensor(one.begin, f"{field}.begin", torch.int64, shape, device)
        if one.index.dim() != 1 or not one.index.numel():
            raise ValueError(f"{field}.index: needs one dimension, at least one element, got {tuple(one.index.shape)}")
        _check_tensor(one.index, f"{field}.index", torch.int32, tuple(one.index.shape), device)


def _check_mask(blocks: BlockSparse, sizes: Sizes, device: torch.device) -> None:
    mask = blocks.mask
    if isinstance(mask, Bits):
        tile = (blocks.tile_m, blocks.tile_n // 32)
        words = tuple(mask.words.shape)
        if len(words) != 3 or words[1:] != tile or not words[0]:
            raise ValueError(f"blocks.mask.words: needs shape (at least 1, {tile[0]}, {tile[1]}), got {words}")
        _check_tensor(mask.words, "blocks.mask.words", torch.int32, words, device)
        parallel = tuple(blocks.forward.partial.index.shape)
        _check_tensor(mask.slot, "blocks.mask.slot", torch.int32, parallel, device)
        if blocks.backward is not None:
            if mask.slot_backward is None:
                raise ValueError("blocks.mask.slot_backward: needs a Tensor where there are backward lists, got None")
            parallel = tuple(blocks.backward.partial.index.shape)
            _check_tensor(mask.slot_backward, "blocks.mask.slot_backward", torch.int32, parallel, device)
    elif isinstance(mask, Intervals):
        shape = tuple(mask.bounds.shape)
        fits = len(shape) == 4 and _shares(shape[:2], sizes.batch, sizes.heads_q)
        if not (fits and shape[2] % 2 and shape[3] >= sizes.longest_q):
            needs = f"({_either(sizes.batch)}, {_either(sizes.heads_q)}, odd n_func, at least {sizes.longest_q})"
            raise ValueError(f"blocks.mask.bounds: needs shape {needs}, got {shape}")
        _check_tensor(mask.bounds, "blocks.mask.bounds", torch.int32, shape, device)
    elif isinstance(mask, Band):
        for side in ("left", "right"):
            if not isinstance(getattr(mask, side), int) or abs(getattr(mask, side)) > OPEN:
                raise ValueError(f"blocks.mask.{side}: needs an int within ±{OPEN}, got {getattr(mask, side)}")
        shape = tuple(mask.offset.shape)
        if not (len(shape) == 1 and _shares(shape, sizes.batch)):
            raise ValueError(f"blocks.mask.offset: needs shape ({_either(sizes.batch)},), got {shape}")
        _check_tensor(mask.offset, "blocks.mask.offset", torch.int32, shape, device)


def _check_schedule(schedule: Schedule, n_blocks: int, first: torch.Size, sizes: Sizes, device: torch.device) -> None:
    if schedule.kind not in ("ascending", "descending", "permutation"):
        raise ValueError(f"schedule.kind: needs 'ascending', 'descending' or 'permutation', got {schedule.kind!r}")
    if schedule.pairs is not None and schedule.pairs < 1:
        raise ValueError(f"schedule.pairs: needs None or a positive number, got {schedule.pairs}")
    group = sizes.heads_q // sizes.heads_kv
    if schedule.parts is not None and (schedule.parts < 1 or group % schedule.parts):
        raise ValueError(f"schedule.parts: needs None or a divisor of {group} heads, got {schedule.parts}")
    if (schedule.kind == "permutation") != (schedule.positions is not None):
        raise ValueError("schedule.positions: needs a tensor for a permutation, and None for the other kinds")
    if schedule.positions is None:
        return
    shape = tuple(schedule.positions.shape)
    batch, heads = 1 if first[0] == 1 else sizes.batch, 1 if first[1] == 1 else sizes.heads_kv
    if not (len(shape) == 3 and _shares(shape[:2], batch, heads) and shape[2] == n_blocks):
        raise ValueError(
            f"schedule.positions: needs shape ({_either(batch)}, {_either(heads)}, {n_blocks}), of KV heads and no "
            f"finer than the lists, got {shape}"
        )
    _check_tensor(schedule.positions, "schedule.positions", torch.int32, shape, device)


def _check_longest(blocks: BlockSparse, n_blocks: int, first: torch.Size, device: torch.device) -> None:
    if blocks.longest is None:
        return
    for name, tensor, heads, blocks_there in (
        ("rows", blocks.longest.rows, first[1], blocks.m_blocks),
        ("columns", blocks.longest.columns, 1, n_blocks),
    ):
        if tensor is None:
            continue
        shape = tuple(tensor.shape)
        if not (len(shape) == 3 and _shares(shape[:2], first[0], heads) and shape[2] == blocks_there):
            needs = f"({_either(first[0])}, {_either(heads)}, {blocks_there})"
            raise ValueError(f"blocks.longest.{name}: needs shape {needs}, no finer than the lists, got {shape}")
        _check_tensor(tensor, f"blocks.longest.{name}", torch.int32, shape, device)


def _check_type(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: needs a {kind.__name__}, got {type(value).__name__}")


def _check_tensors(owner: object, name: str, *fields: str) -> None:
    for field in fields:
        _check_type(getattr(owner, field), Tensor, f"{name}.{field}")


def _check_tensor(tensor: Tensor, name: str, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    _check_type(tensor, Tensor, name)
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: needs {dtype}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name}: needs to be on {device}, got {tensor.device}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: needs shape {shape}, got {tuple(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: needs to be contiguous, got strides {tensor.stride()}")


def _check_entries(lists: BlockLists, name: str, rows: Tensor, cols: Tensor, what: str) -> tuple[_Listed, _Listed]:
    """rows, cols: blocks of each sequence, int64 (batch,)."""
    found = []
    for kind in ("partial", "full"):
        one, field = getattr(lists, kind), f"{name}.{kind}"
        found.append(_check_list(one, field, rows, cols, what))
    width = int(cols.max()) if cols.numel() else 0
    keys = [(x.group * lists.rows + x.row) * width + x.col for x in found]
    both = torch.cat(keys).sort().values
    twice = both[1:][both[1:] == both[:-1]]
    if twice.numel():
        at = int(twice[0])
        raise ValueError(
            f"{name}: needs partial and full blocks apart, got {twice.numel()} in both, first {what} {at % width} of "
            f"row {at // width % lists.rows}"
        )
    return found[0], found[1]


def _check_list(one: BlockList, field: str, rows: Tensor, cols: Tensor, what: str) -> _Listed:
    count, begin = one.count.to(torch.int64), one.begin
    _refuse(count < 0, f"{field}.count: needs no negative count", count)
    _refuse((begin < 0) & (count > 0), f"{field}.begin: needs no negative start", begin)
    beyond = (begin > one.capacity - count) & (count > 0)  # a sum could be more than an int64 holds
    _refuse(beyond, f"{field}.count: needs rows to end within index, of {one.capacity} elements", begin + count)
    past = torch.arange(one.rows, device=count.device) >= rows.view(-1, 1, 1)
    if one.batch == 1:
        past = past.any(0, keepdim=True)
    _refuse(past & (count > 0), f"{field}.count: needs 0 for rows past the sequence's end", count)
    if int(count.sum()) > one.capacity:
        raise ValueError(
            f"{field}.begin: needs rows that share nothing, got {int(count.sum())} entries in {one.capacity}"
        )
    e = entries(one)
    row, place = e.row[e.valid], e.place[e.valid]
    used = torch.zeros(one.capacity, dtype=torch.int32, device=row.device)
    used.scatter_add_(0, place, torch.ones_like(place, dtype=torch.int32))
    _refuse(used > 1, f"{field}.begin: needs rows that share no element of index", used)
    group, col = row // max(one.rows, 1), one.index[place].to(torch.int64)
    row = row % max(one.rows, 1)
    most = cols.min() if one.batch == 1 else cols[group // one.heads]
    below = int(cols.min() if one.batch == 1 else cols.max())
    _refuse((col < 0) | (col >= most), f"{field}.index: needs {what}s of the sequence, below {below}", col, place)
    key = ((group * one.rows + row) * (int(cols.max()) if cols.numel() else 0) + col).sort().values
    twice = key[1:][key[1:] == key[:-1]]
    if twice.numel():
        at = int(twice[0])
        width = int(cols.max())
        raise ValueError(
            f"{field}.index: needs each {what} once in a row, got {at % width} more than once in row "
            f"{at // width % one.rows}"
        )
    return _Listed(group, row, col)


def _moved_to_partial(
    forward: tuple[_Listed, _Listed], backward: tuple[_Listed, _Listed], m_blocks: int, n_blocks: int
) -> tuple[_Listed, _Listed]:
    """Forward entries, those among the partial ones that are full forward and partial backward."""
    partial, full = forward
    here = (full.group * m_blocks + full.row) * n_blocks + full.col
    there = (backward[0].group * m_blocks + backward[0].col) * n_blocks + backward[0].row
    moved = torch.isin(here, there)
    joined = (torch.cat((a, b[moved])) for a, b in zip(_fields(partial), _fields(full), strict=True))
    return _Listed(*joined), _Listed(*(x[~moved] for x in _fields(full)))


def _fields(listed: _Listed) -> tuple[Tensor, Tensor, Tensor]:
    return listed.group, listed.row, listed.col


def _check_slots(slot: Tensor, lists: BlockList, words: Tensor, name: str) -> Tensor:
    e = entries(lists)
    slot = slot[e.place[e.valid]].to(torch.int64)
    _refuse((slot < 0) | (slot >= len(words)), f"{name}: needs slots below {len(words)}", slot)
    return slot


def _check_same_bits(here: Tensor, there: Tensor, words: Tensor) -> None:
    differ = (here != there).nonzero().flatten()
    for part in differ.split(1024):
        if not torch.equal(words[here[part]], words[there[part]]):
            raise ValueError("blocks.mask.slot_backward: needs the masks of slot, got another block's")


def _check_permutation(positions: Tensor | None, name: str, what: str) -> None:
    if positions is not None:
        every = torch.arange(positions.shape[2], device=positions.device)
        wrong = (positions.sort(-1).values != every).any(-1)
        if bool(wrong.any()):
            b, h = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: needs every {what} once, got {positions[b, h].tolist()[:16]} for sequence {b}, head {h}"
            )


def _check_ascending(backward: tuple[_Listed, _Listed]) -> None:
    for kind, one in zip(("partial", "full"), backward, strict=True):
        alike = (one.group[1:] == one.group[:-1]) & (one.row[1:] == one.row[:-1])
        wrong = (alike & (one.col[1:] < one.col[:-1])).nonzero().flatten()
        if wrong.numel():
            at = int(wrong[0])
            raise ValueError(
                f"blocks.merged: needs rows of blocks.backward.{kind} that ascend, got m_block {int(one.col[at + 1])} "
                f"after {int(one.col[at])} in row {int(one.row[at])}"
            )


def _check_order(blocks: BlockSparse) -> None:
    assert blocks.backward is not None and blocks.order is not None
    truth = write_order(blocks.backward, blocks.schedule, blocks.m_blocks)
    for kind in ("partial", "full"):
        e = entries(getattr(blocks.backward, kind))
        place = e.place[e.valid]
        got, wanted = getattr(blocks.order, kind)[place], getattr(truth, kind)[place]
        wrong = (got != wanted).nonzero().flatten()
        if wrong.numel():
            at = int(wrong[0])
            raise ValueError(
                f"blocks.order.{kind}: needs the {blocks.schedule.kind} schedule's ranks, {int(wanted[at])} at element "
                f"{int(place[at])}, got {int(got[at])}, and {wrong.numel() - 1} more are wrong"
            )


def _blocks_of(lengths: Tensor | None, longest: int, tile: int, sizes: Sizes, device: torch.device) -> Tensor:
    if lengths is None:
        return torch.full((sizes.batch,), ceil_div(longest, tile), dtype=torch.int64, device=device)
    return ceil_div(lengths.to(torch.int64), tile)


def _refuse(wrong: Tensor, needs: str, got: Tensor, place: Tensor | None = None) -> None:
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        value = int(got[tuple(at)])
        if place is not None:
            at = [int(place[at[0]])]
        raise ValueError(f"{needs}, got {value} at {at[0] if len(at) == 1 else tuple(at)}")


def _first_difference(here: Tensor, there: Tensor, m_blocks: int, n_blocks: int) -> str:
    only = [x[~torch.isin(x, y)] for x, y in ((here, there), (there, here))]
    for name, keys in zip(("forward", "backward"), only, strict=True):
        if keys.numel():
            at = int(keys[0])
            return f"first at m_block {at // n_blocks % m_blocks}, n_block {at % n_blocks}, only in {name}"
    return "in number"


def _shares(shape: tuple[int, ...], *sizes: int) -> bool:
    """Whether each is 1 or the size; by ==, as tracing finds a number of unknown size in no tuple."""
    return all(one == 1 or one == size for one, size in zip(shape, sizes, strict=True))


def _either(size: int) -> str:
    return "1" if size == 1 else f"1 or {size}"
