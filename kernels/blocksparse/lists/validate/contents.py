"""Contents of block lists: counts, entries, masks, schedules and write orders, read from their device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import ceil_div
from kernels.blocksparse.lists.types import (
    OPEN,
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockSparse,
    Intervals,
    SequenceOrder,
    entries,
)
from kernels.blocksparse.lists.validate.halves import check_halves
from kernels.blocksparse.lists.validate.nested import check_nested
from kernels.blocksparse.lists.validate.shapes import Sizes
from kernels.blocksparse.lists.write_order import write_order


def check_contents(blocks: BlockSparse, sizes: Sizes) -> None:
    """Everything that the lists must satisfy, after `check_shapes`; asks the device. Raises ValueError.

    Rows within the index tensor and not shared, none for blocks past a sequence's end; entries in range, none twice,
    none both partial and full; backward lists the transpose of forward lists; slots in range and the same both ways; a
    permutation that is one; ranks that are those of the schedule; rows that ascend where they are merged, are alike
    where forward lists or the schedule say so, nested where forward lists say so, and halves of tiles where backward
    lists or the schedule say so. A list for all sequences must fit the shortest. Where the mask is computed (Intervals,
    Band), backward lists may have full blocks as partial ones (transpose.in_one_list). Without any sequence nothing is
    read, here and by the kernels.
    """
    if not sizes.batch:
        return
    rows = _blocks_of(sizes.lengths_q, sizes.longest_q, blocks.tile_m, sizes, blocks.device)
    cols = _blocks_of(sizes.lengths_k, sizes.longest_k, blocks.tile_n, sizes, blocks.device)
    forward = _check_entries(blocks.forward, "blocks.forward", rows, cols, "n_block")
    _check_permutation(blocks.schedule.positions, "schedule.positions", "n_block")
    if blocks.schedule.own_first and blocks.schedule.positions is not None:
        _check_own_first(blocks.schedule.positions, cols, "schedule.positions")
    if blocks.lpt is not None:
        _check_permutation(blocks.lpt.rows, "blocks.lpt.rows", "m_block")
        _check_permutation(blocks.lpt.columns, "blocks.lpt.columns", "n_block")
        for name, order, of, positions in (
            ("queries", blocks.lpt.queries, rows, blocks.lpt.rows),
            ("keys", blocks.lpt.keys, cols, blocks.lpt.columns),
        ):
            if order is not None:
                _check_sequences(order, of, positions, f"blocks.lpt.{name}")
    if isinstance(blocks.mask, Intervals):
        bounds = blocks.mask.bounds
        _refuse(bounds < -OPEN, f"blocks.mask.bounds: needs no number below {-OPEN}", bounds)
    if isinstance(blocks.mask, Band):  # positions and edges of the band are 32-bit numbers in a kernel
        offset, least, most = blocks.mask.offset, sizes.longest_k - OPEN, OPEN - sizes.longest_q
        _refuse((offset < least) | (offset > most), f"blocks.mask.offset: needs {least} to {most}", offset)
    slots = None
    if isinstance(blocks.mask, Bits):
        slots = _check_slots(blocks.mask.slot, blocks.forward.partial, blocks.mask.words, "blocks.mask.slot")
    if blocks.forward.alike:
        _check_alike(blocks.forward, rows, "blocks.forward", "blocks.forward.alike", may_be_empty=False)
    if blocks.forward.nested:
        check_nested(blocks, rows)
    if blocks.backward is None:
        return
    backward = _check_entries(blocks.backward, "blocks.backward", cols, rows, "m_block")
    if blocks.schedule.alike:
        _check_alike(blocks.backward, cols, "blocks.backward", "blocks.schedule.alike", may_be_empty=True)
    check_halves(blocks, cols)
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


def _check_entries(lists: BlockLists, name: str, rows: Tensor, cols: Tensor, what: str) -> tuple[_Listed, _Listed]:
    """rows, cols: blocks of each sequence, int64 (batch,)."""
    checked = []
    for kind in ("partial", "full"):
        one, field = getattr(lists, kind), f"{name}.{kind}"
        checked.append(_check_list(one, field, rows, cols, what))
    width = int(cols.max()) if cols.numel() else 0
    keys = [(x.group * lists.rows + x.row) * width + x.col for x in checked]
    both = torch.cat(keys).sort().values
    twice = both[1:][both[1:] == both[:-1]]
    if twice.numel():
        at = int(twice[0])
        raise ValueError(
            f"{name}: needs partial and full blocks apart, got {twice.numel()} in both, first {what} {at % width} of "
            f"row {at // width % lists.rows}"
        )
    return checked[0], checked[1]


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


def _check_sequences(order: SequenceOrder, tiles: Tensor, positions: Tensor | None, name: str) -> None:
    """tiles: those of each sequence, int64 (batch,); positions: launch positions that go with the order."""
    every = torch.arange(len(tiles), device=tiles.device)
    if not torch.equal(order.sequence.sort().values.long(), every):
        raise ValueError(f"{name}.sequence: needs every sequence once, got {order.sequence.tolist()[:16]}")
    if not torch.equal(order.start[1:].long(), tiles[order.sequence.long()].cumsum(0)) or int(order.start[0]) != 0:
        raise ValueError(
            f"{name}.start: needs sums of the sequences' tiles, {tiles.tolist()[:16]} by number, got "
            f"{order.start.tolist()[:16]}"
        )
    if positions is not None:
        _check_own_first(positions, tiles, name)


def _check_own_first(positions: Tensor, tiles: Tensor, name: str) -> None:
    """tiles: as for `_check_sequences`; positions of one sequence may serve all."""
    own = positions < tiles.view(-1, 1, 1)
    if bool((own[..., 1:] > own[..., :-1]).any()):
        raise ValueError(f"{name}: needs each sequence's own blocks before those past its end")


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


def _check_alike(lists: BlockLists, rows: Tensor, name: str, promise: str, *, may_be_empty: bool) -> None:
    """Refuses lists of which two rows differ. rows: blocks of each sequence, int64 (batch,); promise: the field that
    says that rows are alike; may_be_empty: rows without blocks of either kind may differ from others."""
    either = lists.partial.count + lists.full.count
    of_list = rows.min().view(1) if lists.partial.batch == 1 else rows
    there = torch.arange(lists.rows, device=either.device) < of_list.view(-1, 1, 1)
    there = there & (either > 0) if may_be_empty else there.expand_as(either)
    if not lists.rows:
        return
    first = there.to(torch.int8).argmax(-1, keepdim=True)  # of each (sequence, head)
    for kind in ("partial", "full"):
        one: BlockList = getattr(lists, kind)
        differs = (there & (one.count != one.count.gather(-1, first))).flatten()
        e = entries(one)
        row, place = e.row[e.valid], e.place[e.valid]
        of_first = place - (one.begin - one.begin.gather(-1, first)).flatten()[row]
        differs[row[one.index[place] != one.index[of_first.clamp(0, max(one.capacity - 1, 0))]]] = True
        if bool(differs.any()):
            row_of = int(differs.nonzero()[0]) % one.rows
            raise ValueError(
                f"{name}.{kind}: needs the same blocks in every row, as {promise} says, row {row_of} differs"
            )


def _check_order(blocks: BlockSparse) -> None:
    assert blocks.backward is not None and blocks.order is not None
    truth = write_order(blocks.backward, blocks.schedule, blocks.m_blocks)
    for kind in ("partial", "full"):
        e = entries(getattr(blocks.backward, kind))
        place = e.place[e.valid]
        got, rank = getattr(blocks.order, kind)[place], getattr(truth, kind)[place]
        wrong = (got != rank).nonzero().flatten()
        if wrong.numel():
            at = int(wrong[0])
            raise ValueError(
                f"blocks.order.{kind}: needs the {blocks.schedule.kind} schedule's ranks, {int(rank[at])} at element "
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
