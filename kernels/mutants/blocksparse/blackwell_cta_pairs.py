"""Mutants of the backward kernel of pairs of CTAs: what one CTA of a pair must know of the other. Some of their
injection points are those of other kernels too: sessions of lists for pairs look for them."""

from __future__ import annotations

from collections.abc import Callable

from cutlass import Int32, cute
from cutlass.cute.nvgpu import tcgen05 as nvgpu

from kernels.blocksparse.backward.blackwell.pairs import turns
from kernels.blocksparse.backward.blackwell.pairs.tuning import CTAS
from kernels.blocksparse.backward.blackwell.tuning import DQ_WARPS, HALF, SOFTMAX_WARPS
from kernels.blocksparse.common import mbarriers, tcgen05
from kernels.mutants.blocksparse.registration import register_mutant

PAIRED_BARRIERS = "invented, after the mbarriers of CUTLASS's kernels whose products are of two CTAs"


def _of_one_cta(name: str, warps: int) -> Callable[[mbarriers.Table], mbarriers.Table]:
    """Phases of an mbarrier end with the arrivals of one CTA's warps."""
    return lambda table: table | {name: (1, warps)}


register_mutant(
    "peer_ds_not_waited_for",
    "pairs of CTAs: products of dK and dQ follow the dS of as many warps as one CTA has.",
    PAIRED_BARRIERS,
    backward={"arrivals": _of_one_cta("ds_ready", SOFTMAX_WARPS)},
)

register_mutant(
    "peer_probabilities_not_waited_for",
    "pairs of CTAs: products of dV follow the P of as many warps as one CTA has.",
    PAIRED_BARRIERS,
    backward={"arrivals": _of_one_cta("p_ready", SOFTMAX_WARPS)},
)

register_mutant(
    "peer_dq_not_waited_for",
    "pairs of CTAs: dQ of a step is overwritten when as many warps as one CTA has have read it.",
    PAIRED_BARRIERS,
    backward={"arrivals": _of_one_cta("dq_read", DQ_WARPS)},
)

register_mutant(
    "ds_sent_to_other_cta",
    "pairs of CTAs: dS of each CTA's queries is written to the other one's shared memory.",
    "invented, after FlashAttention-4's backward pass, which exchanges halves of dS through distributed shared memory",
    backward={"owner_of": lambda half: 1 - half},
)

register_mutant(
    "ds_fenced_in_own_memory",
    "pairs of CTAs: the fence after dS is written covers .shared::cta, and not the other CTA's memory.",
    "PTX ISA: fence.proxy.async orders accesses of the state space that it names",
    backward={"publish_ds": tcgen05.fence_shared},
)

register_mutant(
    "queries_of_other_cta",
    "pairs of CTAs: the shares of Q and dO by rows change places.",
    "invented, after the halves of an operand that each CTA of a pair loads",
    backward={"row_of_share": lambda rank: (1 - rank) * HALF},
)


@cute.jit
def _own_alone(own: cute.Pointer, peer: cute.Pointer, parity: Int32) -> None:
    cute.arch.mbarrier_wait(own, parity)


register_mutant(
    "peer_loads_not_waited_for",
    "pairs of CTAs: products follow Q and dO of the leader's shared memory, whether or not the other's are there.",
    PAIRED_BARRIERS,
    backward={"await_both": _own_alone},
)

register_mutant(
    "peer_keys_not_waited_for",
    "pairs of CTAs: the first products, and the first dQ, follow K and V of the leader's shared memory, whether or not "
    "the other's are there.",
    PAIRED_BARRIERS,
    backward={"await_once": _own_alone},
)


@cute.jit
def _at_once(own: cute.Pointer, peer: cute.Pointer, parity: Int32) -> None:
    turns.arrive_at_leader(peer)


register_mutant(
    "loads_handed_on_early",
    "pairs of CTAs: the leader is told of the other CTA's loads before they are complete.",
    PAIRED_BARRIERS,
    backward={"hand_on": _at_once},
)


