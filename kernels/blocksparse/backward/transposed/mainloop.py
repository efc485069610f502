# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The transposed main loop: multiplying warpgroups, each with half of a tile's keys as rows of S, dP, dK and dV.

P and dS so stay in registers as operand A of dV and dK; only dS goes to shared memory too, for dQ. In a step:

    S, dP                              issued
    S is there: P                      in registers, masked, while dP runs
    dP is there: dS                    in registers and shared memory
    dV                                 issued
    the other warpgroup's dS is there
    dQ                                 issued; dV is done
    dK                                 issued; dQ is done: to shared memory, for the dQ warp, while dK runs

NOTE [delayed dQ] dQ needs dS of both warpgroups. A step that computes its own dQ makes the warpgroups meet, so that
their exponentials come at the same time and the tensor cores idle. So a step computes dQ of the step before it, whose
dS has long been there: a warpgroup may be most of a step ahead, and one's products run during the other's exponentials.
The second one begins a tile behind the first one's S and dP, so that they are apart from the start. Which kernels do
not: `_delays_dq` of tiling.py.

NOTE [held keys] Each step reads K and V again, operand A of S and dP. Where registers have room, the first columns of
both stay in them for a whole tile, so that a step reads less of shared memory: `_held_columns` of tiling.py, by what
was faster (docs/performance/log.md).

