"""Location: where a tensor is wrong, in numbers for readers and as a normalised pattern for the signature.

The pattern uses few words, so that two cases of one bug get the same ones whatever their sizes. It is read from the
rows that are wrong, in this order: which heads, which sequences, which rows, and which part of the head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.finding import Location

TILE = 64
MOST = 0.6  # of the rows: 'all'


def position(name: str, index: Sequence[int]) -> str:
    """'batch 0, head 1, row 5, column 3' for an index into an output in the problem's layout; LSE has no column.

    Padded tensors are (batch, head, row, column) and (batch, head, row) for lse, packed ones (row, head, column) and
    (head, row) for lse.
    """
    if name == "lse":
        axes = ("batch", "head", "row")[-len(index) :]
    else:
        axes = ("batch", "head", "row", "column") if len(index) == 4 else ("row", "head", "column")
    return ", ".join(f"{axis} {at}" for axis, at in zip(axes, index, strict=True))


def locate(bad: Tensor, valid: Tensor, worst: tuple[int, int, int], *, cols: Tensor | None = None) -> Location:
    """Describes the wrong rows of a tensor.

    bad    bool (batch, heads, rows), at least one True; on any device
    valid  bool, broadcastable to bad: rows that exist (False in padding)
    worst  (batch, head, row) of the worst one
    cols   bool (dim,): the elements of a row that are wrong anywhere; None when all are or it does not apply
    """
    bad = (bad & valid).cpu()
    valid = valid.expand(bad.shape).cpu()
    batch, head, row = worst
    here = bad[batch, head].nonzero().flatten().tolist() or [row]
    rows = (min(here), max(here) + 1)
    width = _span(cols) if cols is not None else None
    tile = (row // TILE * TILE, min(row // TILE * TILE + TILE, bad.shape[-1]))
    return Location(batch, head, rows, width, tile, pattern(bad, valid, cols))


def pattern(bad: Tensor, valid: Tensor, cols: Tensor | None = None) -> str:
    """The normalised location, one of: 'first head', 'later heads', 'some heads', 'first sequence', 'later sequences',
    'some sequences', 'one row', 'first rows', 'last tile', 'last row', 'row tail', 'all', 'scattered'; with ', dim
    tail' where only the end of the rows' elements is wrong. Arguments as for `locate`, on the CPU."""
    end = ", dim tail" if cols is not None and _is_tail(cols) else ""
    return (
        _of_axis(bad, valid, 1, "head", "heads")
        or _of_axis(bad, valid, 0, "sequence", "sequences")
        or _of_rows(bad, valid)
    ) + end


def _of_axis(bad: Tensor, valid: Tensor, axis: int, one: str, many: str) -> str:
    """Heads (or sequences) that are clean while others are wrong; '' where every one has wrong rows."""
    others = [at for at in range(3) if at != axis]
    there = valid.any(dim=others[1]).any(dim=others[0])
    hit = bad.any(dim=others[1]).any(dim=others[0])[there]
    if hit.all() or not hit.any() or len(hit) < 2:
        return ""
    first = int(hit.nonzero()[0])
    if first == 0:
        return f"first {one}" if int(hit.sum()) == 1 else f"some {many}"
    return f"later {many}" if hit[first:].float().mean() > 0.5 else f"some {many}"


def _of_rows(bad: Tensor, valid: Tensor) -> str:
    share = bad.sum() / valid.sum().clamp_min(1)
    if share >= MOST:
        return "all"
    lengths = valid.sum(-1, keepdim=True)
    position = torch.arange(bad.shape[-1]).expand(bad.shape)
    from_end = lengths - 1 - position
    at = position[bad]
    if not at.numel():
        return "scattered"
    if bool((from_end[bad] == 0).all()) and bool((lengths > 1).any()):
        return "last row"
    if int(at.unique().numel()) == 1:
        return "one row"
    last_tile = (lengths - 1) // TILE * TILE
    if bool((position >= last_tile)[bad].all()) and bool((last_tile > 0).any()):
        return "last tile"
    if int(at.max()) < TILE and int(lengths.max()) > TILE:
        return "first rows"
    if bool((position >= lengths // 2)[bad].all()):
        return "row tail"
    if int(at.max()) < int(lengths.max()) // 2:
        return "first rows"
    return "scattered"


def _span(cols: Tensor) -> tuple[int, int] | None:
    at = cols.nonzero().flatten().tolist()
    return (at[0], at[-1] + 1) if at else None


def _is_tail(cols: Tensor) -> bool:
    span = _span(cols.cpu())
    return span is not None and span[0] >= max(len(cols) // 2, 1) and span[1] == len(cols)