@cute.jit
def _commit_in_leader(barrier: cute.Pointer) -> None:
    with cute.arch.elect_one():  # type: ignore[no-untyped-call]
        nvgpu.commit(barrier, 1 << turns.LEADER, nvgpu.CtaGroup.TWO)


register_mutant(
    "commit_in_leader_alone",
    "pairs of CTAs: what products have done is committed to the leader alone, and the other CTA waits forever.",
    "PTX ISA: tcgen05.commit with .multicast::cluster and a mask of CTAs",
    backward={"commit": _commit_in_leader},
)

register_mutant(
    "stages_released_in_leader_alone",
    "pairs of CTAs: products release Q and dO in the leader alone: hangs where the other CTA loads a third block.",
    "PTX ISA: tcgen05.commit with .multicast::cluster and a mask of CTAs",
    backward={"release_stage": _commit_in_leader},
)


def _lock_of_one_cta(rank: Int32, n_block: Int32) -> Int32:
    return rank


register_mutant(
    "ranks_of_one_cta",
    "pairs of CTAs: a pair waits for its rank, as if each pair before it added 1 to the semaphore and not 2.",
    "invented, after ranks that count tiles where CTAs release",
    backward={"lock_of": _lock_of_one_cta},
)


def _lock_before_last(rank: Int32, n_block: Int32) -> Int32:
    return CTAS * rank - 1


register_mutant(
    "added_after_one_cta",
    "pairs of CTAs: a pair adds when one CTA of the pair before it has added, whichever that is.",
    "invented, as ranks_of_one_cta",
    backward={"lock_of": _lock_before_last},
)


@cute.jit
def _release_by_leader(semaphore: cute.Pointer, count: int):
    if cute.arch.block_idx()[0] % CTAS == turns.LEADER:
        cute.arch.fence_acq_rel_gpu()
        cute.arch.red(semaphore, Int32(count), op="add", dtype="s32", sem="release", scope="gpu")


@cute.jit
def _release_for_both(semaphore: cute.Pointer):
    _release_by_leader(semaphore, CTAS)


register_mutant(
    "released_for_both_ctas",
    "pairs of CTAs: the leader releases the semaphore for both when its own rows of dQ are added.",
    "invented, as ranks_of_one_cta",
    backward={"release": _release_for_both},
)


@cute.jit
def _release_for_leader(semaphore: cute.Pointer):
    _release_by_leader(semaphore, 1)


register_mutant(
    "released_by_leader_alone",
    "pairs of CTAs: the leader alone releases the semaphore, and the next pair waits forever.",
    "invented, as release_missing",
    backward={"release": _release_for_leader},
)


@cute.jit
def _nothing() -> None:
    pass


register_mutant(
    "released_before_all_warps_added",
    "pairs of CTAs: a CTA releases the semaphore when the warp that does so has added, and others may not have.",
    "invented, as released_one_step_early",
    backward={"meet_after_adds": _nothing},
)


def _of_pair(keys_left: Int32, rank: Int32 | int) -> Int32:
    return keys_left


register_mutant(
    "keys_left_of_pair",
    "pairs of CTAs: the second CTA is taken to have as many keys of the sequence to load as both have.",
    "invented, as rows_left_of_both_tiles",
    backward={"keys_of_cta": _of_pair},
)

register_mutant(
    "gradients_left_of_pair",
    "pairs of CTAs: the second CTA writes dK and dV of as many keys of the sequence as both have.",
    "invented, as rows_left_of_both_tiles",
    backward={"keys_written": _of_pair},
)

register_mutant(
    "pair_not_met_at_start",
    "pairs of CTAs: a CTA begins while its peer may not have initialised its mbarriers.",
    "PTX ISA: barrier.cluster before the first access to another CTA's shared memory",
    backward={"meet_at_start": cute.arch.sync_threads},
)

register_mutant(
    "pair_exits_apart",
    "pairs of CTAs: a CTA gives back tensor memory and exits while its peer may still use its shared memory.",
    "PTX ISA: a CTA of a cluster must not exit while others access its shared memory",
    backward={"end_pair": _nothing},
)