No product is in flight where the loop turns: ptxas would serialise all of them (C7514), as it does where registers do
not suffice (C7512): for dV issued before dS is computed, or S of the next step beside steps of 80 queries.
"""

from enum import Enum

import cutlass
from cutlass import BFloat16, Float32, Int32, Uint32, cute

from kernels.blocksparse.backward import dq_accumulator, masking, softmax_gradient
from kernels.blocksparse.backward.gemms import share_rounded
from kernels.blocksparse.backward.mainloop_mma import is_masked
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import RUN_STEP
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.query_words import find_kept, prefetch_words
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.backward.wgmma import WARPGROUP, finish, hold, issue, issue_from_registers, issue_held, publish
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.layouts import as_operand_a, rows_columns, tile_layout
from kernels.blocksparse.common.mask_words import branch

ATOMS = 4  # of a thread's accumulator, for which LSE or delta is read at once: 32 queries


@cute.jit
def clear(w) -> None:
    """Sums of dK and dV before any product."""
    w.rdK.fill(Float32(0.0))
    w.rdV.fill(Float32(0.0))


class DqOf(Enum):
    """The step whose dQ a step computes."""

    NONE = "of none"
    STEP = "its own"
    STEP_BEFORE = "the one before"


@cute.jit
def mainloop_transposed(w, step: Int32) -> Int32:
    """Runs all steps of a tile that has blocks: rdK, rdV and dQ. step: those of earlier tiles; returns how many there
    are now."""
    rows, steps, delayed = w.tiling.step_m, w.tiling.steps, w.tiling.delays_dq
    turns.await_keys(w)
    held = held_keys(w, w)
    done, which = Int32(0), cutlass.const_expr(DqOf.STEP_BEFORE if delayed else DqOf.STEP)
    if cutlass.const_expr(delayed):
        multiply_step(w, w, held, rows, w.first_entry, Int32(0), step, DqOf.NONE, add=False)
        done = Int32(1)
    else:
        clear(w)
    total = (w.end_entry - w.first_entry) * steps
    for i in cutlass.range(done, total, unroll=1):
        entry = w.first_entry + i // steps
        if i % steps == 0 and i > 0:
            turns.end_window(w, entry)
        multiply_step(w, w, held, rows, entry, i % steps, step + i, which, last=i + 1 == total)
    turns.end_window(w, w.end_entry)
    step += total
    if cutlass.const_expr(delayed):
        finish_dq(w, w, step - 1, last=True)
    return step


def held_keys(w, products) -> tuple[cute.Tensor | None, cute.Tensor | None]:
    """The first columns of K and of V in registers, operand A of S and dP: NOTE [held keys]. Without any, None."""
    columns, thread, s = w.tiling.held_columns, w.thread, w.storage
    if not columns:
        return None, None
    return hold(products.to_s, s.plainK, columns, thread), hold(products.to_dp, s.plainV, columns, thread)


@cute.jit
def multiply_step(
    w,
    products,
    held,
    rows: cutlass.Constexpr,
    entry: Int32,
    part: Int32,
    step: Int32,
    dq_of: cutlass.Constexpr,
    add: cutlass.Constexpr = True,
    starts=True,
    last=False,
) -> None:
    """One step, of so many queries. products: those of its shape; held: as `held_keys` gives it; entry: its block's
    number in the entry buffer; part: which step of the block. Steps of RUN_STEP queries have no mask. add: to dK and
    dV, which else begin here. starts: for DqOf.NONE, True in a tile's first step; last: for DqOf.STEP, in its last one.
    """
    tiling, thread, stages, stages_q = w.tiling, w.thread, w.tiling.stages, w.tiling.stages_q
    stage, stage_q = stage_of(step, stages), stage_of(step, stages_q)
    turns.await_full(w.q_full, step, stages_q)
    if cutlass.const_expr(dq_of is DqOf.NONE):
        turns.await_start(w, starts)
    rS, rdP, rdQ = accumulator(products.to_s), accumulator(products.to_dp), accumulator(products.to_dq)
    issue_held(products.to_s, rS, held[0], tiling.held_columns, stage_q)
    turns.await_full(w.do_full, step, stages)
    issue_held(products.to_dp, rdP, held[1], tiling.held_columns, stage)
    if cutlass.const_expr(dq_of is DqOf.NONE):
        turns.let_start(w, starts)
    rSlope = cute.make_rmem_tensor_like(rS) if cutlass.const_expr(w.variant.softcap) else None
    # with runs, LSE and delta of the first atoms come from shared memory while the products run; alone it is slower
    ahead, lse2, delta = cutlass.const_expr(tiling.runs), None, None
    if cutlass.const_expr(ahead):
        lse2 = of_queries(w, w.storage.sLSE, stage_q * tiling.stage_rows, 0, ATOMS)
    if cutlass.const_expr(rows == RUN_STEP):
        finish(1)
        scores_to_probabilities(w, rS, rSlope, stage_q, rows, lse2)
    else:
        rWords = cute.make_rmem_tensor(rows // 32, Uint32)
        block = block_at(w.storage.sEntries, entry)
        masked = is_masked(w, block)
        prefetch_words(w, rWords, block, part, masked)
        finish(1)
        scores_to_probabilities(w, rS, rSlope, stage_q, rows, lse2)
        for _ in cutlass.range(branch(masked)):
            masking.apply_words(rows_columns(rS), find_kept(w, rWords))
    rP = rounded(rS, w.dtype)
    if cutlass.const_expr(w.variant.softcap):
        rS.store(rS.load() * rSlope.load())
    if cutlass.const_expr(ahead):
        delta = of_queries(w, w.storage.sDelta, stage * tiling.stage_rows, 0, ATOMS)
    finish()
    subtract_delta(w, rdP, stage, rows, delta)
    rdP.store(rdP.load() * rS.load())
    rdS = rounded(rdP, w.dtype)
    turns.await_empty(w.ds_empty, step, tiling.stages_ds)
    share_rounded(products.to_s.mma, rdS, scores_gradient_of(w, rows, step), thread, True, tiling.dq_by_dim)
    issue_from_registers(products.to_dv, w.rdV, as_operand_a(rP), stage, add)
    publish()
    turns.arrive_empty(w.ds_full, step, tiling.stages_ds)
    if cutlass.const_expr(dq_of is DqOf.NONE):
        issue_from_registers(products.to_dk, w.rdK, as_operand_a(rdS), stage_q, add)
        finish(1)
        turns.arrive_empty(w.do_empty, step, stages)
    else:
        of_step = step if cutlass.const_expr(dq_of is DqOf.STEP) else step - 1
        issue_dq(w, products, rdQ, of_step)
        finish(1)
        turns.arrive_empty(w.do_empty, step, stages)
        issue_from_registers(products.to_dk, w.rdK, as_operand_a(rdS), stage_q, add)
        finish(1)
        turns.arrive_empty(w.ds_empty, of_step, tiling.stages_ds)
        if cutlass.const_expr(dq_of is DqOf.STEP):
            turns.end_keys(w, last)
        hand_over_dq(w, rdQ, of_step)
    finish()
    turns.arrive_empty(w.q_empty, step, stages_q)


@cute.jit
def issue_dq(w, products, rdQ: cute.Tensor, step: Int32) -> None:
    """Starts dQ of a step when its dS is in shared memory, of both warpgroups."""
    stage = stage_of(step, w.tiling.stages_ds)
    turns.await_full(w.ds_full, step, w.tiling.stages_ds)
    stages_dq = (0, stage) if cutlass.const_expr(w.tiling.dq_by_dim) else (stage, 0)
    issue(products.to_dq, rdQ, *stages_dq, add=False)


@cute.jit
def finish_dq(w, products, step: Int32, last) -> None:
    """dQ of the last of the steps that compute dQ of the one before. last: it is the tile's last step."""
    rdQ = accumulator(products.to_dq)
    issue_dq(w, products, rdQ, step)
    finish()
    turns.arrive_empty(w.ds_empty, step, w.tiling.stages_ds)
    turns.end_keys(w, last)
    hand_over_dq(w, rdQ, step)


def scores_gradient_of(w, rows: int, step: Int32) -> cute.Tensor:
    """dS of a step as threads write it: (rows, keys) for a transposed dQ, else (keys, rows)."""
    tile_n, stage = w.tiling.tile_n, stage_of(step, w.tiling.stages_ds)
    layout = tile_layout(*((rows, tile_n) if w.tiling.dq_by_dim else (tile_n, rows)))
    first = cute.assume(stage * (w.tiling.stage_rows * tile_n), divby=1024)
    return cute.make_tensor(w.storage.sdS.iterator + first, layout)


