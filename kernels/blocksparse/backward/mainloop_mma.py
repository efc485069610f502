"""The loop of a CTA over the steps of its row of blocks, by warps (mma.sync), and what both loops share.

NOTE [groups] A tile of keys is shared by groups of neighbouring warps: what a group needs of P and dS for its part of
dV and dK, it has computed itself. So within a step it waits for itself only, and groups drift apart, one computing
exponentials while another multiplies. Only dQ needs all of dS; it is computed one step late, after the next barrier, or
where shared memory holds dS of a whole block and of one more step, for all steps of a block at once: K, which they
share, is then read once, and what products read from shared memory is what bounds these kernels.

NOTE [acquire and release] A block's semaphore is acquired by one thread of warp 1 while all compute, before the barrier
that lets all threads add: of its first step, or where all steps are added at once, of its last one. Its last step's
adds are issued early in the next block's first step: there all warps but warp 0 arrive at a barrier of their own and go
on, and warp 0, which waits for them, releases the semaphore. So a release waits for no acquire: otherwise a CTA that
waits would keep others waiting for adds that it has long issued.
"""

from types import SimpleNamespace
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator, masking, softmax_gradient
from kernels.blocksparse.backward.gemms import share
from kernels.blocksparse.backward.load import load_step
from kernels.blocksparse.backward.mma import accumulator, begin, multiply, multiply_each
from kernels.blocksparse.backward.named_barriers import NamedBarrier
from kernels.blocksparse.backward.tile_iterator import Block, block_at, load_entry, rank_at
from kernels.blocksparse.backward.tiling import HALF, THREADS
from kernels.blocksparse.common import bulk
from kernels.blocksparse.common.layouts import rows_columns


class Work(SimpleNamespace):
    """All that the loop over one tile of keys uses; kernel.py lists it where it makes one, and what only the threads
    that multiply have in multiply_row."""


