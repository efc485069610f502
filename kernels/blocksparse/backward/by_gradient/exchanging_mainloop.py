# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loops of the two multiplying warpgroups where CTAs exchange dS: those of mainloop.py, but dQ of a step has two
products, over the CTA's own keys and over the peer's. The peer's dS comes later than the CTA's own. So the warpgroup of
dV issues S of the next step between the two:

    warpgroup of dV                                  warpgroup of dK
    P           masked; in float32 to shared memory  dP - delta
    dV          issued, P from registers             P is there: dS, in registers and to shared memory
    dS is there: dQ of the own keys issued           dK          issued; dS is sent to the peer
    dV is done: dO is released                       dK is done: Q is released
    S of the next step issued                        dQ of the own keys issued
    the peer's dS is there: dQ of its keys issued    the peer's dS is there: dQ of its keys issued
    all is done: the peer may send; dQ handed over   all is done: the peer may send; dQ handed over
                                                     dP of the next step issued, whose dO has come; done

A warpgroup has 64 columns of dQ or 32, one piece: NOTE [exchanged dS] of exchange.py. The first columns of K and V stay
in registers: NOTE [held keys] of transposed/mainloop.py.
"""

import cutlass
from cutlass import Int32, Uint32, cute

from kernels.blocksparse.backward import masking
from kernels.blocksparse.backward.by_gradient import exchange
from kernels.blocksparse.backward.by_gradient.mainloop import (
    await_ds,
    await_own_ds,
    drain_dq,
    give_ds,
    give_p,
    hand_over_dq,
    take_p,
)
from kernels.blocksparse.backward.gemms import share_rounded
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.mainloop import rounded, scores_to_probabilities, subtract_delta
from kernels.blocksparse.backward.transposed.mainloop_dkdv import words_of_step
from kernels.blocksparse.backward.transposed.query_words import find_kept
from kernels.blocksparse.backward.wgmma import finish, hold, issue, issue_from_registers, issue_held, publish
from kernels.blocksparse.common.layouts import as_operand_a, rows_columns
from kernels.blocksparse.common.mask_words import branch

PIECE = range(1)  # of a warpgroup's dQ of a step


@cute.jit
def loop_of_dv(w) -> None:
    """All steps of a row in the warpgroup of dV: rdV, to which products are added, and its columns of dQ."""
    tiling, stages, stages_q, held = w.tiling, w.tiling.stages, w.tiling.stages_q, w.tiling.held_columns
    steps = w.total * tiling.steps
    rS = accumulator(w.to_s)
    rWords = cute.make_rmem_tensor(tiling.step_m // 32, Uint32)
    if steps > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        exchange.let_send(w)
        rK = hold(w.to_s, w.storage.plainK, held, w.thread) if cutlass.const_expr(held) else None
        turns.await_full(w.q_full, Int32(0), stages_q)
        issue_held(w.to_s, rS, rK, held, 0)
        masked = words_of_step(w, rWords, Int32(0))
        finish()
        exchange.await_keys(w)
        for step in cutlass.range(steps, unroll=1):
            scores_to_probabilities(w, rS, None, step % stages_q, tiling.step_m)
            turns.arrive_empty(w.q_empty, step, stages_q)
            for _ in cutlass.range(branch(masked)):
                masking.apply_words(rows_columns(rS), find_kept(w, rWords))
            rP = rounded(rS, w.dtype)
            give_p(w, rS)
            turns.await_full(w.do_full, step, stages)
            issue_from_registers(w.to_dv, w.rdV, as_operand_a(rP), step % stages)

            await_ds()
            rdQ = accumulator(w.to_dq)
            issue(w.to_dq, rdQ, 0, w.atom, add=False)
            finish(1)
            turns.arrive_empty(w.do_empty, step, stages)
            # the last step multiplies its own scores once more, which nobody reads: no branch around a product
            following = cutlass.min(step + 1, steps - 1)
            turns.await_full(w.q_full, following, stages_q)
            rNext = accumulator(w.to_s)
            issue_held(w.to_s, rNext, rK, held, following % stages_q)
            exchange.await_ds(w, step)
            issue(w.to_peer_dq, rdQ, 0, w.peer_atom)
            finish()
            exchange.let_send(w)
            hand_over_dq(w, rdQ, step, PIECE)
            masked = words_of_step(w, rWords, following)
            rS.store(rNext.load())
        drain_dq(w)


@cute.jit
def loop_of_dk(w) -> None:
    """All steps of a row in the warpgroup of dK: rdK, to which products are added, and its columns of dQ."""
    tiling, stages, stages_q, held = w.tiling, w.tiling.stages, w.tiling.stages_q, w.tiling.held_columns
    steps = w.total * tiling.steps
    rdP = accumulator(w.to_dp)
    if steps > 0:
        cute.arch.mbarrier_wait(w.v_full, 0)
        exchange.let_send(w)  # not before V is there, in whose tile the peer's dS comes
        rV = hold(w.to_dp, w.storage.plainV, held, w.thread) if cutlass.const_expr(held) else None
        turns.await_full(w.do_full, Int32(0), stages)
        issue_held(w.to_dp, rdP, rV, held, 0)
        cute.arch.mbarrier_wait(w.k_full, 0)
        finish()
        exchange.await_keys(w)
        for step in cutlass.range(steps, unroll=1):
            subtract_delta(w, rdP, step % stages, tiling.step_m)
            turns.arrive_empty(w.do_empty, step, stages)
            take_p(w, rdP)
            rdS = rounded(rdP, w.dtype)
            exchange.await_leave(w, step)
            share_rounded(w.to_dp.mma, rdS, w.storage.sdS, w.thread)
            publish()
            give_ds()
            turns.await_full(w.q_full, step, stages_q)
            issue_from_registers(w.to_dk, w.rdK, as_operand_a(rdS), step % stages_q)
            await_own_ds()
            exchange.send_ds(w)
            finish()
            turns.arrive_empty(w.q_empty, step, stages_q)
            rdQ = accumulator(w.to_dq)
            issue(w.to_dq, rdQ, 0, w.atom, add=False)
            exchange.await_ds(w, step)
            exchange.expect_next(w, step, steps)
            issue(w.to_peer_dq, rdQ, 0, w.peer_atom)
            finish()
            exchange.let_send(w)
            hand_over_dq(w, rdQ, step, PIECE)

            # the last step multiplies its own dO once more, which nobody reads
            following = cutlass.min(step + 1, steps - 1)
            turns.await_full(w.do_full, following, stages)
            rNext = accumulator(w.to_dp)
            issue_held(w.to_dp, rNext, rV, held, following % stages)
            finish()
            rdP.store(rNext.load())
        exchange.await_leave(w, steps)  # the peer has read K, and all dS
        drain_dq(w)
