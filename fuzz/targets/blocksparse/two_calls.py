"""Keys in two calls: the even blocks of keys in one, the odd ones in the other, put together by their LSEs.

Block lists say which keys a call sees, so the same q, k and v go to both. Each call's LSE has a gradient, which nothing
else asks the kernels for (see merge_by_lse.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fuzz.core.case import CODED, Case
from fuzz.core.support import Rule
from fuzz.core.target import METADATA_ONLY
from kernels.blocksparse.lists.lpt import with_lpt_order
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse, entries, exclusive_sum
from kernels.blocksparse.lists.write_order import with_order
from oracles.problem import AnyProblem

KEYS = ("whole", "split")  # values of the option `keys`


def splits(case: Case) -> bool:
    """True if the case's keys are in two calls."""
    return case.variant.get("keys") == "split"


def useful(problem: AnyProblem, tile_n: int) -> bool:
    """True if both calls have blocks of keys, and their LSEs a gradient."""
    return problem.backward and problem.len_k > tile_n


def rule() -> Rule:
    """Refusal of what is not asked in two calls."""
    why = "keys in two calls of a forward pass, of metadata alone, or of inputs whose answer may be exact"
    return Rule(why, lambda case: splits(case) and not _asked(case))


def _asked(case: Case) -> bool:
    return (
        case.problem.backward and bool(case.variant.get(METADATA_ONLY, True)) and case.inputs.distribution not in CODED
    )


def keys_of_parity(blocks: BlockSparse, parity: int) -> BlockSparse:
    """The blocks of keys whose number is even (parity 0) or odd (1), in lists of the same rows; ranks and launch orders
    are computed for them. blocks: on the CPU, in any layout."""
    forward, places = listed(blocks.forward, parity, by_row=False)
    backward, mask = blocks.backward, blocks.mask
    if isinstance(mask, Bits):
        mask = replace(mask, slot=beside(mask.slot, places))
    if backward is not None:
        backward, places = listed(backward, parity, by_row=True)
        if isinstance(mask, Bits) and mask.slot_backward is not None:
            mask = replace(mask, slot_backward=beside(mask.slot_backward, places))
    wide = None if blocks.wide is None else keys_of_parity(blocks.wide, parity)
    made = replace(blocks, forward=forward, backward=backward, mask=mask, order=None, wide=wide)
    made = with_order(made) if blocks.order is not None else made
    if blocks.lpt is None:
        return made
    made = with_lpt_order(made)
    assert made.lpt is not None
    return replace(made, lpt=replace(made.lpt, queries=blocks.lpt.queries, keys=blocks.lpt.keys))


def listed(lists: BlockLists, parity: int, *, by_row: bool) -> tuple[BlockLists, Tensor]:
    """Lists without the key blocks of the other parity, which are rows or entries; places of the partial entries."""
    found, places = [], []
    for one in (lists.partial, lists.full):
        every = entries(one)
        block = every.row % max(one.rows, 1) if by_row else one.index[every.place]
        kept = every.valid & (block % 2 == parity)
        count = torch.zeros(one.count.numel(), dtype=torch.int64).index_add_(0, every.row[kept], kept[kept].long())
        count = count.view(one.count.shape).to(torch.int32)
        places.append(every.place[kept])
        found.append(BlockList(count, beside(one.index, places[-1]), exclusive_sum(count)))
    return BlockLists(found[0], found[1], alike=lists.alike and not by_row), places[0]


def beside(x: Tensor, places: Tensor) -> Tensor:
    """Elements of an index, or of what is parallel to it; never empty."""
    return x[places] if len(places) else x.new_zeros(1)
