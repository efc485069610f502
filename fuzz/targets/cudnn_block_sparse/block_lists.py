"""From a Problem's mask to lists of KV blocks: which blocks the rows of a query block see, and how many keys of each.

The kernels' masks are whole blocks: all rows of a query block see the same blocks of keys, and of each block its first
keys, as many for every query block. `blocks_of` says what a mask is in these terms, or that it is none of these. What
no entry uses is filled with numbers that a kernel which reads them cannot survive.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.targets.cudnn_cute.lists import UNUSED
from oracles.problem import AnyProblem, Problem, dense_mask


@dataclass(frozen=True)
class SparseBlocks:
    """A mask in blocks.

    listed  bool (batch, heads, q_blocks, k_blocks): the blocks that a query block sees
    keys    int32 (batch, heads, k_blocks): the keys that are seen of a block; 0 where no query block lists it
    """

    listed: Tensor
    keys: Tensor

    @property
    def counts(self) -> Tensor:
        """Number of blocks that a query block sees: int32 (batch, heads, q_blocks)."""
        return self.listed.sum(-1, dtype=torch.int32)

    @property
    def fixed(self) -> int | None:
        """The number of blocks of every query block; None where they differ, or are 0."""
        least, most = int(self.counts.min()), int(self.counts.max())
        return least if least == most and least > 0 else None

    @property
    def size_rank(self) -> int:
        """Least number of axes with which a tensor of block sizes says `keys`: 1, 2 with the batch, 3 with the heads.
        Blocks that are not listed may have any size."""
        if _agree(self.keys.flatten(0, 1)):
            return 1
        return 2 if all(_agree(of_heads) for of_heads in self.keys) else 3


def blocks_of(problem: AnyProblem, block: int, packed: bool = False) -> SparseBlocks | None:
    """The problem's mask in blocks of `block` rows and `block` keys; None where it is none.

    packed  the rows are those of all the query heads of a KV head, by query and then by head; `heads` are KV heads
    """
    return _blocks_of(
        problem.mask, problem.lengths_q, problem.lengths_k, problem.heads_q, problem.heads_kv, block, packed
    )


@functools.lru_cache(maxsize=32)
def _blocks_of(mask, lengths_q, lengths_k, heads_q, heads_kv, block, packed) -> SparseBlocks | None:  # type: ignore[no-untyped-def]
    problem = Problem(lengths_q, lengths_k, heads_q, heads_kv, 8, 8, "float16", mask=mask)
    kept = dense_mask(problem).expand(problem.batch, heads_q, problem.len_q, problem.len_k)
    if packed:
        kept = kept.unflatten(1, (heads_kv, problem.group)).transpose(2, 3).flatten(2, 3)
    rows, len_k = kept.shape[2:]
    first = torch.arange(rows) // block * block
    if not torch.equal(kept, kept[:, :, first]):
        return None
    by_block = F.pad(kept[:, :, ::block], (0, -len_k % block)).unflatten(3, (-1, block))
    counts = by_block.sum(-1, dtype=torch.int32)  # batch, heads, q_blocks, k_blocks
    if not torch.equal(by_block, torch.arange(block) < counts[..., None]):
        return None
    keys = counts.amax(2)
    listed = counts > 0
    if not torch.equal(counts, torch.where(listed, keys[:, :, None], 0)):
        return None
    return SparseBlocks(listed, keys)


def size_tensor(blocks: SparseBlocks, rank: int) -> Tensor:
    """int32: the keys of each block with `rank` axes (SparseBlocks.size_rank or more), UNUSED where none is listed."""
    keys = blocks.keys
    if rank == 1:
        keys = keys.flatten(0, 1).amax(0)
    elif rank == 2:
        keys = keys.amax(1)
    return torch.where(keys > 0, keys, UNUSED).to(torch.int32).contiguous()


def _agree(keys: Tensor) -> bool:
    """True if rows of (rows, k_blocks) have the same keys of every block that they list."""
    most = keys.amax(0)
    return bool(((keys == most) | (keys == 0)).all())