@cute.jit
def hand_over_dq(w, rdQ: cute.Tensor, step: Int32) -> None:
    """Leaves a warpgroup's share of a step's dQ in shared memory for the dQ warp, in the order of NOTE [dQ
    accumulator]."""
    group, vector = cute.arch.make_warp_uniform(w.thread // WARPGROUP), w.tiling.vector
    buffer = turns.buffer_of(w, step)
    turns.await_dq(DqBarrier.EMPTY, group, buffer)
    share = cutlass.const_expr(w.tiling.stage_rows * w.tiling.dim // GROUPS)
    first = (buffer * GROUPS + group) * share + w.thread % WARPGROUP * vector
    here, there = dq_accumulator.fragment_views(
        rdQ, w.storage.sdQ.iterator + cute.assume(first, divby=vector), WARPGROUP, vector
    )
    cute.autovec_copy(here, there)
    publish()
    turns.arrive_dq(DqBarrier.FULL, group, turns.turn_of(w, step))


def by_query(values: cute.Tensor) -> cute.Tensor:
    """View of an accumulator ((2, 2), 1, atoms) whose columns are queries as one whose rows are: ((2, 2), atoms, 1)."""
    (column, row), m, atoms = values.layout.shape
    (column_stride, row_stride), m_stride, atom_stride = values.layout.stride
    layout = cute.make_layout(((row, column), atoms, m), stride=((row_stride, column_stride), atom_stride, m_stride))
    return cute.make_tensor(values.iterator, layout)


def of_queries(w, sValues: cute.Tensor, at_stage: Int32, first: int, count: int) -> list:
    """LSE or delta of the columns of this thread's atoms `first` to `first + count`, two adjacent ones at once;
    at_stage: where the stage begins."""
    at = at_stage + w.thread % 4 * 2
    source = cute.make_tensor(
        sValues.iterator + cute.assume(at, divby=2) + 8 * first, cute.make_layout((2, count), stride=(1, 8))
    )
    rValues = cute.make_rmem_tensor(cute.make_layout((2, count)), Float32)
    cute.autovec_copy(source, rValues)
    return [rValues[i] for i in range(2 * count)]


def atoms_of(values: cute.Tensor, first: int, count: int) -> cute.Tensor:
    """A part of an accumulator: so many of its atoms, of four values each."""
    return cute.make_tensor(values.iterator + 4 * first, cute.make_layout(((2, 2), 1, count), stride=((1, 2), 0, 4)))


@cute.jit
def scores_to_probabilities(w, rS: cute.Tensor, rSlope, stage: Int32, rows: cutlass.Constexpr, early=None) -> None:
    """S of so many queries becomes P, not masked yet; LSE is read by parts, which take few registers. early: the first
    part, if it has been read."""
    for first in cutlass.range_constexpr(0, rows // 8, ATOMS):
        count = cutlass.const_expr(min(ATOMS, rows // 8 - first))
        part = by_query(atoms_of(rS, first, count))
        slope = by_query(atoms_of(rSlope, first, count)) if cutlass.const_expr(w.variant.softcap) else None
        lse2 = part_of(w, w.storage.sLSE, stage, first, count, early)
        softmax_gradient.probabilities(w.variant.softcap, w.kernel.slope_of, part, slope, lse2, w.factors)


@cute.jit
def subtract_delta(w, rdP: cute.Tensor, stage: Int32, rows: cutlass.Constexpr, early=None) -> None:
    """dP becomes dP - delta, likewise."""
    for first in cutlass.range_constexpr(0, rows // 8, ATOMS):
        count = cutlass.const_expr(min(ATOMS, rows // 8 - first))
        delta = part_of(w, w.storage.sDelta, stage, first, count, early)
        softmax_gradient.add_start(w.kernel.start_of, by_query(atoms_of(rdP, first, count)), delta)


def part_of(w, sValues: cute.Tensor, stage: Int32, first: int, count: int, early: list | None) -> list:
    """LSE or delta of a stage as `of_queries` reads it; the first part is `early`, if given."""
    if early is not None and first == 0:
        return early
    return of_queries(w, sValues, stage * w.tiling.stage_rows, first, count)


@cute.jit
def rounded(values: cute.Tensor, dtype: cutlass.Constexpr) -> cute.Tensor:
    """Values in 16 bits, converted in pairs here and now: a conversion that the compiler knows it moves to where the
    product reads it, between products that then wait for each other."""
    result = cute.make_rmem_tensor_like(values, dtype)
    pairs = cute.recast_tensor(result, Uint32)
    instruction = "cvt.rn.bf16x2.f32" if dtype is BFloat16 else "cvt.rn.f16x2.f32"
    for i in cutlass.range_constexpr(cute.size(pairs)):
        pairs[i] = cute.arch.inline_ptx(
            instruction + " {$w0}, {$r0}, {$r1};",
            write_only_types=[Uint32],
            read_only_args=[values[2 * i + 1], values[2 * i]],
        )
    return result
