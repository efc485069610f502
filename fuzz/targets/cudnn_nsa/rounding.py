"""Problems that a session draws in place of others, so that lists say most masks and most kernels compile."""

from __future__ import annotations

import zlib

import torch
import torch.nn.functional as F
from msgspec.structs import replace

from fuzz.targets.cudnn_nsa.block_lists import BLOCKS, lists_of
from oracles.masks import And, Blocks, Causal, Mask, PerBatch, PerHead, varies_by_batch, varies_by_head
from oracles.problem import AnyProblem, mask_tile

GROUPS = (3, 5, 6, 7, 9, 10, 11, 12, 13, 15, 16)  # query heads of a KV head that draws seldom have
PAIRS = 1 << 15  # of a problem whose query heads become more


def expressible(p: AnyProblem) -> AnyProblem:
    """The problem with the nearest mask that lists can say, and mostly head dims that the kernel is known to be right
    for. One in 16 stays as it is."""
    number = zlib.crc32(repr(p).encode())
    if number % 16 == 0:
        return p
    number //= 16
    block, causal, cut = BLOCKS[number % 4], number // 4 % 2 == 1, number // 8 % 8 == 0
    number //= 64
    if number % 16:
        p = replace(p, dim=-(-p.dim // 16) * 16)
    number //= 16
    if number % 16:
        p = replace(p, dim_v=-(-p.dim_v // 64) * 64)
    number //= 16
    group = GROUPS[number // 4 % len(GROUPS)]
    if number % 4 == 0 and p.pairs // p.group * group <= PAIRS:
        p = replace(p, heads_q=p.heads_kv * group)
    return _with_lists(p, block, causal, cut)


def _with_lists(p: AnyProblem, block: int, causal: bool, cut: bool) -> AnyProblem:
    """The problem with its mask's blocks that any query head of a KV head sees a key of; without `causal` and `cut` but
    those which a sequence's end cuts."""
    found = lists_of(p, block, causal)
    if found is not None and (cut or not found.cut):
        return p
    grids = [_sequence(p, sequence, block, whole=not causal and not cut) for sequence in range(p.batch)]
    if not p.ragged and not varies_by_batch(p.mask):
        grids = grids[:1]
    mask = grids[0] if len(grids) == 1 else PerBatch(tuple(grids))
    return replace(p, mask=And((mask, Causal())) if causal else mask)


def _sequence(p: AnyProblem, sequence: int, block: int, *, whole: bool) -> Mask:
    length = p.lengths_q[sequence]
    alike = not varies_by_head(p.mask)

    def grid(head: int) -> Mask:
        heads = range(head * p.group, (head + 1) * p.group) if not alike else range(1)
        kept = torch.stack([mask_tile(p, sequence, one, (0, length), (0, length), "cpu") for one in heads]).any(0)
        seen = F.pad(kept, (0, -length % block)).unflatten(1, (-1, block)).any(2) if length else kept
        if whole and length % block:
            seen = seen[:, :-1]
        return Blocks(1, block, tuple("".join(".F"[cell] for cell in row) for row in seen.tolist()))

    if alike:
        return grid(0)
    return PerHead(tuple(grid(head // p.group) for head in range(p.heads_q)))