@cute.jit
def mainloop_mma(w) -> None:
    """All steps of the row: rdK and rdV, whose products are added to them, and dQ in memory. The first step's loads
    have been started."""
    tiling, storage, thread = w.tiling, w.storage, w.thread
    steps, stages, stages_ds, at_once = tiling.steps, tiling.stages, tiling.stages_ds, tiling.steps_dq
    iterations = w.total * steps
    target = Int64(0)
    early = at_once == 1  # dQ's first piece of K comes before the barrier; else its registers are needed for sums of dQ
    if cutlass.const_expr(early):
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
    for iteration in cutlass.range(iterations, unroll=1):
        entry, step, stage = iteration // steps, iteration % steps, iteration % stages
        cute.arch.cp_async_wait_group(0)
        rK = begin(w.to_dq) if cutlass.const_expr(early) else None
        # this step's tiles and the last one's dS are here, and all threads are done with the last one's tiles
        cute.arch.sync_threads()
        refill(w, entry, step)
        block = block_at(storage.sEntries, entry)
        following = block_at(storage.sEntries, cutlass.min((iteration + 1) // steps, w.total - 1))
        if iteration > 0 and iteration % at_once == 0:
            add_dq(w, rK, iteration - at_once, rank_of(w, (iteration - 1) // steps), target)
            notify_added(w, entry, step)
            if cutlass.const_expr(stages_ds == 1):
                cute.arch.sync_threads()
        rWords = words_of(w, block, step)

        # P and dP - delta; no branch up to the mask, so that the compiler mixes what does not depend on one another
        rP = accumulator(w.to_s)
        rP.fill(Float32(0.0))
        multiply(w.to_s, rP, stage)
        if cutlass.const_expr(stages == 2):
            load_following(w, following, iteration, 1 - stage)
        rSlope: Any = cute.make_rmem_tensor_like(rP) if cutlass.const_expr(w.variant.softcap) else None
        probabilities(w, rP, rSlope, softmax_gradient.of_rows(storage.sLSE, w.words.row, stage))
        rdS = accumulator(w.to_dp)
        softmax_gradient.start_from_delta(
            w.kernel.start_of, rdS, softmax_gradient.of_rows(storage.sDelta, w.words.row, stage)
        )
        multiply(w.to_dp, rdS, stage)
        if is_masked(w, block):
            masking.apply_words(rows_columns(rP), rWords)
        share(w.to_s.mma, rP, storage.sP, thread, tiling.wide_stores)
        if cutlass.const_expr(w.variant.softcap):
            rP.store(rP.load() * rSlope.load())
        rdS.store(rdS.load() * rP.load())
        stage_ds = iteration % stages_ds
        share(w.to_dp.mma, rdS, storage.sdS[None, None, stage_ds], thread, tiling.wide_stores)
        sync_group(w)

        multiply(w.to_dv, w.rdV, 0, stage)
        if step == at_once - 1:
            acquire(w, block)
        multiply(w.to_dk, w.rdK, stage_ds, stage)
        release_previous(w, entry, step)
        target = target_of(w, block, step // at_once * at_once)

        if cutlass.const_expr(stages == 1):
            cute.arch.sync_threads()
            load_following(w, following, iteration, Int32(0))

    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    if iterations > 0:
        add_dq(w, None, iterations - at_once, rank_of(w, w.total - 1), target)
        end(w)


@cute.jit
def refill(w, entry: Int32, step: Int32) -> None:
    """Fills the other half of the entry buffer, two entries late: its last entry was still to be released."""
    if entry % HALF == 2 and entry > HALF and step == 0 and w.thread < HALF:
        place = entry - 2 + HALF + w.thread
        load_entry(w.variant, w.lists, w.order, w.counts, w.place, w.total, w.storage.sEntries, place)


@cute.jit
def load_following(w, following: Block, iteration: Int32, stage: Int32) -> None:
    """Starts loading the next step, if there is one."""
    steps = w.tiling.steps
    more = iteration + 1 < w.total * steps
    load_step(w.loads, w.place[0], w.seq_q, following, (iteration + 1) % steps, w.targets, stage, more)
    cute.arch.cp_async_commit_group()


@cute.jit
def words_of(w, block: Block, step: Int32) -> cute.Tensor:
    """The mask of a step: see masking.find_words."""
    return masking.find_words(
        w.variant,
        w.kernel.tail_mask,
        w.words,
        w.mask,
        w.place[0],
        w.band_offset,
        block,
        w.place[2],
        w.kernel.row_of_step(step, w.tiling.step_m),
        w.seq_q.length - block.m_block * w.variant.tile_m,
        w.keys_left,
    )


def is_masked(w, block: Block) -> cutlass.Boolean:
    """True where the mask or the end of the keys forbids anything in a block."""
    masked = w.keys_left < w.tiling.tile_n
    return masked if w.variant.mask == "none" else masked | (block.partial != 0)


@cute.jit
def probabilities(w, rP: cute.Tensor, rSlope: Any, lse2: Any) -> None:
    """S becomes P, not masked yet: see softmax_gradient.probabilities."""
    softmax_gradient.probabilities(w.variant.softcap, w.kernel.slope_of, rP, rSlope, lse2, w.factors)


@cute.jit
def target_of(w, block: Block, step: Int32) -> Int64:
    """The offset in the dQ accumulator at which a step's dQ is added."""
    tiling = w.tiling
    tile = (
        dq_accumulator.tile_number(w.loads.tiles, w.place[0], block.head, w.seq_q.begin, tiling.tile_m) + block.m_block
    )
    return (tile * tiling.tile_m + step * tiling.step_m) * tiling.dim


@cute.jit
def sync_multiplying() -> None:
    """A barrier of all threads that multiply."""
    cute.arch.barrier(barrier_id=int(NamedBarrier.MAIN), number_of_threads=THREADS)


@cute.jit
def sync_group(w) -> None:
    """A barrier of the warps of this thread's group."""
    groups = w.tiling.groups
    if cutlass.const_expr(groups == 1):
        sync_multiplying()
    elif cutlass.const_expr(groups == THREADS // 32):
        cute.arch.sync_warp()
    else:
        size = THREADS // groups
        cute.arch.barrier(barrier_id=int(NamedBarrier.GROUP) + w.thread // size, number_of_threads=size)


@cute.jit
def add_dq(w, rK: Any, first: Int32, rank: Any, target: Int64) -> None:
    """Computes dQ of iterations from `first` on, one or all of a block's, and adds it in memory. rK: what `begin`
    returned, or None; rank: the block's `rank_of`."""
    tiling, rdQ, stages = w.tiling, [], []
    for i in cutlass.range_constexpr(tiling.steps_dq):
        rdQ.append(accumulator(w.to_dq))
        rdQ[i].fill(Float32(0.0))
        stages.append((first + i) % tiling.stages_ds)
    multiply_each(w.to_dq, rdQ, stages, begin(w.to_dq) if cutlass.const_expr(rK is None) else rK)
    for i in cutlass.range_constexpr(tiling.steps_dq):
        add_fragment(w, rdQ[i], rank, target + i * tiling.step_m * tiling.dim)


def rank_of(w, entry: Int32) -> Int32 | None:
    """The rank of an entry for ordered adds; atomic ones have none."""
    return rank_at(w.storage.sEntries, entry) if w.variant.deterministic else None


@cute.jit
def add_fragment(w, rdQ: cute.Tensor, rank: Any, target: Int64) -> None:
    """Adds a step's dQ in memory, or stores it: NOTE [first add] of dq_accumulator.py. rank: the block's `rank_of`."""
    tile, vector = w.mdQ + cute.assume(target, divby=4), w.tiling.vector
    if cutlass.const_expr(w.variant.deterministic):
        if w.kernel.is_first(rank):
            dq_accumulator.store_fragment(rdQ, tile, w.thread, vector)
        else:
            dq_accumulator.add_fragment(rdQ, tile, w.thread, vector)
    else:
        dq_accumulator.add_fragment(rdQ, tile, w.thread, vector)


@cute.jit
def add_run(w, rank: Any, target: cute.Pointer, source: cute.Pointer, bytes_: Any) -> None:
    """Starts, in one thread, to add adjacent values of dQ in memory, or to store them: NOTE [first add] of
    dq_accumulator.py. rank: the block's `rank_of`; bytes_: int or Int32."""
    if cutlass.const_expr(w.variant.deterministic):
        if w.kernel.is_first(rank):
            bulk.store_run(target, source, bytes_)
        else:
            bulk.add_run(target, source, bytes_)
    else:
        bulk.add_run(target, source, bytes_)


@cute.jit
def acquire(w, block: Block) -> None:
    """Acquires, for ordered adds and in one thread, the semaphore of the dQ tile that a block is added to."""
    if cutlass.const_expr(w.variant.deterministic):  # noqa: SIM102
        if w.thread == 32:
            wait(w, block)


@cute.jit
def wait(w, block: Block, part: Int32 | None = None) -> None:
    """Waits until a block's semaphore equals its lock. part: as for `semaphore_of`."""
    w.kernel.wait(semaphore_of(w, block, part), w.kernel.lock_of(block.rank, w.place[2]))


@cute.jit
def is_open(w, block: Block, part: Int32 | None = None) -> Boolean:
    """True where a block's semaphore has its lock: it is acquired then."""
    value = cute.arch.load(semaphore_of(w, block, part), Int32, sem="acquire", scope="gpu")
    return value == w.kernel.lock_of(block.rank, w.place[2])


def semaphore_of(w, block: Block, part: Int32 | None = None) -> cute.Pointer:
    """The semaphore of the dQ tile that a block is added to. part: which of several, each for a part of the tile's
    adds (`semaphores_of_tile`); None for the first, which is for all adds of a kernel that has one."""
    first = w.kernel.semaphore(w.order, w.counts, w.place[0], block)
    if part is None:
        return first
    return first + part * (Int64(w.counts.batch * w.counts.heads_q) * w.counts.m_blocks)


@cute.jit
def notify_added(w, entry: Int32, step: Int32) -> None:
    """Arrives at the ADDED barrier, for ordered adds: in a block's first step, after the adds of the block before."""
    if cutlass.const_expr(w.variant.deterministic):  # noqa: SIM102
        if entry > 0 and step == 0 and w.thread >= 32:
            cute.arch.barrier_arrive(barrier_id=int(NamedBarrier.ADDED), number_of_threads=THREADS)


@cute.jit
def release_previous(w, entry: Int32, step: Int32) -> None:
    """Releases, for ordered adds and in warp 0, the block before, once all threads have added it: in a block's first
    step."""
    if cutlass.const_expr(w.variant.deterministic):  # noqa: SIM102
        if entry > 0 and step == 0 and w.thread < 32:
            cute.arch.barrier(barrier_id=int(NamedBarrier.ADDED), number_of_threads=THREADS)
            release_by_one_thread(w, block_at(w.storage.sEntries, entry - 1))


@cute.jit
def end(w) -> None:
    """Ends the row after the last adds: no thread reads K any more, and the last block is released."""
    w.kernel.before_reuse(w.thread)
    if cutlass.const_expr(w.variant.deterministic):
        release_by_one_thread(w, block_at(w.storage.sEntries, w.total - 1))


@cute.jit
def release_by_one_thread(w, block: Block) -> None:
    """Releases a block's semaphore in one thread, after a barrier that follows all threads' adds of the block."""
    if w.thread == 0:
        release(w, block)


@cute.jit
def release(w, block: Block, part: Int32 | None = None) -> None:
    """Releases a block's semaphore, which the next block waits for. part: as for `semaphore_of`."""
    w.kernel.release(semaphore_of(w, block, part))
