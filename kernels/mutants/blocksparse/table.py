"""Mutants of `kernels.blocksparse`: its arithmetic, its lists, and the protocol of its ordered adds.

`protocol` says what a bug makes of the ordered adds to dQ (NOTE [write order]), so that an oracle can predict whether
the backward pass still ends. Importing this file registers those of the files beside it too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from cutlass import Boolean, Float32, Int32, cute
from torch import Tensor

import kernels.mutants.blocksparse
from kernels.blocksparse.backward.dq_accumulator import wait
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse, WriteOrder, entries
from kernels.blocksparse.lists.write_order import write_order
from kernels.mutants.blocksparse.registration import (
    INJECTIONS,
    MUTANTS,
    BlockSparseMutant,
    Protocol,
    register_list_mutant,
    register_mutant,
)

__all__ = ["INJECTIONS", "MUTANTS", "BlockSparseMutant", "effective", "injections_for"]


def _listed(blocks: BlockSparse) -> BlockLists:
    assert blocks.backward is not None
    return blocks.backward


def _n_blocks(one: BlockList) -> Tensor:
    """The n block of each entry of a backward list: int32, parallel to its index."""
    e = entries(one)
    found = torch.zeros(one.capacity, dtype=torch.int32, device=one.index.device)
    found[e.place[e.valid]] = (e.row[e.valid] % one.rows).to(torch.int32)
    return found


def _lock_is_n_block_protocol(blocks: BlockSparse) -> Protocol:
    lists = _listed(blocks)
    return WriteOrder(_n_blocks(lists.partial), _n_blocks(lists.full)), None


def _order(blocks: BlockSparse) -> WriteOrder:
    if blocks.order is not None:
        return blocks.order
    return write_order(_listed(blocks), blocks.schedule, blocks.m_blocks)


def _releases(amount: int) -> Callable[[BlockSparse], Protocol]:
    def protocol(blocks: BlockSparse) -> Protocol:
        order = _order(blocks)
        return order, (torch.full_like(order.partial, amount), torch.full_like(order.full, amount))

    return protocol


@cute.jit
def _lock_is_n_block(rank: Int32, n_block: Int32) -> Int32:
    return n_block


register_mutant(
    "lock_is_n_block",
    "A KV tile waits for its own number instead of its rank among those that add to the dQ tile: never ends wherever a "
    "dQ tile is not met by all KV tiles from the first on.",
    "MagiAttention's port of FlashAttention-4's deterministic backward, varlen_full_1k: lock = n_block",
    backward={"lock_of": _lock_is_n_block},
    protocol=_lock_is_n_block_protocol,
)


@cute.jit
def _no_release(semaphore: cute.Pointer):
    pass


register_mutant(
    "release_missing",
    "No KV tile hands on the semaphore: never ends wherever two of them add to one dQ tile.",
    "invented, after the release that was skipped for tiles out of bounds",
    backward={"release": _no_release},
    protocol=_releases(0),
)


@cute.jit
def _release_two(semaphore: cute.Pointer):
    cute.arch.fence_acq_rel_gpu()
    cute.arch.red(semaphore, Int32(2), op="add", dtype="s32", sem="release", scope="gpu")


register_mutant(
    "release_twice",
    "Each KV tile counts as two: every second rank is skipped, and a CTA that has one waits forever.",
    "invented, after a release for an empty tile too",
    backward={"release": _release_two},
    protocol=_releases(2),
)


@cute.jit
def _step_that_begins(step: Int32, steps: Int32) -> Int32:
    return Int32(step % steps)


register_mutant(
    "released_one_step_early",
    "wgmma: a block is released in the step that adds its last dQ, not in the one after: the next KV tile's adds may "
    "come before them, and repeats differ in their last bits.",
    "invented, after the one step by which the adds of Hopper's main loop follow their products",
    backward={"ended_step": _step_that_begins},
)


@cute.jit
def _no_clear(semaphore: cute.Pointer):
    pass


register_mutant(
    "semaphores_not_cleared",
    "Semaphores start with what the memory held: never ends, or adds in any order, unless that was 0.",
    "FlashAttention-4's deterministic backward needs them zeroed for each launch",
    backward={"clear": _no_clear},
)


@cute.jit
def _no_wait(semaphore: cute.Pointer, lock: Int32):
    pass


register_mutant(
    "wait_missing",
    "KV tiles add to dQ in any order: repeats differ in their last bits, with more than two tiles adding, and what is "
    "added before the first one stores is lost.",
    "invented",
    backward={"wait": _no_wait},
)


@cute.jit
def _wait_for_first(semaphore: cute.Pointer, lock: Int32):
    if lock == 0:
        wait(semaphore, lock)


register_mutant(
    "only_the_first_waits",
    "Only rank 0 waits; the others add when they come: repeats differ in their last bits, under load, and what is "
    "added before rank 0 stores is lost.",
    "invented",
    backward={"wait": _wait_for_first},
)


@cute.jit
def _first_two(rank: Int32) -> Boolean:
    return rank <= 1


register_mutant(
    "second_add_stores",
    "Ordered adds: the second KV tile of a dQ tile stores as the first one does, whose share of dQ is lost.",
    "invented, after the first ordered add that stores",
    backward={"is_first": _first_two},
)


@cute.jit
def _keep_tail_keys(mask_rows, keys_left: Int32) -> None:
    pass


register_mutant(
    "tail_keys_not_masked",
    "Forward: keys beyond the sequence's end in its last KV tile count with score 0 where the block is full.",
    "HSTU block masks: a KV tile that is cut off at the end was called full",
    forward={"keep_keys": _keep_tail_keys},
)


@cute.jit
def _no_correction(old: Float32, new: Float32, to_log2: Float32) -> Float32:
    return Float32(1.0)


register_mutant(
    "sums_not_rescaled",
    "What was summed before a row's maximum grew is not rescaled: wrong with more than one step of keys.",
    "invented",
    forward={"correction": _no_correction},
)


@cute.jit
def _difference_of_products(old: Float32, new: Float32, to_log2: Float32) -> Float32:
    return cute.math.exp2(old * to_log2 - new * to_log2, fastmath=True)  # type: ignore[attr-defined]


register_mutant(
    "maxima_scaled_apart",
    "Maxima are scaled before they are subtracted: where a compiler of PTX fuses one of the two products with the "
    "difference, that is not 0 for equal ones, and LSE drifts in kernels that rescale their sums in every step.",
    "this project, until an H200 showed it: LSE of tiles of 192 queries, 1.26 of its budget after 128 steps",
    forward={"correction": _difference_of_products},
)


def _reversed_direction(blocks: BlockSparse) -> BlockSparse:
    schedule: Schedule = blocks.schedule
    if schedule.positions is not None:
        other = permutation(schedule.positions.flip(-1).contiguous())
    else:
        other = DESCENDING if schedule.kind == "ascending" else ASCENDING
    return replace(blocks, order=write_order(_listed(blocks), other, blocks.m_blocks)) if blocks.backward else blocks


register_list_mutant(
    "rank_direction",
    "Ranks of the reverse of the launch order: ends only while every CTA that adds to a dQ tile is resident.",
    "FlashAttention pull request 2253: ranks ascending, launch descending (spt)",
    _reversed_direction,
)


def _rank_per_list(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None:
        return blocks
    ranks = []
    for kind in ("partial", "full"):
        one = getattr(blocks.backward, kind)
        nothing = replace(one, count=torch.zeros_like(one.count))
        lists = BlockLists(one, nothing) if kind == "partial" else BlockLists(nothing, one)
        ranks.append(getattr(write_order(lists, blocks.schedule, blocks.m_blocks), kind))
    return replace(blocks, order=WriteOrder(*ranks))


register_list_mutant(
    "rank_per_list",
    "Partial and full blocks are ranked apart: two KV tiles have one rank, and add at once or wait forever.",
    "HSTU linear block lists, before partial and full ones were merged for ranking",
    _rank_per_list,
)


def _first_head(blocks: BlockSparse) -> BlockSparse:
    """Rows of all heads name the first head's entries."""

    def of(one: BlockList) -> BlockList:
        count, begin = (x[:, :1].expand(x.shape).contiguous() for x in (one.count, one.begin))
        return BlockList(count, one.index, begin)

    def both(lists: BlockLists) -> BlockLists:
        return BlockLists(of(lists.partial), of(lists.full))

    backward = None if blocks.backward is None else both(blocks.backward)
    return replace(blocks, forward=both(blocks.forward), backward=backward)


