"""From a Problem's mask to lists of key blocks for each query and KV head.

A query sees all keys of the blocks that it lists, with `causal` those that are no later than itself. All query heads of
a KV head see the same. `lists_of` says what a mask is in these terms, or that it is none of these.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oracles.problem import AnyProblem, Problem, mask_tile

BLOCKS = (64, 16, 32, 128)  # keys of a block, the package's default first


@dataclass(frozen=True)
class SelectedBlocks:
    """A mask as lists.

    listed  bool (total_q, heads_kv, k_blocks): the blocks that a query sees a key of
    later   bool (total_q, heads_kv, k_blocks): blocks of its sequence of which a causal query sees no key, as they are
            later than it
    cut     whether a list names a block that the sequence's end cuts, of which not `causal` hides the rest
    """

    listed: Tensor
    later: Tensor
    cut: bool

    @property
    def counts(self) -> Tensor:
        """Number of blocks that a query lists: int32 (total_q, heads_kv)."""
        return self.listed.sum(-1, dtype=torch.int32)


def lists_of(problem: AnyProblem, block: int, causal: bool) -> SelectedBlocks | None:
    """The problem's mask in blocks of `block` keys; None where it is none of `causal`, or not, lists."""
    return _lists_of(problem.mask, problem.lengths_q, problem.heads_q, problem.heads_kv, block, causal)


@functools.lru_cache(maxsize=128)
def _lists_of(mask, lengths, heads_q, heads_kv, block, causal) -> SelectedBlocks | None:  # type: ignore[no-untyped-def]
    problem = Problem(lengths, lengths, heads_q, heads_kv, 8, 8, "float16", mask=mask)
    most = -(-max(lengths) // block)
    listed, later, cut = [], [], False
    for sequence, length in enumerate(lengths):
        tiles = [mask_tile(problem, sequence, head, (0, length), (0, length), "cpu") for head in range(heads_q)]
        grouped = torch.stack(tiles).unflatten(0, (heads_kv, problem.group))
        if not torch.equal(grouped, grouped[:, :1].expand_as(grouped)):
            return None
        kept = grouped[:, 0]
        seen = F.pad(kept, (0, -length % block)).unflatten(2, (-1, block)).any(3) if length else kept
        whole = seen.repeat_interleave(block, 2)[..., :length]
        at = torch.arange(length)
        if causal:
            whole = whole & (at <= at[:, None])
        if not torch.equal(kept, whole):
            return None
        blocks = seen.shape[2]
        cut = cut or (not causal and length % block != 0 and bool(seen[..., -1].any()))
        after = (torch.arange(blocks) * block > at[:, None]).expand(heads_kv, length, blocks)
        listed.append(F.pad(seen, (0, most - blocks)).transpose(0, 1))
        later.append(F.pad(after, (0, most - blocks)).transpose(0, 1))
    return SelectedBlocks(torch.cat(listed), torch.cat(later), cut)
