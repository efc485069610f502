# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loop of a multiplying warpgroup over the key steps of its 64 query rows.

The scores of step s and the product of step s - 1 with V are issued together; the second runs while the first are
masked and their maxima found. The assembler moves the wait for it before the exponentials, during which the other
warpgroups' products run. Products of its own during a warpgroup's exponentials were slower, and so was the same wait
written there (docs/performance/log.md).

NOTE [turns] With `turns` a warpgroup issues the products of a step when the one before has issued its scores and half
of its product with V, so that the tensor cores have the other half to do until the next scores reach them. Each waits
at a named barrier of its own, at which the one before arrives. The last one arrives at the first one's once at the
start. All warpgroups of a CTA have the same number of steps. The last product of a tile is issued without a turn.
"""

from collections.abc import Callable

import cutlass
from cutlass import BFloat16, Boolean, Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernels.blocksparse.common import buffers, layouts, mask_words, mma
from kernels.blocksparse.common.buffers import Stage
from kernels.blocksparse.forward.hopper import wgmma
from kernels.blocksparse.forward.hopper.tuning import WARPGROUP
from kernels.blocksparse.forward.mainloop import LAG, cap_scores, exponentiate, load_words, mask_scores, masks


@cute.jit
def multiply_steps(w) -> None:
    """Runs all steps of the row: acc_o, row_ref and row_sum from zero to their ends. w.before: steps of earlier
    tiles."""
    n_steps = w.tile_iterator.entries * (w.variant.tile_n // w.tuning.step)
    wait_filled, rounded = w.wait_filled, cute.make_rmem_tensor_like(w.acc_s, w.dtype)
    if n_steps > 0:
        stage = buffers.stage_at(w.before, w.tuning.stages)
        wait_filled(w.buffers_k, stage)
        key, slot = place_of_stage(w, stage)
        await_turn(w)
        issue_scores(w, stage)
        pass_turn(w)
        load_words(w, Int32(0), slot, key, Int32(0))
        warpgroup.wait_group(0)
        release_keys(w, stage, True)
        cap_scores(w, w.acc_s)
        mask_scores(w, w.acc_s, masks(w, Int32(0), key), key)
        follow(w) if w.tuning.rescale else advance(w)
        exponentiate(w, w.acc_s)
        round_into(rounded, w.acc_s)

        masked_steps = cutlass.max(steps_with_masks(w, n_steps), 1)
        for s in cutlass.range(1, masked_steps):
            stage = multiply_step(w, rounded, s, stage, True)
        for s in cutlass.range(masked_steps, n_steps):
            stage = multiply_step(w, rounded, s, stage, False)

        wait_filled(w.buffers_v, stage)
        warpgroup.fence()
        issue_values(w, rounded, stage)
        warpgroup.wait_group(0)
        buffers.release_stage(w.buffers_v, stage.index)


@cute.jit
def steps_with_masks(w, n_steps: Int32) -> Int32:
    """How many of the first steps may need their mask: those of partial blocks, which come first, or all where the
    keys end inside a block."""
    partial = w.tile_iterator.n_partial * (w.variant.tile_n // w.tuning.step)
    return n_steps if w.length_k % w.variant.tile_n != 0 else partial


@cute.jit
def multiply_step(w, rounded: cute.Tensor, s: Int32, before: Stage, masks_scores: cutlass.Constexpr) -> Stage:
    """A step after the first: its scores and the product of the step before, then its exponentials. before: the stage
    of the step before; returns this one's. masks_scores: False where no step of the loop needs a mask, which then has
    none of its registers and branches."""
    step, steps_per_block, wait_filled = w.tuning.step, w.variant.tile_n // w.tuning.step, w.wait_filled
    stage = buffers.next_stage(before, w.tuning.stages)
    wait_filled(w.buffers_k, stage)
    if cutlass.const_expr(masks_scores):
        key, slot = place_of_stage(w, stage)
    await_turn(w)
    issue_scores(w, stage)
    wait_filled(w.buffers_v, before)
    issue_values(w, rounded, before, lambda: pass_turn(w))
    if cutlass.const_expr(masks_scores):
        masked = masks(w, s // steps_per_block, key)
        load_words(w, s // steps_per_block, slot, key, s % steps_per_block * step)
    warpgroup.wait_group(1)
    if cutlass.const_expr(masks_scores or not w.tuning.held):
        release_keys(w, stage, masks_scores)
    cap_scores(w, w.acc_s)
    if cutlass.const_expr(masks_scores):
        mask_scores(w, w.acc_s, masked, key)
    moved = follow(w) if w.tuning.rescale else advance(w)
    exponentiate(w, w.acc_s)
    if cutlass.const_expr(not masks_scores and w.tuning.held):
        release_keys(w, stage, masks_scores)
    warpgroup.wait_group(0)
    buffers.release_stage(w.buffers_v, before.index)
    round_into(rounded, w.acc_s)
    rescale_output(w, moved)
    return stage


@cute.jit
def release_keys(w, stage: Stage, places: cutlass.Constexpr) -> None:
    """Releases a step's K, which has been multiplied. places: the warp's lanes have read its place too."""
    if cutlass.const_expr(places):
        cute.arch.sync_warp()
    buffers.release_stage(w.buffers_k, stage.index)


def await_turn(w) -> None:
    """Waits until the warpgroup before has issued its products. NOTE [turns]"""
    if w.tuning.turns:
        cute.arch.barrier(barrier_id=w.turn, number_of_threads=2 * WARPGROUP)


def pass_turn(w) -> None:
    """Lets the next warpgroup issue products. NOTE [turns]"""
    if w.tuning.turns:
        cute.arch.barrier_arrive(barrier_id=w.next_turn, number_of_threads=2 * WARPGROUP)


def place_of_stage(w, stage: Stage) -> tuple[Int32, Int32]:
    """The first key of a step whose K has come, and the slot of its mask's words."""
    return w.sPlace[0, stage.index], w.sPlace[1, stage.index]


