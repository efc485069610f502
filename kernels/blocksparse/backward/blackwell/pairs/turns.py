# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Mbarriers of the Blackwell backward kernel of pairs: NOTE [turns of pairs] of mainloop.py.

Each CTA has all of them, at the same places. What is said of phases in blackwell/turns.py holds here too.
"""

from cutlass import Int32, cute
from cutlass._mlir.dialects import nvvm

from kernels.blocksparse.backward.blackwell.pairs.tuning import CTAS
from kernels.blocksparse.backward.blackwell.tuning import DQ_WARPS, Q_STAGES, SOFTMAX_WARPS
from kernels.blocksparse.common import mbarriers

LEADER = 0  # the CTA of a pair that issues products

# name → (how many, arrivals of a phase)
BARRIERS = {
    "k_full": (1, 1),  # K by rows is there, once
    "v_full": (1, 1),
    "kc_full": (1, CTAS),  # K by columns is: of the keys of both CTAs
    "q_full": (Q_STAGES, 1),  # Q by rows, LSE and the block of a step are there
    "q_empty": (Q_STAGES, 1 + SOFTMAX_WARPS + DQ_WARPS),
    "qc_full": (1, 1),  # Q by columns is
    "qc_empty": (1, 1),
    "do_full": (1, 2),  # dO by rows with delta, and dO by columns
    "do_empty": (1, 1 + SOFTMAX_WARPS),
    # in the leader: what the other CTA has loaded
    "k_peer": (1, 1),
    "v_peer": (1, 1),
    "kc_peer": (1, 1),
    "q_peer": (Q_STAGES, 1),
    "qc_peer": (1, 1),
    "do_peer": (1, 1),
    # in both, by products of the pair
    "scored": (1, 1),  # S is in tensor memory
    "multiplied": (1, 1),  # dP is
    "dq_done": (1, 1),  # dQ is
    "ended": (1, 1),  # all products are done
    # in the leader, by warps of both
    "p_ready": (1, CTAS * SOFTMAX_WARPS),  # P is in place of S
    "ds_ready": (1, CTAS * SOFTMAX_WARPS),  # dS is in place of dP, and in shared memory of both CTAs
    "dq_read": (1, CTAS * DQ_WARPS),  # dQ is in registers
}


def arrivals(table: mbarriers.Table) -> mbarriers.Table:
    """The mbarriers with the arrivals that end their phases."""
    return table


def meet_pair() -> None:
    """The threads of both CTAs that have not exited wait for each other, by whole warps; what they have written is
    visible to all."""
    nvvm.cluster_arrive(aligned=True)
    nvvm.cluster_wait(aligned=True)


@cute.jit
def arrive_at_leader(barrier: cute.Pointer) -> None:
    """One arrival of a warp at the mbarrier of the CTA that issues products."""
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(barrier, LEADER, scope=nvvm.MemScopeKind.CLUSTER)


@cute.jit
def await_both(own: cute.Pointer, peer: cute.Pointer, parity: Int32) -> None:
    """The leader waits for what both CTAs load."""
    cute.arch.mbarrier_wait(own, parity)
    cute.arch.mbarrier_wait(peer, parity)


@cute.jit
def hand_on(own: cute.Pointer, peer: cute.Pointer, parity: Int32) -> None:
    """A warp of the other CTA tells the leader what its CTA has loaded."""
    cute.arch.mbarrier_wait(own, parity)
    arrive_at_leader(peer)
