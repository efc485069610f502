# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The main loop of the kernel that works through runs of tiles (runs_kernel.py). In a step:

    S, dP                              issued
    S is there: P                      in registers, masked where the piece is not a run, while dP runs
    dP is there: dS                    in registers and shared memory
    dV                                 issued
    the other warpgroup's dS is there
    dQ                                 issued; dV is done
    dK                                 issued; dQ is done: to shared memory, while dK runs

Registers for sums of 80 queries leave none for the next step's S.
"""

import cutlass
from cutlass import Int32, Uint32, cute

from kernels.blocksparse.backward import dq_accumulator, masking
from kernels.blocksparse.backward.gemms import share_rounded
from kernels.blocksparse.backward.mainloop_mma import is_masked
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import HALF, RUN_STEP, THREADS
from kernels.blocksparse.backward.transposed import mainloop, turns
from kernels.blocksparse.backward.transposed.query_words import find_kept, prefetch_words
from kernels.blocksparse.backward.transposed.runs_loads import RUN_STEPS
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.backward.wgmma import WARPGROUP, finish, issue, issue_from_registers, publish
from kernels.blocksparse.common.layouts import as_operand_a, rows_columns, tile_layout
from kernels.blocksparse.common.mask_words import branch


@cute.jit
def mainloop_runs(w) -> None:
    """Runs all steps of the row: rdK and rdV, to which products are added, and dQ."""
    storage, stages, before_reuse = w.storage, w.tiling.stages, w.kernel.before_reuse
    windows = (w.total + HALF - 1) // HALF
    step = Int32(0)
    if windows > 0:
        cute.arch.mbarrier_wait(w.k_full, 0)
        cute.arch.mbarrier_wait(w.v_full, 0)
        for window in cutlass.range(windows, unroll=1):
            turns.await_full(w.q_full, step, stages)
            pieces = storage.sPieces[window % 2]
            for piece in cutlass.range(pieces, unroll=1):
                turns.await_full(w.q_full, step, stages)
                place = window % 2 * HALF + piece
                block = block_at(storage.sEntries, place)
                if block.rank != 0:
                    for part in cutlass.range(RUN_STEPS, unroll=1):
                        multiply_step(w, w.wide, place, part, step)
                        step += 1
                else:
                    for part in cutlass.range(w.tiling.steps, unroll=1):
                        multiply_step(w, w.narrow, place, part, step)
                        step += 1
        before_reuse(w.thread)


@cute.jit
def multiply_step(w, products, place: Int32, part: Int32, step: Int32) -> None:
    """One step. products: those of its number of queries; place: of its piece in the entry buffer."""
    storage, thread, stages = w.storage, w.thread, w.tiling.stages
    stage = step % stages
    turns.await_full(w.q_full, step, stages)
    rS, rdP, rdQ = accumulator(products.to_s), accumulator(products.to_dp), accumulator(products.to_dq)
    issue(products.to_s, rS, 0, stage, add=False)
    turns.await_full(w.do_full, step, stages)
    issue(products.to_dp, rdP, 0, stage, add=False)
    if cutlass.const_expr(products.rows == RUN_STEP):
        finish(1)
        mainloop.scores_to_probabilities(w, rS, None, stage, RUN_STEP, RUN_STEP)
    else:
        rWords = cute.make_rmem_tensor(products.rows // 32, Uint32)
        block = block_at(storage.sEntries, place)
        masked = is_masked(w, block)
        prefetch_words(w, rWords, block, part, masked)
        finish(1)
        mainloop.scores_to_probabilities(w, rS, None, stage, products.rows, RUN_STEP)
        for _ in cutlass.range(branch(masked)):
            masking.apply_words(rows_columns(rS), find_kept(w, rWords))
    rP = mainloop.rounded(rS, w.dtype)
    finish()
    mainloop.subtract_delta(w, rdP, stage, products.rows, RUN_STEP)
    rdP.store(rdP.load() * rS.load())
    rdS = mainloop.rounded(rdP, w.dtype)
    share_rounded(products.to_s.mma, rdS, sds_of(w, products.rows, stage), thread, True, True)
    issue_from_registers(products.to_dv, w.rdV, as_operand_a(rP), stage)
    publish()
    cute.arch.barrier(barrier_id=DqBarrier.DS, number_of_threads=THREADS)
    issue(products.to_dq, rdQ, 0, stage, add=False)
    finish(1)
    turns.arrive_empty(w.do_empty, step, stages)
    issue_from_registers(products.to_dk, w.rdK, as_operand_a(rdS), stage)
    finish(1)
    hand_over_dq(w, rdQ)
    finish()
    turns.arrive_empty(w.q_empty, step, stages)


def sds_of(w, rows: int, stage: Int32) -> cute.Tensor:
    """dS of a stage, (rows, keys), as threads write it."""
    tile_n = w.tiling.tile_n
    layout = tile_layout(rows, tile_n)
    return cute.make_tensor(w.storage.sdS.iterator + cute.assume(stage * (RUN_STEP * tile_n), divby=1024), layout)


@cute.jit
def hand_over_dq(w, rdQ: cute.Tensor) -> None:
    """Leaves a warpgroup's share of dQ in shared memory for the dQ warp, in the order of NOTE [dQ by dim]."""
    group, vector = cute.arch.make_warp_uniform(w.thread // WARPGROUP), w.tiling.vector
    turns.await_dq(DqBarrier.EMPTY, group)
    first = group * (RUN_STEP * w.tiling.dim // GROUPS) + w.thread % WARPGROUP * vector
    here, there = dq_accumulator.fragment_views(
        rdQ, w.storage.sdQ.iterator + cute.assume(first, divby=vector), WARPGROUP, vector
    )
    cute.autovec_copy(here, there)
    publish()
    turns.arrive_dq(DqBarrier.FULL, group)
