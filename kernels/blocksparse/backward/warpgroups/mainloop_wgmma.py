"""The loop of a CTA over the steps of its row of blocks, by warpgroups (wgmma): Hopper's counterpart of
mainloop_mma.py.

While a step goes through its exponentials, the products dV and dK of the step before and its own dP run:

    ordered adds: release the block before the last step's (or the semaphore-release warp does)
    S of this step, dQ, dV, dK of the last one      issued together, once all of the last one's P and dS are there
    start loading the next step; look up its mask
    ordered adds: await the semaphore of the last step's block, while S and dQ run
    when S and dQ are done: issue dP; add dQ in memory, while dP runs (or before: Tiling.adds_late)
    P                                               in registers, masked
    when dV and dK of the warpgroup are done: P to shared memory, of which they read the last one's (a warpgroup that
        reads the other's keys of P waits for it too, or where P has two buffers for neither)
    when dP is done: dS to shared memory
    barrier                                         P, dS and the next step's tiles are there for all

Where dQ is another kernel's (`Variant.separate_dq`), all about it is left out.

A stage of Q and dO is read by two steps, its own and the next one, so there are three: one more is being loaded. The
first step has no step before it; its P and dS are zeros, and its dQ is not added.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward import masking, softmax_gradient
from kernels.blocksparse.backward.gemms import share
from kernels.blocksparse.backward.mainloop_mma import (
    add_fragment,
    end,
    is_masked,
    load_following,
    probabilities,
    rank_of,
    refill,
    release_by_one_thread,
    sync_group,
    sync_multiplying,
    target_of,
    words_of,
)
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.warpgroups.semaphore_warps import announce_block, await_wait_warp, notify_release_warp
from kernels.blocksparse.backward.wgmma import finish, issue, publish
from kernels.blocksparse.common.layouts import rows_columns


@cute.jit
def mainloop_wgmma(w) -> None:
    """Runs all steps of the row, as mainloop_mma.mainloop_mma does."""
    tiling, storage, thread = w.tiling, w.storage, w.thread
    steps, stages = tiling.steps, tiling.stages
    wide, iterations = tiling.wide_stores, w.total * steps
    rNone = accumulator(w.to_s)
    rNone.fill(Float32(0.0))
    share(w.to_s.mma, rNone, p_of(w, Int32(1)), thread, wide)
    share(w.to_dp.mma, rNone, storage.sdS[None, None, 1], thread, wide)
    meet()
    target = Int64(0)
    for iteration in cutlass.range(iterations, unroll=1):
        entry, step, stage, stage_ds = iteration // steps, iteration % steps, iteration % stages, iteration % 2
        before = cutlass.max(iteration - 1, 0) % stages
        release_last(w, ended_step(w, iteration, iterations))
        rP, rdQ = accumulator(w.to_s), sums_of_dq(w)
        issue(w.to_s, rP, stage, add=False)
        issue_dq(w, rdQ, 1 - stage_ds)
        issue(w.to_dv, w.rdV, p_stage(w, iteration + 1), before)
        issue(w.to_dk, w.rdK, 1 - stage_ds, before)

        refill(w, entry, step)
        block = block_at(storage.sEntries, entry)
        following = block_at(storage.sEntries, cutlass.min((iteration + 1) // steps, w.total - 1))
        load_following(w, following, iteration, (iteration + 1) % stages)
        rWords = words_of(w, block, step)
        lse2, delta = (softmax_gradient.of_rows(sX, w.words.row, stage) for sX in (storage.sLSE, storage.sDelta))
        await_acquired(w, iteration - 1)
        announce(w, step)
        finish(2)
        if cutlass.const_expr(not tiling.adds_late):
            add_unless_first(w, rdQ, iteration, target)
        rdS = accumulator(w.to_dp)
        issue(w.to_dp, rdS, stage, add=False)
        if cutlass.const_expr(tiling.adds_late):
            add_unless_first(w, rdQ, iteration, target)

        rSlope: Any = cute.make_rmem_tensor_like(rP) if cutlass.const_expr(w.variant.softcap) else None
        probabilities(w, rP, rSlope, lse2)
        if is_masked(w, block):
            masking.apply_words(rows_columns(rP), rWords)
        if cutlass.const_expr(tiling.stages_p == 1):
            finish(1)
            sync_group(w)
        share(w.to_s.mma, rP, p_of(w, iteration), thread, wide)
        if cutlass.const_expr(w.variant.softcap):
            rP.store(rP.load() * rSlope.load())
        finish()
        softmax_gradient.add_start(w.kernel.start_of, rdS, delta)
        rdS.store(rdS.load() * rP.load())
        share(w.to_dp.mma, rdS, storage.sdS[None, None, stage_ds], thread, wide)
        target = target_of(w, block, step)
        meet()

    if iterations > 0:
        release_last(w, ended_step(w, iterations, iterations))
        rdQ = sums_of_dq(w)
        last, last_ds = (iterations - 1) % stages, (iterations - 1) % 2
        issue_dq(w, rdQ, last_ds)
        issue(w.to_dv, w.rdV, p_stage(w, iterations - 1), last)
        issue(w.to_dk, w.rdK, last_ds, last)
        await_acquired(w, iterations - 1)
        finish(2)
        if cutlass.const_expr(not w.variant.separate_dq):
            add_fragment(w, rdQ, rank_of(w, w.total - 1), target)
        finish()
        end(w)


def sums_of_dq(w) -> cute.Tensor | None:
    """Registers for a step's dQ; None where it is another kernel's."""
    return None if w.variant.separate_dq else accumulator(w.to_dq)


def issue_dq(w, rdQ: cute.Tensor | None, stage_ds: Any) -> None:
    """Starts dQ of a step, where it is this kernel's."""
    if rdQ is not None:
        issue(w.to_dq, rdQ, stage_ds, add=False)


