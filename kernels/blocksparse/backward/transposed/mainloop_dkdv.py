# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The main loop for dK and dV where dQ is another kernel's: a warpgroup has all 64 keys of the tile as rows of S, dP,
dK and dV, and takes whole steps of 64 queries. P and dS never leave its registers:

    dP                                 issued; S was issued in the step before
    S is done:   P                     masked, while dP runs
    dV                                 issued
    dP is done:  dS                    while dV runs
    dK, S of the next step             issued
    dV, dK, S are done                 a stage is empty when the products that read it are

NOTE [whole steps] Of `step_groups` warpgroups, number g takes the steps g, g + step_groups, ... of the row, and keeps
sums of its own: two of them meet once, at the row's end, where each gets the other's sums of dK or of dV
(`gather_sums`). Stages are a multiple of the warpgroups, so that each stage is one warpgroup's: otherwise a warpgroup
could wait for a phase of `full` while the one before it, which the other warpgroup waits for, has not ended, and the
parity of the phase before that one would let it pass. While one computes exponentials, another multiplies: of the same
CTA, or where it has one multiplying warpgroup, of the SM's other CTA, which also begins or ends its row then.
"""

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from kernels.blocksparse.backward import masking
from kernels.blocksparse.backward.dq_accumulator import fragment_views
from kernels.blocksparse.backward.mainloop_mma import is_masked
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.mainloop import (
    rounded,
    scores_to_probabilities,
    subtract_delta,
)
from kernels.blocksparse.backward.transposed.query_words import find_kept, prefetch_words
from kernels.blocksparse.backward.wgmma import WARPGROUP, finish, issue, issue_from_registers
from kernels.blocksparse.common.layouts import as_operand_a, rows_columns
from kernels.blocksparse.common.mask_words import branch

VECTOR = 4  # floats that a thread reads and writes at once


@cute.jit
def mainloop_dkdv(w) -> None:
    """A warpgroup's steps of the row: rdK and rdV, to which products are added. w.thread: of the warpgroup's, whose
    number is w.group."""
    tiling, groups = w.tiling, w.tiling.step_groups
    stages, stages_q = tiling.stages, tiling.stages_q
    own = (w.total * tiling.steps - w.group + groups - 1) // groups
    last = (own - 1) * groups + w.group
    release_scored_q, release_q, release_do = w.kernel.release_scored_q, w.kernel.release_q, w.kernel.release_do
    rS = accumulator(w.to_s)
    rWords = cute.make_rmem_tensor(tiling.step_m // 32, Uint32)
    if own > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        turns.await_full(w.q_full, w.group, stages_q)
        issue(w.to_s, rS, 0, w.group, add=False)
        cute.arch.mbarrier_wait(w.v_full, 0)
        finish()
        masked = words_of_step(w, rWords, w.group)
        for turn in cutlass.range(own, unroll=1):
            step = turn * groups + w.group
            stage, stage_q = step % stages, step % stages_q
            release_scored_q(w.q_empty, step, stages_q)
            turns.await_full(w.do_full, step, stages)
            rdP = accumulator(w.to_dp)
            issue(w.to_dp, rdP, 0, stage, add=False)
            rSlope = cute.make_rmem_tensor_like(rS) if cutlass.const_expr(w.variant.softcap) else None
            scores_to_probabilities(w, rS, rSlope, stage_q, tiling.step_m)
            for _ in cutlass.range(branch(masked)):
                masking.apply_words(rows_columns(rS), find_kept(w, rWords))
            rP = rounded(rS, w.dtype)
            issue_from_registers(w.to_dv, w.rdV, as_operand_a(rP), stage)

            if cutlass.const_expr(w.variant.softcap):
                rS.store(rS.load() * rSlope.load())
            # one warpgroup has registers for P and dS at once only after dV
            finish(groups - 1)
            subtract_delta(w, rdP, stage, tiling.step_m)
            rdP.store(rdP.load() * rS.load())
            rdS = rounded(rdP, w.dtype)
            issue_from_registers(w.to_dk, w.rdK, as_operand_a(rdS), stage_q)

            # the last step multiplies its own scores once more, which nobody reads: no branch around a product
            following = cutlass.min(step + groups, last)
            turns.await_full(w.q_full, following, stages_q)
            rNext = accumulator(w.to_s)
            issue(w.to_s, rNext, 0, following % stages_q, add=False)
            masked = words_of_step(w, rWords, following)
            finish(2)
            release_do(w.do_empty, step, stages)
            finish()
            release_q(w.q_empty, step, stages_q)
            rS.store(rNext.load())


@cute.jit
def words_of_step(w, rWords: cute.Tensor, step: Int32):
    """Looks up the mask of a step whose Q is full; returns whether it forbids anything."""
    block = block_at(w.storage.sEntries, step // w.tiling.steps)
    masked = is_masked(w, block)
    prefetch_words(w, rWords, block, step % w.tiling.steps, masked)
    return masked


@cute.jit
def gather_sums(w) -> cute.Tensor:
    """Exchanges sums: one warpgroup gets all of dK, the other all of dV (64 values of each thread). All multiplying
    threads call it after their last product; the stages of Q, which nobody reads or loads any more, take the sums."""
    group, rdK, rdV = w.group, w.rdK, w.rdV
    rMine, rOther = cute.make_rmem_tensor_like(rdK), cute.make_rmem_tensor_like(rdK)
    if group == 0:
        rMine.store(rdK.load())
        rOther.store(rdV.load())
    else:
        rMine.store(rdV.load())
        rOther.store(rdK.load())
    here, there = in_shared_memory(w, rOther, w.group)
    cute.autovec_copy(here, there)
    w.kernel.await_sums(w.thread)
    here, there = in_shared_memory(w, rOther, 1 - w.group)
    cute.autovec_copy(there, here)
    rMine.store(rMine.load() + rOther.load())
    return rMine


def in_shared_memory(w, rD: cute.Tensor, group: Int32) -> tuple[cute.Tensor, cute.Tensor]:
    """A thread's values, and where those that a warpgroup gives away lie."""
    floats = cute.recast_ptr(w.storage.plainQ.iterator, dtype=Float32)
    at = group * (WARPGROUP * cute.size(rD)) + w.thread * VECTOR
    return fragment_views(rD, floats + cute.assume(at, divby=VECTOR), WARPGROUP, VECTOR)
