# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps of the Blackwell backward kernel of pairs: each CTA adds the queries of its share in memory.

Layout in memory: NOTE [dQ of tcgen05] of blackwell/dq_warps.py.

NOTE [ordered adds of pairs] A pair has one rank. Both of its CTAs add to a tile of dQ, each to rows of its own, and
each adds 1 to the tile's semaphore after that. A CTA of rank r may add when the semaphore is at least 2 r, whether the
other CTA of its pair has added or not. CTAs of a higher rank have added nothing then: they wait for 2 r + 2.
"""

import cutlass
from cutlass import Float32, Int32, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.blackwell.dq_warps import LEADER, VECTOR, meet
from kernels.blocksparse.backward.blackwell.pairs import turns
from kernels.blocksparse.backward.blackwell.pairs.tuning import CTAS
from kernels.blocksparse.backward.blackwell.tuning import HALF, Q_STAGES
from kernels.blocksparse.backward.blackwell.turns import arrive, await_queries
from kernels.blocksparse.backward.intrinsics import add_four
from kernels.blocksparse.backward.mainloop_mma import release, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, as_block
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS


@cute.jit
def add_dq_of_steps(w) -> None:
    """All steps of the row. Ordered adds: a block's semaphore is acquired by one thread before, released after them."""
    deterministic, half_dim = w.variant.deterministic, w.tiling.dim // 2
    loaded_dq, await_dq = w.kernel.loaded_dq, w.kernel.await_dq
    meet_after_adds, released = w.kernel.meet_after_adds, w.kernel.releases
    for step in cutlass.range(w.total, unroll=1):
        await_queries(w, step)
        block = block_of(w, step)
        arrive(w.q_empty + step % Q_STAGES)
        await_dq(w, step)
        rdQ = cute.make_rmem_tensor(half_dim, Float32)
        tcgen05.load(w.columns_dq, w.row, rdQ)
        loaded_dq()
        tcgen05.fence_before()
        turns.arrive_at_leader(w.dq_read)
        if cutlass.const_expr(deterministic):
            if w.thread == LEADER:
                wait(w, block)
            meet()
        add(w, rdQ, block.rank, w.mdQ + cute.assume(target_of(w, block, Int32(0)), divby=VECTOR))
        if cutlass.const_expr(deterministic):
            meet_after_adds()
            if w.thread == LEADER and released(step, w.total):
                release(w, block)


@cute.jit
def block_of(w, step: Int32) -> Block:
    """The block of a step, whose Q by rows is there."""
    rBlock = cute.make_rmem_tensor(4, Int32)
    cute.autovec_copy(w.storage.sEntries[None, step % Q_STAGES], rBlock)
    return as_block(rBlock)


@cute.jit
def add(w, rdQ: cute.Tensor, rank: Int32, tile: cute.Pointer) -> None:
    """Adds half a row of dQ, or stores it, as both CTAs of the first pair do: NOTE [columns of pairs], NOTE [first add]
    of dq_accumulator.py."""
    query, column = w.rank * HALF + w.row % HALF, w.row // HALF * (w.tiling.dim // 2)
    start = tile + (column * ROWS + query * VECTOR)
    if cutlass.const_expr(w.variant.deterministic):
        if w.kernel.is_first(rank):
            here, there = dq_accumulator.fragment_views(rdQ, start, ROWS, VECTOR)
            cute.autovec_copy(here, there)
        else:
            add_to(rdQ, start)
    else:
        add_to(rdQ, start)


@cute.jit
def add_to(rdQ: cute.Tensor, start: cute.Pointer) -> None:
    """Adds half a row of dQ, which begins there, four columns at a time."""
    for c in cutlass.range_constexpr(0, cute.size(rdQ), VECTOR):
        add_four(start + c * ROWS, rdQ[c], rdQ[c + 1], rdQ[c + 2], rdQ[c + 3])


@cute.jit
def lock_of(rank: Int32, n_block: Int32) -> Int32:
    """The least value of the semaphore at which a block may add: NOTE [ordered adds of pairs]."""
    return CTAS * rank


@cute.jit
def wait_until_at_least(semaphore: cute.Pointer, lock: Int32):
    """Waits, in one thread, for the semaphore to become the lock or more. Writes released before are visible
    afterwards."""
    value = cute.arch.load(semaphore, Int32, sem="acquire", scope="gpu")
    while value < lock:
        value = cute.arch.load(semaphore, Int32, sem="acquire", scope="gpu")
