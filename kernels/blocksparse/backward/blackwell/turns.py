# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Mbarriers of the Blackwell backward kernel: NOTE [turns] of mainloop.py.

All but those of K, V and Q have one phase for each step, so that the phase of step i is waited for by the parity of i.
A role waits for every phase of a barrier that it looks at: a wait by parity takes the phase before the last for the one
to come.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.blackwell.tuning import DQ_WARPS, Q_STAGES, SOFTMAX_WARPS
from kernels.blocksparse.common import tcgen05

# name → (how many, arrivals of a phase)
BARRIERS = {
    "k_full": (1, 1),  # by TMA: K is there, once; else the CTA's threads have waited for it
    "v_full": (1, 1),
    "q_full": (Q_STAGES, 1),  # Q, LSE and the block of a step are there
    "q_empty": (
        Q_STAGES,
        1 + SOFTMAX_WARPS + DQ_WARPS,
    ),  # products are done with Q, softmax warps with LSE, dQ warps with the block
    "do_full": (1, 1),
    "do_empty": (1, 1 + SOFTMAX_WARPS),
    "scored": (1, 1),  # S is in tensor memory
    "multiplied": (1, 1),  # dP is
    "p_ready": (1, SOFTMAX_WARPS),  # P is in place of S
    "ds_ready": (1, SOFTMAX_WARPS),  # dS is in place of dP, and in shared memory
    "dq_done": (1, 1),  # dQ is in tensor memory
    "dq_read": (1, DQ_WARPS),  # dQ is in registers
    "ended": (1, 1),  # all products are done
}


@cute.jit
def arrive(barrier: cute.Pointer) -> None:
    """One arrival of a warp."""
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(barrier)


@cute.jit
def await_keys(w, barrier: cute.Pointer) -> None:
    """Waits for K or V, which are loaded once, at `barrier`."""
    if cutlass.const_expr(w.tiling.tma):
        cute.arch.mbarrier_wait(barrier, 0)


@cute.jit
def await_queries(w, step: Int32) -> None:
    """Waits for Q, LSE and the block of a step."""
    cute.arch.mbarrier_wait(w.q_full + step % Q_STAGES, step // Q_STAGES % 2)


@cute.jit
def await_do(w, step: Int32) -> None:
    """Waits for dO and delta of a step."""
    cute.arch.mbarrier_wait(w.do_full, step % 2)


@cute.jit
def await_scores(w, step: Int32) -> None:
    """Waits for S of a step."""
    cute.arch.mbarrier_wait(w.scored, step % 2)
    tcgen05.fence_after()


@cute.jit
def await_products(w, step: Int32) -> None:
    """Waits for dP of a step, and so until no product reads dS of the step before."""
    cute.arch.mbarrier_wait(w.multiplied, step % 2)
    tcgen05.fence_after()


@cute.jit
def await_dq(w, step: Int32) -> None:
    """Waits for dQ of a step."""
    cute.arch.mbarrier_wait(w.dq_done, step % 2)
    tcgen05.fence_after()


@cute.jit
def await_columns(w, step: Int32) -> None:
    """Waits until dQ of a step has been read."""
    cute.arch.mbarrier_wait(w.dq_read, step % 2)
    tcgen05.fence_after()
