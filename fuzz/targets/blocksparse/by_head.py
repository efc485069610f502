"""Lists of a causal mask, as a band, in which heads have lists of their own: some do not see the first blocks of keys.

The band is that of all heads, and says nothing of it: those heads' lists leave the blocks out. No builder makes such
lists, and kernels take them, in pairs of nested rows too: a row has all blocks of the row before as it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fuzz.core.case import Case
from fuzz.core.support import Rule
from kernels.blocksparse.lists.lpt import with_lpt_order
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from oracles.masks import And, Causal, Mask, Not, PerHead, Prefix
from oracles.problem import AnyProblem


def causal_by_head(*hidden: int) -> PerHead:
    """A causal mask, aligned at the bottom right. Its head h does not see the first hidden[h mod len(hidden)] keys."""
    causal = Causal("bottom_right")
    return PerHead(tuple(And((causal, Not(Prefix(keys)))) if keys else causal for keys in hidden))


def hidden_keys(mask: Mask) -> tuple[int, ...]:
    """How many first keys each part of a `causal_by_head` mask hides, as it was given them; empty for other masks."""
    if not isinstance(mask, PerHead):
        return ()
    found = []
    for part in mask.of:
        match part:
            case Causal():
                found.append(0)
            case And((Causal(), Not(Prefix(keys)))):
                found.append(keys)
            case _:
                return ()
    return tuple(found) if mask == causal_by_head(*found) else ()


def rule() -> Rule:
    """Refusal of what has lists made anew, of an order for each head, and of blocks that a head sees in part for what
    it does not see."""
    return Rule("lists of a band for each head beside others, in an order of each, or of parts of blocks", _elsewhere)


def _elsewhere(case: Case) -> bool:
    given, keys = case.variant, hidden_keys(case.problem.mask)
    if not keys or given.get("mask") != "band":
        return False
    beside = any(given.get(name) for name in ("wide", "paired")) or given.get("lists") == "halved"
    apart = given.get("keys") == "split" or given.get("schedule") == "shuffled"
    within = any(one % int(given.get("tile_n", 128)) for one in keys)
    return beside or apart or within or case.problem.ragged or case.problem.layout == "packed"


def first_blocks(problem: AnyProblem, tile_n: int) -> list[int]:
    """The first block of keys that each query head may see; empty where heads do not differ so."""
    hidden = hidden_keys(problem.mask)
    return [hidden[head % len(hidden)] // tile_n for head in range(problem.heads_q if hidden else 0)]


def by_head(blocks: BlockSparse, first: Sequence[int], n_blocks: int) -> BlockSparse:
    """The blocks with a list for each query head h, without what comes before block first[h]. blocks: of a band, alike
    in all sequences, on the CPU. n_blocks: tiles of the keys."""
    least = torch.tensor(first)[:, None, None]
    kept = []
    for one in (blocks.forward.partial, blocks.forward.full):
        count, index = one.to_padded(max(n_blocks, 1))
        there = (torch.arange(index.shape[-1]) < count[..., None]) & (index >= least)
        order = (~there).int().argsort(dim=-1, stable=True)
        kept.append(BlockList.padded(there.sum(-1), index.expand(there.shape).gather(-1, order)))
    made = replace(blocks, forward=BlockLists(*kept, nested=blocks.forward.nested))
    if blocks.backward is None:
        return with_lpt_order(made)
    return with_order(with_lpt_order(with_backward(made, n_blocks)))
