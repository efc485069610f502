"""Mutants of the forward kernel with products by tcgen05 whose CTAs go on to further tiles: what is counted over all
tiles, what the next tile overwrites, and how it is announced. They change nothing in a CTA of one tile."""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Int32, cute

from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.forward import tile_scheduler
from kernels.blocksparse.forward.blackwell import mainloop
from kernels.mutants.blocksparse.registration import register_mutant


@cute.jit
def _scored_of_own_tile(w: Any, step: Int32) -> None:
    mainloop.wait_scored(w, step - w.before)


@cute.jit
def _added_of_own_tile(w: Any, step: Int32) -> None:
    mainloop.wait_added(w, step - w.before)


register_mutant(
    "scores_counted_by_tile",
    "tcgen05: phases of the scores' mbarriers are counted from 0 in each tile of a persistent CTA; after a tile with "
    "an odd number of steps the softmax reads scores that may not be there, or waits forever.",
    "invented, after the state that CUTLASS's persistent kernels carry from one work tile to the next",
    forward={"wait_scored": _scored_of_own_tile},
)

register_mutant(
    "additions_counted_by_tile",
    "tcgen05: phases of the mbarrier of products with V are counted from 0 in each tile of a persistent CTA.",
    "invented, as scores_counted_by_tile",
    forward={"wait_added": _added_of_own_tile},
)

register_mutant(
    "tile_read_before_announced",
    "tcgen05: warps read the next tile from shared memory without a wait for the warp that writes it there.",
    "invented, after the response of clusterlaunchcontrol.try_cancel, which arrives at an mbarrier",
    forward={"take_tile": tile_scheduler.read_tile},
)

register_mutant(
    "tile_replaced_before_read",
    "tcgen05: the next tile but one is announced where the last one was when all warps but one have read that.",
    "invented, after the arrival count of CUTLASS's tile scheduler pipeline",
    forward={"takers": lambda warps: warps - 1},
)


@cute.jit
def _at_once(buffers: Buffers, use: Int32) -> None:
    pass


register_mutant(
    "queries_over_output",
    "tcgen05: Q of the next tile is loaded into the shared memory that O of an earlier one is stored from, without a "
    "wait for the store; where Q has twice as many stages as the CTA has query tiles, announced tiles order them.",
    "invented, after kernels whose O has the shared memory of Q",
    forward={"wait_stored_output": _at_once},
)


def _adds_after_first_tile(before: Int32, s: Int32) -> Boolean:
    return before + s > 0


register_mutant(
    "output_added_to_last_tile",
    "tcgen05: O of each tile of a persistent CTA but its first is added to that of the tile before.",
    "invented, after the flag of tcgen05.mma that says whether its sums begin with those in tensor memory",
    forward={"adds": _adds_after_first_tile},
)


def _where_there_are_steps(n_steps: Int32) -> Boolean:
    return n_steps > 0


register_mutant(
    "queries_of_empty_tiles_skipped",
    "tcgen05: the warp that issues products skips the phase of Q in a tile without blocks; later ones take the phase "
    "before for theirs.",
    "invented, after roles of a persistent kernel that leave a tile early",
    forward={"waits_for_queries": _where_there_are_steps},
)


@cute.jit
def _free(columns: cute.Pointer, count: int, thread: Int32) -> None:
    if thread < 32:
        cute.arch.dealloc_tmem(columns, count)


register_mutant(
    "columns_freed_by_each_tile",
    "tcgen05: tensor memory is given back at the end of each tile of a persistent CTA, and used by the next one.",
    "PTX ISA, tcgen05.dealloc; invented, after kernels with a CTA for each tile",
    forward={"end_tile": _free},
)
