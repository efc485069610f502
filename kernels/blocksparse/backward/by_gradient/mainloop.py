# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loops of the two multiplying warpgroups: NOTE [a gradient each] of kernel.py. Steps of 64 queries; S, P, dP and
dS have the tile's 64 keys as rows. Of a step, in the order in which each warpgroup comes to it:

    warpgroup of dV                                  warpgroup of dK
    P           masked; in float32 to shared memory  dP - delta
    dV          issued, P from registers             P is there: dS, in registers and to shared memory
    dS is there: dQ issued                           dK          issued, dS from registers; done: Q is released
    dV is done: dO is released                       dQ          issued
    dQ is done: its first piece is handed over       dQ is done: its first piece is handed over
    S of the next step issued                        dP of the next step issued, whose dO has come
    the second piece is handed over                  the second piece is handed over
    S is done                                        dP is done

Each warpgroup has half of dQ's columns, and hands them over to its dQ warp in two pieces, in shared memory, which has
room for one piece of each. A piece ends with the head dim. Registers allow no more in flight at head dim 256: with S of
the next step beside dV, or dQ beside dK, ptxas serialises all products (C7512).

NOTE [dQ at once] Up to head dim 192 the second half of dQ is one piece, or less. The warpgroup of dV has it: that of dK
has time, as it waits for P (`groups_of_gradients`). With atomic adds the warpgroup of dK hands over both of its pieces
at once. The second one lies in columns from 192 on of K's and V's tiles, which no product reads. So the warpgroup waits
for what its dQ warp read a step ago, and not for the piece before. Ordered adds leave the pieces apart: each half of a
step has a semaphore of its own.

