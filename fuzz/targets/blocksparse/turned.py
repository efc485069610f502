"""Lists of a full mask that no builder makes: each row of the backward lists begins with its third block, and the query
heads of a group are in one unit, whatever a launch's size.

The last blocks of a head are then neighbours of the next head's first ones. Kernels take such lists: rows need not
ascend where they are not merged, and rows that are alike may have any order (`BlockSparse`, `Schedule`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzz.core.case import Case
from fuzz.core.support import Rule
from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse
from kernels.blocksparse.lists.write_order import with_order

TURNED = "turned"  # a value of the option `schedule`


def rule() -> Rule:
    """Refusal of other masks' lists, and of what makes lists anew."""
    return Rule("turned lists of other masks than a full one, or of keys in two calls", _elsewhere)


def _elsewhere(case: Case) -> bool:
    given = case.variant
    return given.get("schedule") == TURNED and (given.get("mask") != "none" or given.get("keys") == "split")


def turned(blocks: BlockSparse) -> BlockSparse:
    """The blocks with every row of the backward lists begun at its third block, in an order of one unit for each KV
    head. blocks: of a full mask, with backward lists, on the CPU."""
    assert blocks.backward is not None
    full = blocks.backward.full
    count, index = full.to_padded(max(blocks.m_blocks, 1))
    at = torch.arange(index.shape[-1])
    place = torch.where(at < count[..., None], (at + 2) % count.clamp(min=1)[..., None], at)
    backward = BlockLists(blocks.backward.partial, BlockList.padded(count, index.gather(-1, place)))
    return with_order(replace(blocks, backward=backward, merged=False), replace(blocks.schedule, group_split=1))