def p_stage(w, iteration: Int32 | Any) -> Any:
    """The buffer of P of an iteration: with two, that of the one before is also `iteration + 1`'s."""
    return iteration % 2 if w.tiling.stages_p == 2 else 0


def p_of(w, iteration: Int32 | Any) -> cute.Tensor:
    """P of an iteration in shared memory."""
    return w.storage.sP[None, None, p_stage(w, iteration)] if w.tiling.stages_p == 2 else w.storage.sP


@cute.jit
def add_unless_first(w, rdQ: cute.Tensor | None, iteration: Int32, target: Int64) -> None:
    """Adds the last step's dQ in memory, if there was a last step; a block's last one notifies the release warp."""
    if cutlass.const_expr(not w.variant.separate_dq):  # noqa: SIM102
        if iteration > 0:
            add_fragment(w, rdQ, rank_of(w, (iteration - 1) // w.tiling.steps), target)
    if cutlass.const_expr(w.tiling.release_warp):  # noqa: SIM102
        if iteration > 0 and iteration % w.tiling.steps == 0:
            notify_release_warp()


@cute.jit
def ended_step(w, step: Int32, steps: Int32) -> Int32:
    """The kernel's injection point of that name."""
    return w.kernel.ended_step(step, steps)


@cute.jit
def release_last(w, iteration: Int32) -> None:
    """Releases, for ordered adds and in a block's first step, the block before, whose last adds all threads had issued
    before the barrier. A semaphore-release warp does so instead, if there is one."""
    if cutlass.const_expr(w.variant.deterministic and not w.tiling.release_warp):  # noqa: SIM102
        if iteration > 0 and iteration % w.tiling.steps == 0:
            release_by_one_thread(w, block_at(w.storage.sEntries, iteration // w.tiling.steps - 1))


@cute.jit
def await_acquired(w, iteration: Int32) -> None:
    """Waits, for ordered adds and in a block's first step, until the semaphore-wait warp has acquired the block's
    semaphore. Each warpgroup waits by itself, so that the two need not wait for one another."""
    if cutlass.const_expr(w.variant.deterministic):  # noqa: SIM102
        if iteration >= 0 and iteration % w.tiling.steps == 0:
            await_wait_warp(w)


@cute.jit
def announce(w, step: Int32) -> None:
    """Announces a block in its first step, for ordered adds: its semaphore is awaited in the next step."""
    if cutlass.const_expr(w.variant.deterministic):  # noqa: SIM102
        if step == 0:
            announce_block(w.thread)


@cute.jit
def meet() -> None:
    """Synchronises the multiplying threads: their reads and writes of shared memory are done, loads have arrived, and
    wgmma may read all of it."""
    cute.arch.cp_async_wait_group(0)
    publish()
    sync_multiplying()
