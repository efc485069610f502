"""The kernel's counts of tiles beside those that a call's mask leaves: a kernel that visits empty tiles is right, and
no faster than one without a mask.

A tile is empty where the mask tensor keeps no pair of it; the flag for causality ends a row of tiles, and pairs beyond
a sequence count for nothing. Wide loads and words of 32 keys reach past a sequence's last key: what lies there may make
a tile visited.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuzz.core.target import DeviceError
from fuzz.core.verdict import Finding, Location
from oracles.problem import AnyProblem

REACH = 32  # keys: no load of a mask begins before a sequence's end and reaches further


def check_tiles(tiles: Tensor, problem: AnyProblem, given: dict[str, Any], tile_m: int, tile_n: int) -> None:
    """Compares `Answer.tiles` of a forward pass with what the arguments `given` leave to visit.

    tiles  (batch, heads_q, tiles of queries, 2): visited, skipped
    Raises DeviceError where more were visited than hold a pair, or where the two do not add up.
    """
    counted = tiles.long()
    blocks = counted.shape[2]
    most, every = torch.zeros_like(counted[..., 0]), torch.zeros_like(counted[..., 0])
    mask = mask_of(given, problem)
    for batch, (len_q, len_k) in enumerate(lengths_of(problem)):
        columns = last_tiles(given.get("causal"), len_q, len_k, blocks, tile_m, tile_n).to(tiles.device)
        every[batch] = columns
        most[batch] = columns
        if mask is not None and problem.len_k and blocks:
            seen = torch.arange(-(-problem.len_k // tile_n), device=tiles.device) < columns[:, None]
            most[batch] = (tiles_with_a_pair(mask, batch, len_q, len_k, tile_m, tile_n) & seen).sum(-1)
    visited, total = counted[..., 0], counted.sum(-1)
    if not torch.equal(total, every):
        _fail(f"visited and skipped tiles add up to {int(total.sum())}, and there are {int(every.sum())}", "sum")
    if bool((visited > most).any()):
        _fail(f"{int(visited.sum())} tiles of scores were visited, of which {int(most.sum())} hold a pair", "visited")


def lengths_of(problem: AnyProblem) -> list[tuple[int, int]]:
    """Lengths as the kernel knows them: padding is said by the mask."""
    if problem.layout == "packed":
        return list(zip(problem.lengths_q, problem.lengths_k, strict=True))
    return [(problem.len_q, problem.len_k)] * problem.batch


def mask_of(given: dict[str, Any], problem: AnyProblem) -> Tensor | None:
    """The mask tensor of a call as bool (batch or 1, heads_q or 1, len_q or 1, len_k); None without one."""
    mask = given.get("mask")
    if mask is None:
        return None
    if mask.dtype == torch.int32:
        from kernels.dynamic_mask import unpack_mask

        mask = unpack_mask(mask, problem.len_k)
    mask = mask.expand(*mask.shape[:3], problem.len_k)
    groups = problem.heads_q // max(mask.shape[1], 1)
    return mask.repeat_interleave(groups, 1) if mask.shape[1] > 1 and groups > 1 else mask


def last_tiles(causal: str | None, len_q: int, len_k: int, blocks: int, tile_m: int, tile_n: int) -> Tensor:
    """(blocks,) how many tiles of keys each tile of queries looks at; none where it has no query."""
    first = tile_m * torch.arange(blocks)
    last = torch.full((blocks,), len_k)
    if causal is not None:
        last = (first + tile_m + (len_k - len_q if causal == "bottom_right" else 0)).clamp(0, len_k)
    return torch.where(first < len_q, (last + tile_n - 1) // tile_n, 0)


def tiles_with_a_pair(mask: Tensor, batch: int, len_q: int, len_k: int, tile_m: int, tile_n: int) -> Tensor:
    """bool (heads or 1, tiles of queries, tiles of keys): whether the mask of a sequence keeps any pair of the tile."""
    _, _, rows, columns = mask.shape
    kept = mask[batch if mask.shape[0] > 1 else 0].clone()
    reach = -(-len_k // REACH) * REACH
    kept[:, :, reach:] = False
    kept[:, len_q if rows > 1 else rows :] = False
    pads = (0, -columns % tile_n, 0, -rows % tile_m)
    return torch.nn.functional.pad(kept, pads).unflatten(2, (-1, tile_n)).unflatten(1, (-1, tile_m)).any(4).any(2)


def _fail(message: str, place: str) -> None:
    raise DeviceError("fail", (Finding("protocol", "tiles", message, place=Location(pattern=place)),), {})