@cute.jit
def issue_scores(w, stage: Stage) -> None:
    """Start Q · Kᵀ of a step."""
    warpgroup.fence()
    fragment_k, depth = w.fragment_k[None, None, None, stage.index], w.tuning.depth
    wgmma.multiply(w.mma_s.op, w.acc_s, w.fragment_q, fragment_k, False, depth=depth, held=w.held_q)


def issue_values(w, rounded: cute.Tensor, stage: Stage, halfway: Callable[[], None] | None = None) -> None:
    """Start O += P · V of a step. halfway: as `wgmma.multiply` takes it. The caller has fenced since P and O were
    written."""
    operand_p = layouts.as_operand_a(rounded)
    wgmma.multiply(w.operation_o, w.acc_o, operand_p, w.fragment_v[None, None, None, stage.index], True, halfway)


@cute.jit
def round_into(rounded: cute.Tensor, values: cute.Tensor) -> None:
    """Convert values in pairs, here and now: a conversion that the compiler knows it moves, for float16, to where the
    product reads it, between products that then wait for each other."""
    pairs = cute.recast_tensor(rounded, Uint32)
    instruction = "cvt.rn.bf16x2.f32" if rounded.element_type is BFloat16 else "cvt.rn.f16x2.f32"
    for i in cutlass.range_constexpr(cute.size(pairs)):
        pairs[i] = cute.arch.inline_ptx(
            instruction + " {$w0}, {$r0}, {$r1};",
            write_only_types=[Uint32],
            read_only_args=[values[2 * i + 1], values[2 * i]],
        )


@cute.jit
def advance(w) -> Boolean:
    """Bring the rows' references and sums up to date with the scores, as mainloop.rescale does; O, which is being
    added to, follows in `rescale_output`. Returns whether any row of the warp moved."""
    acc_s_mn = layouts.rows_columns(w.acc_s)
    row_ref, row_sum, factors, factor_of, finite_of = w.row_ref, w.row_sum, w.factors, w.correction, w.finite
    n_rows = cute.size(row_ref)
    row_max = cute.make_rmem_tensor(n_rows, Float32)
    behind = Boolean(False)
    for i in cutlass.range_constexpr(n_rows):
        row_max[i] = mma.quad_max(acc_s_mn[i, None].load().reduce(cute.ReductionOp.MAX, row_ref[i], 0))
        behind = behind | ((row_max[i] - row_ref[i]) * w.to_log2 > LAG)
    moved = cute.arch.vote_any_sync(behind)
    for _ in cutlass.range(mask_words.branch(moved)):
        for i in cutlass.range_constexpr(n_rows):
            factors[i] = factor_of(row_ref[i], finite_of(row_max[i]), w.to_log2)
            row_sum[i] = row_sum[i] * factors[i]
            row_ref[i] = row_max[i]
    return moved


@cute.jit
def follow(w) -> None:
    """`advance` for every row in every step: without a branch, the factors are computed among the exponentials."""
    acc_s_mn = layouts.rows_columns(w.acc_s)
    row_ref, row_sum, factors, factor_of, finite_of = w.row_ref, w.row_sum, w.factors, w.correction, w.finite
    for i in cutlass.range_constexpr(cute.size(row_ref)):
        row_max = mma.quad_max(acc_s_mn[i, None].load().reduce(cute.ReductionOp.MAX, row_ref[i], 0))
        factors[i] = factor_of(row_ref[i], finite_of(row_max), w.to_log2)
        row_sum[i] = row_sum[i] * factors[i]
        row_ref[i] = row_max


@cute.jit
def rescale_output(w, moved) -> None:
    """Bring O up to date with the references: where `advance` moved any, or always after `follow` (moved is None)."""
    if cutlass.const_expr(moved is None):
        scale_rows(w)
    else:
        for _ in cutlass.range(mask_words.branch(moved)):
            scale_rows(w)


@cute.jit
def scale_rows(w) -> None:
    """The rows of O times their factors."""
    acc_o_mn, factors = layouts.rows_columns(w.acc_o), w.factors
    for i in cutlass.range_constexpr(cute.size(factors)):
        acc_o_mn[i, None] = acc_o_mn[i, None].load() * factors[i]