NOTE [turns by gradient] Two named barriers order a step: P is in shared memory, then dS is. Each is also the sign that
the other buffer may be written again. P of a step is written after dS of the step before has come, which was made from
P; dS of a step is written after P of the step has come, before which the other warpgroup finished the last step's dQ.
No product is in flight where a loop turns (C7514 of ptxas: transposed/mainloop.py).
"""

from enum import IntEnum

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from kernels.blocksparse.backward import dq_accumulator, masking
from kernels.blocksparse.backward.gemms import share_rounded
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.tiling import DQ_COLUMNS, THREADS, floats_of_piece, pieces_of_dq
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.mainloop import rounded, scores_to_probabilities, subtract_delta
from kernels.blocksparse.backward.transposed.mainloop_dkdv import words_of_step
from kernels.blocksparse.backward.transposed.query_words import find_kept
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.backward.wgmma import WARPGROUP, finish, issue, issue_from_registers, publish
from kernels.blocksparse.common.layouts import as_operand_a, rows_columns
from kernels.blocksparse.common.mask_words import branch

PIECES = 2  # of a warpgroup's dQ of a step, DQ_COLUMNS each
VECTOR = 4  # floats that a thread writes and reads at once
WARPS = 3  # that add dQ where adds are ordered
AT_ONCE = 16  # values of P that a thread reads before it multiplies them


class Barrier(IntEnum):
    """Named barriers beside those of `DqBarrier`: P and dS are in shared memory; dS is, for the warpgroup that wrote
    it; where adds are ordered, the first of one for each dQ warp and warpgroup: its buffer has a piece for the warp."""

    P = 6
    DS = 7
    OWN_DS = 8
    FULL_IN_TURN = 9


@cute.jit
def loop_of_dv(w) -> None:
    """All steps of a row in the warpgroup of dV: rdV, to which products are added, and half of dQ's columns."""
    tiling, stages, stages_q = w.tiling, w.tiling.stages, w.tiling.stages_q
    iterations = w.total * tiling.steps
    at_first, *behind = hand_overs(w, w.group)
    rS = accumulator(w.to_s)
    rWords = cute.make_rmem_tensor(tiling.step_m // 32, Uint32)
    if iterations > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        turns.await_full(w.q_full, Int32(0), stages_q)
        issue(w.to_s, rS, 0, 0, add=False)
        masked = words_of_step(w, rWords, Int32(0))
        finish()
        for step in cutlass.range(iterations, unroll=1):
            rSlope = cute.make_rmem_tensor_like(rS) if cutlass.const_expr(w.variant.softcap) else None
            scores_to_probabilities(w, rS, rSlope, step % stages_q, tiling.step_m)
            turns.arrive_empty(w.q_empty, step, stages_q)
            for _ in cutlass.range(branch(masked)):
                masking.apply_words(rows_columns(rS), find_kept(w, rWords))
            rP = rounded(rS, w.dtype)
            if cutlass.const_expr(w.variant.softcap):
                rS.store(rS.load() * rSlope.load())
            give_p(w, rS)
            turns.await_full(w.do_full, step, stages)
            issue_from_registers(w.to_dv, w.rdV, as_operand_a(rP), step % stages)

            await_ds()
            rdQ = accumulator(w.to_dq)
            issue(w.to_dq, rdQ, 0, w.group, add=False)
            finish(1)
            turns.arrive_empty(w.do_empty, step, stages)
            finish()
            hand_over_dq(w, rdQ, step, at_first)
            # the last step multiplies its own scores once more, which nobody reads: no branch around a product
            following = cutlass.min(step + 1, iterations - 1)
            turns.await_full(w.q_full, following, stages_q)
            rNext = accumulator(w.to_s)
            issue(w.to_s, rNext, 0, following % stages_q, add=False)
            for pieces in behind:
                hand_over_dq(w, rdQ, step, pieces)
            masked = words_of_step(w, rWords, following)
            finish()
            rS.store(rNext.load())
        drain_dq(w)


@cute.jit
def loop_of_dk(w) -> None:
    """All steps of a row in the warpgroup of dK: rdK, to which products are added, and the other half of dQ."""
    tiling, stages, stages_q = w.tiling, w.tiling.stages, w.tiling.stages_q
    iterations = w.total * tiling.steps
    at_first, *behind = hand_overs(w, w.group)
    rdP = accumulator(w.to_dp)
    if iterations > 0:
        cute.arch.mbarrier_wait(w.v_full, 0)
        turns.await_full(w.do_full, Int32(0), stages)
        issue(w.to_dp, rdP, 0, 0, add=False)
        cute.arch.mbarrier_wait(w.k_full, 0)
        finish()
        for step in cutlass.range(iterations, unroll=1):
            subtract_delta(w, rdP, step % stages, tiling.step_m)
            turns.arrive_empty(w.do_empty, step, stages)
            take_p(w, rdP)
            rdS = rounded(rdP, w.dtype)
            share_rounded(w.to_dp.mma, rdS, w.storage.sdS, w.thread)
            publish()
            give_ds()
            turns.await_full(w.q_full, step, stages_q)
            issue_from_registers(w.to_dk, w.rdK, as_operand_a(rdS), step % stages_q)
            await_own_ds()
            finish()
            turns.arrive_empty(w.q_empty, step, stages_q)
            rdQ = accumulator(w.to_dq)
            issue(w.to_dq, rdQ, 0, w.group, add=False)
            finish()
            hand_over_dq(w, rdQ, step, at_first)

            # the last step multiplies its own dO once more, which nobody reads
            following = cutlass.min(step + 1, iterations - 1)
            turns.await_full(w.do_full, following, stages)
            rNext = accumulator(w.to_dp)
            issue(w.to_dp, rNext, 0, following % stages, add=False)
            for pieces in behind:
                hand_over_dq(w, rdQ, step, pieces)
            finish()
            rdP.store(rNext.load())
        drain_dq(w)


def at_once(w) -> bool:
    """True where warpgroups hand over all their dQ of a step at once: NOTE [dQ at once]."""
    return w.tiling.dq_at_once and not w.variant.deterministic


def hand_overs(w, group: int) -> list[range]:
    """The pieces of a warpgroup's dQ of a step: those that it hands over together, one after the other."""
    pieces = range(pieces_of_dq(w.tiling, group))
    return [pieces] if at_once(w) else [pieces[i : i + 1] for i in pieces]


def shares_tiles(w, group: int) -> bool:
    """True where a warpgroup leaves a part of its dQ in K's and V's tiles."""
    if w.tiling.exchanges:
        return bool(group) and not w.tiling.dq_in_p
    return len(hand_overs(w, group)[0]) > 1


@cute.jit
def hand_over_dq(w, rdQ: cute.Tensor, step: Int32, pieces: cutlass.Constexpr) -> None:
    """Leaves pieces (a range) of a warpgroup's dQ of a step in shared memory for a dQ warp, in the order of NOTE [dQ
    accumulator]."""
    if cutlass.const_expr(not in_p(w)):
        turns.await_dq(DqBarrier.EMPTY, w.group)
    given = pieces.start * w.tiling.step_m * DQ_COLUMNS // WARPGROUP
    for start, floats in runs_of_dq(w, w.group, pieces):
        own = floats // WARPGROUP
        values = cute.make_tensor(rdQ.iterator + given, cute.make_layout(own))
        place = start + cute.assume(w.thread * VECTOR, divby=VECTOR)
        here, there = dq_accumulator.fragment_views(values, place, WARPGROUP, VECTOR)
        cute.autovec_copy(here, there)
        given += own
    publish()
    if cutlass.const_expr(w.variant.deterministic):
        turns.arrive_dq(full_in_turn(step * turns_of_step(w) + pieces.start), w.group)
    else:
        turns.arrive_dq(DqBarrier.FULL, w.group)


def runs_of_dq(w, group: int, pieces: range) -> list[tuple[cute.Pointer, int]]:
    """(address in shared memory, floats) of the runs in which a warpgroup leaves pieces that it hands over together,
    one run after the other in the accumulator."""
    tiling = w.tiling
    runs = [(buffer_of(w, group), floats_of_piece(tiling, group, pieces.start))]
    if len(pieces) > 1:
        last = tiling.tile_n * (tiling.dim - DQ_COLUMNS)
        half = floats_of_piece(tiling, group, pieces.start + 1) // 2
        runs += [
            (cute.recast_ptr(x.iterator + last, dtype=Float32), half) for x in (w.storage.plainK, w.storage.plainV)
        ]
    return runs


def in_p(w) -> bool:
    """True for the warpgroup of dV where it leaves its dQ in P's buffer. It awaits that this has been read before it
    writes P."""
    return w.tiling.dq_in_p and w.group == 0


def buffer_of(w, group: int) -> cute.Pointer:
    """A warpgroup's buffer for a piece of dQ. Where CTAs exchange dS, that of the warpgroup of dV is in K's last
    columns, which no product reads, or P's."""
    if w.tiling.dq_in_p:
        return w.storage.sdQ.iterator if group else w.storage.sP.iterator
    if w.tiling.exchanges and group:
        last = w.tiling.tile_n * (w.tiling.dim - DQ_COLUMNS)
        return cute.recast_ptr(w.storage.plainK.iterator + last, dtype=Float32)
    size = w.tiling.step_m * DQ_COLUMNS
    return w.storage.sdQ.iterator + cute.assume(group * size, divby=size)


@cute.jit
def drain_dq(w) -> None:
    """Behind a row's last step: a dQ warp has read what lies in K's and V's tiles, where dK and dV go."""
    if cutlass.const_expr(shares_tiles(w, w.group)):
        turns.await_dq(DqBarrier.EMPTY, w.group)


def turns_of_step(w) -> int:
    """Parts of a step that the dQ warps of ordered adds take in turns, each with a semaphore: pieces, or where CTAs
    exchange dS the whole of what a CTA adds."""
    return 1 if w.tiling.exchanges else PIECES


def full_in_turn(half: Int32) -> Int32:
    """The barrier, of the first warpgroup, at which the dQ warp of half a step awaits its pieces: NOTE [ordered adds in
    turns] of dq_warps.py. A warp has barriers of its own, as it may come to its next half before others end theirs."""
    return Int32(Barrier.FULL_IN_TURN) + Int32(Uint32(half) % WARPS) * GROUPS


@cute.jit
def give_p(w, rP: cute.Tensor) -> None:
    """Leaves P, or under a soft cap P times the slope, in shared memory for the warpgroup of dK, whose threads hold
    the same places of dP."""
    if cutlass.const_expr(w.tiling.dq_in_p):
        turns.await_dq(DqBarrier.EMPTY, w.group)
    here, there = dq_accumulator.fragment_views(rP, p_of_thread(w), WARPGROUP, VECTOR)
    cute.autovec_copy(here, there)
    cute.arch.barrier_arrive(barrier_id=int(Barrier.P), number_of_threads=THREADS)


@cute.jit
def take_p(w, rdP: cute.Tensor) -> None:
    """dP becomes dS: it is multiplied by P once that is there."""
    cute.arch.barrier(barrier_id=int(Barrier.P), number_of_threads=THREADS)
    for first in cutlass.range_constexpr(0, cute.size(rdP), AT_ONCE):
        rP = cute.make_rmem_tensor(AT_ONCE, Float32)
        here, there = dq_accumulator.fragment_views(rP, p_of_thread(w) + first * WARPGROUP, WARPGROUP, VECTOR)
        cute.autovec_copy(there, here)
        part = cute.make_tensor(rdP.iterator + first, cute.make_layout(AT_ONCE))
        part.store(part.load() * rP.load())


def p_of_thread(w) -> cute.Pointer:
    """Where a thread's first values of P lie."""
    return w.storage.sP.iterator + cute.assume(w.thread * VECTOR, divby=VECTOR)


@cute.jit
def give_ds() -> None:
    """The warpgroup of dK: dS is in shared memory."""
    cute.arch.barrier_arrive(barrier_id=int(Barrier.DS), number_of_threads=THREADS)


@cute.jit
def await_ds() -> None:
    """The warpgroup of dV: waits for dS."""
    cute.arch.barrier(barrier_id=int(Barrier.DS), number_of_threads=THREADS)


@cute.jit
def await_own_ds() -> None:
    """The warpgroup of dK: waits until all of its threads have written dS."""
    cute.arch.barrier(barrier_id=int(Barrier.OWN_DS), number_of_threads=WARPGROUP)
