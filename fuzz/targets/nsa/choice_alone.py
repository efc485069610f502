"""The choice of blocks by itself: the kernel that chooses runs on scores that are drawn, of 33 to 64 blocks.

A session's calls choose among fewer, have one of six kernels each (three causalities, two layouts), and hardly ever
equal scores. Here every kernel has rows of a few numbers, rows of neighbouring floating-point numbers, and any.
The right choice is made by a stable sort.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import torch
from msgspec import structs
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Location
from fuzz.targets.nsa.lists_alone import operands_of
from fuzz.tensors.guard_bands import Guarded
from kernels.nsa.launches import choose
from kernels.nsa.operands import CAUSAL, Operands
from oracles.native_sparse.problem import NativeSparse

BLOCKS = (33, 64)  # of the longest sequence
LARGEST_BLOCK = 32  # tokens
POISON = 0x3F  # in memory that the kernel is to write: bytes of 0xFF would be the -1 of a place that is not used
NUMBERS = (1, 2, 5, 16, 24), (31, 33, 48, 64)  # blocks that a tile chooses, at most: few in one call, many in another


def check(case: Case, injection: str, device: str) -> list[Finding]:
    """Finding for the first call whose choice is not the right one."""
    draw = random.Random(case.inputs.seed)
    for problem in problems_of(case, draw):
        operands = operands_of(problem, injection, device)
        score = scores(operands, draw.randint(0, 2**31))
        with Guarded(POISON) as guard:
            chosen = _chosen(operands, score, draw.randint(0, operands.settings.tiles))
        if found := guard.check():
            return found
        if not torch.equal(chosen, right_choice(operands, score)):
            what = f"blocks chosen of {operands.settings.blocks} by their scores, {problem.layout}, {problem.causal}"
            return [Finding("selection", "blocks", f"{what}: not the largest ones", place=Location(pattern="choice"))]
    return []


def problems_of(case: Case, draw: random.Random) -> Iterator[NativeSparse]:
    """Two problems for each kernel: lengths and how many blocks are chosen are drawn."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    block = min(p.compress_block_size, LARGEST_BLOCK)
    for layout, causal, numbers in product(("padded", "packed"), CAUSAL, NUMBERS):
        longest = block * draw.randint(*BLOCKS) - draw.choice((0, 1, block - 1))
        shorter = (draw.randint(1, longest), draw.randint(longest // 2, longest)) if layout == "packed" else ()
        yield structs.replace(
            p,
            lengths=(*shorter, longest),
            layout=layout,
            causal=causal,
            compress_block_size=block,
            num_selected_blocks=draw.choice(numbers),
            num_cmp_selected_blocks=None,
            heads_q=4,
            heads_kv=2,
            q_tile=64,
        )


def scores(operands: Operands, seed: int) -> Tensor:
    """float32 (batch, heads_q, tiles, blocks): a row has three numbers with both zeros, or four neighbours, or any."""
    s = operands.settings
    shape = (operands.batch, operands.heads_q, s.tiles)
    generator = torch.Generator().manual_seed(seed)
    few = torch.randint(-1, 2, (*shape, s.blocks), generator=generator) * torch.tensor(0.5)
    few = torch.where(torch.rand(few.shape, generator=generator) < 0.5, few, -few)
    base = torch.randn((*shape, 1), generator=generator).view(torch.int32)
    near = (base + torch.randint(0, 4, (*shape, s.blocks), generator=generator, dtype=torch.int32)).view(torch.float32)
    other = torch.randn((*shape, s.blocks), generator=generator)
    kind = torch.randint(0, 3, (*shape, 1), generator=generator)
    return torch.where(kind == 0, few, torch.where(kind == 1, near, other)).to(operands.q.device)


def _chosen(operands: Operands, score: Tensor, cut: int) -> Tensor:
    """int32 (batch, heads_q, tiles, places) by the kernel, for the tiles before `cut` and for those after."""
    s, group = operands.settings, operands.heads_q // operands.heads_kv
    batch, heads, tiles, width = score.shape
    blocks = torch.empty((batch, heads, tiles, min(s.chosen, s.blocks)), dtype=torch.int32, device=score.device)
    for first, last in ((0, cut), (cut, tiles)):
        if first < last:
            part = score[:, :, first:last].unflatten(1, (-1, group)).transpose(2, 3)
            part = part.reshape(batch, heads // group, (last - first) * group, width).contiguous()
            operands.launcher.triton(choose(operands, part, blocks, first, last))
    return blocks


def right_choice(operands: Operands, score: Tensor) -> Tensor:
    """int32 (batch, heads_q, tiles, places): the allowed blocks of the largest scores, of equal ones the first,
    ascending, then -1."""
    s, device = operands.settings, score.device
    block, tile = torch.arange(s.blocks, device=device), torch.arange(s.tiles, device=device)[:, None]
    length = operands.lengths.to(device).view(-1, 1, 1, 1)
    allowed = (block * s.block < length) & (tile * s.tile < length)
    if s.causal == 1:
        allowed = allowed & (block * s.block < (tile + 1) * s.tile)
    elif s.causal == 2:
        allowed = allowed & ((block + 1) * s.block <= tile * s.tile + 1)
    allowed = allowed.expand(score.shape)
    ranked = torch.where(allowed, score, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    first = ranked[..., : min(s.chosen, s.blocks)]
    found = torch.where(allowed.gather(-1, first), first, s.blocks).sort(-1).values
    return torch.where(found < s.blocks, found, -1).to(torch.int32)
