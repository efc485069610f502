# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps of the Blackwell backward kernel: they read dQ of each step and add it in memory.

NOTE [dQ of tcgen05] A tile's dQ accumulator, 128 queries by `dim`: column c of row r is at 512 (c // 4) + 4 r + c % 4
from its start, so that a warp's adds are wide and adjacent. Sums of dK and dV (NOTE [dK and dV partials]) lie
likewise. So a few columns of a tile lie together in memory.

NOTE [bulk adds] Threads write their rows of DQ_COLUMNS columns to one of two buffers in shared memory, which a bulk
reduction adds in memory: issued by one thread, the leader, after a barrier. Before it comes to that barrier the leader
has waited until the reductions before have read their buffers: so behind it all threads may write into the other one.
Ordered adds: the leader acquires the block's semaphore before the first reduction, and releases it when all are
complete (`wait_group`, not only its `.read`). Reductions take the path of the async proxy: fences order them after the
writes to shared memory and after the acquire, and the release after them.
"""

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.blackwell import turns
from kernels.blocksparse.backward.blackwell.tuning import DQ_COLUMNS, DQ_WARPS, Q_STAGES, SOFTMAX_WARPS
from kernels.blocksparse.backward.intrinsics import add_four
from kernels.blocksparse.backward.mainloop_mma import add_run, release, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS

VECTOR = 4
BARRIER = 2  # the named barrier of the dQ warps
LEADER = 32 * SOFTMAX_WARPS  # the thread that acquires and releases, and issues bulk adds


@cute.jit
def add_dq_of_steps(w) -> None:
    """All steps of the row. Ordered adds: a block's semaphore is acquired by one thread before, released after them."""
    deterministic, dim = w.variant.deterministic, w.tiling.dim
    await_dq, loaded_dq, column_of, released = (
        getattr(w.kernel, name) for name in ("await_dq", "loaded_dq", "column_of_dq", "releases")
    )
    for step in cutlass.range(w.total, unroll=1):
        turns.await_queries(w, step)
        block = block_at(w.storage.sEntries, step)
        turns.arrive(w.q_empty + step % Q_STAGES)
        await_dq(w, step)
        rdQ = cute.make_rmem_tensor(dim, Float32)
        tcgen05.load(column_of(w.columns_dq), w.row, rdQ)
        loaded_dq()
        tcgen05.fence_before()
        turns.arrive(w.dq_read)
        tile = w.mdQ + cute.assume(target_of(w, block, Int32(0)), divby=VECTOR)
        if cutlass.const_expr(w.tiling.bulk_dq):
            add_in_bulk(w, rdQ, block, tile)
        else:
            if cutlass.const_expr(deterministic):
                if w.thread == LEADER:
                    wait(w, block)
                meet()
            add_by_threads(w, rdQ, block, tile)
            if cutlass.const_expr(deterministic):
                meet()
        if cutlass.const_expr(deterministic):  # noqa: SIM102 (one is for the compiler)
            if w.thread == LEADER and released(step, w.total):
                end_adds(w)
                release(w, block)
    if cutlass.const_expr(w.tiling.bulk_dq):
        w.kernel.dq_buffers_read()  # a CTA must not exit before


@cute.jit
def add_by_threads(w, rdQ: cute.Tensor, block: Block, tile: cute.Pointer) -> None:
    """Adds a row of dQ, or stores it: NOTE [first add] of dq_accumulator.py."""
    if cutlass.const_expr(w.variant.deterministic):
        if w.kernel.is_first(block.rank):
            store(w, rdQ, tile)
        else:
            add(w, rdQ, tile)
    else:
        add(w, rdQ, tile)


@cute.jit
def store(w, rdQ: cute.Tensor, tile: cute.Pointer) -> None:
    """Stores a row of dQ: NOTE [dQ of tcgen05]."""
    here, there = dq_accumulator.fragment_views(rdQ, tile + w.row * VECTOR, ROWS, VECTOR)
    cute.autovec_copy(here, there)


@cute.jit
def add(w, rdQ: cute.Tensor, tile: cute.Pointer) -> None:
    """Adds a row of dQ: NOTE [dQ of tcgen05]."""
    start = tile + w.row * VECTOR
    for c in cutlass.range_constexpr(0, w.tiling.dim, VECTOR):
        add_four(start + c * ROWS, rdQ[c], rdQ[c + 1], rdQ[c + 2], rdQ[c + 3])


@cute.jit
def add_in_bulk(w, rdQ: cute.Tensor, block: Block, tile: cute.Pointer) -> None:
    """Adds all rows of dQ: NOTE [bulk adds]."""
    publish, buffers_read, per_buffer = w.kernel.publish_dq, w.kernel.dq_buffers_read, DQ_COLUMNS * ROWS
    for i in cutlass.range_constexpr(w.tiling.dim // DQ_COLUMNS):
        buffer = w.storage.sAdds.iterator + i % 2 * per_buffer
        for c in cutlass.range_constexpr(0, DQ_COLUMNS, VECTOR):
            four = cute.make_tensor(rdQ.iterator + i * DQ_COLUMNS + c, cute.make_layout(VECTOR))
            own = (buffer + c * ROWS + w.row * VECTOR).align(16)
            cute.autovec_copy(four, cute.make_tensor(own, cute.make_layout(VECTOR)))
        publish()
        if w.thread == LEADER:
            buffers_read()
        meet()
        if w.thread == LEADER:
            if cutlass.const_expr(w.variant.deterministic and i == 0):
                wait(w, block)
                cute.arch.fence_proxy("async.global")
            add_run(w, block.rank, tile + i * per_buffer, buffer, 4 * per_buffer)
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def end_adds(w) -> None:
    """The leader waits until its bulk adds are complete, and orders the release that follows after them."""
    if cutlass.const_expr(w.tiling.bulk_dq):
        added = w.kernel.dq_added
        added()
        cute.arch.fence_proxy("async.global")


def dq_buffers_read() -> None:
    """Waits until this thread's bulk adds have read shared memory."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)


def dq_added() -> None:
    """Waits until this thread's bulk adds are complete."""
    cute.arch.cp_async_bulk_wait_group(0)


def column_of_dq(first: cute.Pointer) -> cute.Pointer:
    """The first column of dQ."""
    return first


@cute.jit
def releases(step: Int32, total: Int32) -> Boolean:
    """True where the block of a step is released after its adds: everywhere."""
    return Boolean(True)


def meet() -> None:
    """The dQ warps wait for each other."""
    cute.arch.barrier(barrier_id=BARRIER, number_of_threads=32 * DQ_WARPS)
