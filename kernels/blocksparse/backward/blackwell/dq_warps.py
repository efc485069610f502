# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps of the Blackwell backward kernel: they read dQ of each step and add it in memory.

NOTE [dQ of tcgen05] A tile's dQ accumulator, 128 queries by `dim`: column c of row r is at 512 (c // 4) + 4 r + c % 4
from its start, so that a warp's adds are wide and adjacent. Sums of dK and dV (NOTE [dK and dV partials]) lie
likewise.
"""

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from kernels.blocksparse.backward.blackwell import turns
from kernels.blocksparse.backward.blackwell.tuning import DQ_WARPS, Q_STAGES, SOFTMAX_WARPS
from kernels.blocksparse.backward.intrinsics import add_four
from kernels.blocksparse.backward.mainloop_mma import release, target_of, wait
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS

VECTOR = 4
BARRIER = 2  # the named barrier of the dQ warps


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
        if cutlass.const_expr(deterministic):
            if w.thread == 32 * SOFTMAX_WARPS:
                wait(w, block)
            meet()
        add(w, rdQ, w.mdQ + cute.assume(target_of(w, block, Int32(0)), divby=VECTOR))
        if cutlass.const_expr(deterministic):
            meet()
            if w.thread == 32 * SOFTMAX_WARPS and released(step, w.total):
                release(w, block)


@cute.jit
def add(w, rdQ: cute.Tensor, tile: cute.Pointer) -> None:
    """Adds a row of dQ: NOTE [dQ of tcgen05]."""
    start = tile + w.row * VECTOR
    for c in cutlass.range_constexpr(0, w.tiling.dim, VECTOR):
        add_four(start + c * ROWS, rdQ[c], rdQ[c + 1], rdQ[c + 2], rdQ[c + 3])


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
