"""Block lists and packed bits from any token mask: a bool tensor for small problems, a predicate for larger ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.blocksparse.lists.bitmask import pack, shared
from kernels.blocksparse.lists.builder import LengthsLike, Shape, finished, shape_of
from kernels.blocksparse.lists.schedule import ASCENDING, Schedule
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse

Predicate: TypeAlias = Callable[[int, int, Tensor, Tensor], Tensor]


def from_mask(
    mask: Tensor,
    lengths_q: LengthsLike | None = None,
    lengths_k: LengthsLike | None = None,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = ASCENDING,
    backward: bool = True,
) -> BlockSparse:
    """Lists from mask bool (batch|1, heads_q|1, len_q, len_k), True = keep; what lies past a sequence's lengths is not
    read.

    lengths  of the sequences where shorter than the mask; None: all as long as it
    A block is full where every query of its sequence sees every key of its sequence in it. Holds the mask a few times.
    """
    if mask.dtype != torch.bool or mask.dim() != 4:
        raise ValueError(f"mask: needs bool (batch|1, heads|1, len_q, len_k), got {mask.dtype} {tuple(mask.shape)}")
    longest = (mask.shape[2], mask.shape[3])
    lengths_q, lengths_k = (
        most if given is None else given for given, most in zip((lengths_q, lengths_k), longest, strict=True)
    )
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, mask.device)
    if shape.longest_q > longest[0] or shape.longest_k > longest[1]:
        raise ValueError(f"mask: needs {shape.longest_q} queries and {shape.longest_k} keys, got {longest}")
    batch = _sequences(mask.shape[0], mask.shape[1], shape, "mask")
    mask = mask[:, :, : shape.longest_q, : shape.longest_k].expand(batch, -1, -1, -1)
    strips = [
        _strip(mask[:, :, m * tile_m : (m + 1) * tile_m].flatten(0, 1), m, shape, batch) for m in range(shape.m_blocks)
    ]
    return _assembled(strips, shape, (batch, mask.shape[1]), schedule, backward)


def from_predicate(
    keep: Predicate,
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    heads: int = 1,
    batch: int | None = None,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = ASCENDING,
    backward: bool = True,
    device: torch.device | str | None = None,
) -> BlockSparse:
    """Lists from keep(sequence, head, q, k) -> bool, broadcast of positions q (rows, 1) and k (1, keys), evaluated one
    row of tiles at a time. heads, batch: how many differ, 1 where all are alike (batch None: as many as there are
    lengths). Raises ValueError where keep returns anything else."""
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, device)
    batch = _sequences(1 if batch is None else batch, heads, shape, "batch, heads")
    k = torch.arange(shape.longest_k, device=shape.len_q.device)[None, :]
    strips = []
    for m in range(shape.m_blocks):
        q = torch.arange(m * tile_m, min((m + 1) * tile_m, shape.longest_q), device=k.device)[:, None]
        size = (q.shape[0], k.shape[1])
        rows = [_kept(keep(b, h, q, k), size) for b in range(batch) for h in range(heads)]
        strips.append(_strip(torch.stack(rows), m, shape, batch))
    return _assembled(strips, shape, (batch, heads), schedule, backward)


def from_grid(
    grid: Tensor,
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule | None = None,
    backward: bool = True,
) -> BlockSparse:
    """Lists from a grid of blocks, each full or not there: bool (batch|1, heads_q|1, m_blocks, n_blocks). Cells past a
    sequence's end are not read. schedule None: LPT (the longest KV tiles first), which on the model takes 0.8 to 1.04
    of the time of the other directions on random grids. Raises ValueError for a grid of another dtype or size."""
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, grid.device)
    if grid.dtype != torch.bool or grid.dim() != 4 or grid.shape[2:] != (shape.m_blocks, shape.n_blocks):
        needs = f"bool (batch|1, heads|1, {shape.m_blocks}, {shape.n_blocks})"
        raise ValueError(f"grid: needs {needs}, got {grid.dtype} {tuple(grid.shape)}")
    batch = _sequences(grid.shape[0], grid.shape[1], shape, "grid")
    m, n = (torch.arange(size, device=grid.device) for size in grid.shape[2:])
    there = ((m * tile_m < shape.len_q[:, None])[:, :, None] & (n * tile_n < shape.len_k[:, None])[:, None])[:, None]
    full = list_of_grid(grid.expand(batch, -1, -1, -1) & there)
    nothing = BlockList.empty(batch, grid.shape[1], shape.m_blocks, grid.device)
    return finished(BlockLists(nothing, full), None, shape, schedule, backward)


def _kept(kept: Tensor, size: tuple[int, int]) -> Tensor:
    if not isinstance(kept, Tensor) or kept.dtype != torch.bool:
        got = kept.dtype if isinstance(kept, Tensor) else type(kept).__name__
        raise ValueError(f"keep: needs to return a bool tensor, got {got}")
    return kept.expand(size)


def _strip(mask: Tensor, m: int, shape: Shape, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """One row of tiles of every (sequence, head): kinds (groups, n_blocks) of partial and of full blocks, and the
    packed partial ones in their order. mask: bool (groups, queries, longest_k)."""
    heads = len(mask) // batch
    first = m * shape.tile_m
    row = first + torch.arange(shape.tile_m, device=mask.device)
    col = torch.arange(shape.n_blocks * shape.tile_n, device=mask.device)
    len_q, len_k = (x.expand(batch).repeat_interleave(heads)[:, None] for x in (shape.len_q, shape.len_k))
    there = ((row < len_q)[:, :, None] & (col < len_k)[:, None, :]).unflatten(2, (shape.n_blocks, shape.tile_n))
    mask = pad(mask, (0, len(col) - mask.shape[2], 0, shape.tile_m - mask.shape[1]))
    tiles = mask.unflatten(2, (shape.n_blocks, shape.tile_n)) & there
    some = tiles.any(3).any(1)
    full = some & (tiles | ~there).all(3).all(1)
    partial = some & ~full
    return partial, full, pack(tiles.transpose(1, 2)[partial])


def _assembled(
    strips: list[tuple[Tensor, Tensor, Tensor]],
    shape: Shape,
    groups: tuple[int, int],
    schedule: Schedule,
    backward: bool,
) -> BlockSparse:
    partial, full = (
        torch.stack([strip[i] for strip in strips], 1).view(*groups, shape.m_blocks, shape.n_blocks)
        if strips
        else torch.zeros((*groups, 0, shape.n_blocks), dtype=torch.bool, device=shape.len_q.device)
        for i in range(2)
    )
    # The strips' blocks come m by m; the list's go (sequence, head) by (sequence, head).
    where = [strip[0].nonzero() for strip in strips]
    place = [group * shape.m_blocks + m for m, (group, _) in enumerate(w.unbind(1) for w in where)]
    none = torch.zeros((0, shape.tile_m, shape.tile_n // 32), dtype=torch.int32, device=shape.len_q.device)
    words = torch.cat([none, *(strip[2] for strip in strips)])
    if place:
        words = words[torch.sort(torch.cat(place), stable=True).indices]
    words, slot = shared(words)
    forward = BlockLists(list_of_grid(partial), list_of_grid(full))
    slot = slot if len(slot) else slot.new_zeros(1)
    return finished(forward, Bits(words, slot), shape, schedule, backward)


def list_of_grid(grid: Tensor) -> BlockList:
    """The list of the True cells of a bool grid (batch, heads, rows, columns), rows ascending."""
    return BlockList.csr(grid.sum(-1), grid.nonzero()[:, -1])


def _sequences(batch: int, heads: int, shape: Shape, name: str) -> int:
    """Number of sequences that there are lists for."""
    if batch < 1 or heads < 1:
        raise ValueError(f"{name}: needs one sequence and one head at least, got {batch} and {heads}")
    if batch != shape.batch and 1 not in (batch, shape.batch):
        raise ValueError(f"{name}: needs {shape.batch} sequences (or 1) as there are lengths, got {batch}")
    return max(batch, shape.batch)