register_list_mutant(
    "head_ignored",
    "All heads use the first head's block lists: wrong where heads have masks of their own.",
    "MagiAttention's arbitrary mask: the head index ignored in the kernel's mask and in the reference alike",
    _first_head,
)


def _off_by_one_row(blocks: BlockSparse) -> BlockSparse:
    """The last entry of each forward row is left out."""

    def of(one: BlockList) -> BlockList:
        return replace(one, count=(one.count - 1).clamp(min=0))

    return replace(blocks, forward=BlockLists(of(blocks.forward.partial), blocks.forward.full))


register_list_mutant(
    "last_partial_block_lost",
    "Forward: the last partial block of each row is not computed, as where a count is taken for an inclusive end.",
    "HSTU linear block lists: offsets inclusive instead of exclusive",
    _off_by_one_row,
)


for _module in sorted(m.name for m in pkgutil.iter_modules(kernels.mutants.blocksparse.__path__)):
    importlib.import_module(f"kernels.mutants.blocksparse.{_module}")


# Injection points of the backward kernels that the ordered adds depend on
PROTOCOL = ("clear", "wait", "release", "releases", "lock_of", "semaphore", "entries")


def effective(name: str, blocks: BlockSparse) -> Protocol | None:
    """Ordered adds over `blocks`, lists as users made them, with a mutant ("" for none); None where
    that cannot be said from the lists."""
    if not name:
        return _order(blocks), None
    mutant = MUTANTS[name]
    changed = mutant.blocks(blocks)
    if mutant.protocol is not None:
        return mutant.protocol(changed)
    if mutant.injection.host.values is not None:  # of which some say what is launched, and when
        return None
    if any(step in mutant.injection.backward.replacements for step in PROTOCOL):
        return None
    return _order(changed), None


def injections_for(known: str) -> Any:
    """The injections of 'blocksparse!NAME', for building. Raises ValueError where there is none."""
    if known not in INJECTIONS:
        raise ValueError(f"injection: needs one of {sorted(INJECTIONS)}, got {known!r}")
    return INJECTIONS[known]
