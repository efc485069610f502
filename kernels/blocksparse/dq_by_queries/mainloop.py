# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loop of a multiplying warpgroup over the key steps of its 64 query rows.

    S of this step, dQ of the last one, dP of this one     issued together
    when S is done: P, masked                              while the other two run
    when dQ is done: release K of the last step
    when dP is done: release V; dS = P (dP - delta)        in registers, the operand of the next step's dQ

Two warpgroups drift apart, so that one multiplies during the other's exponentials.
"""

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from kernels.blocksparse.backward import softmax_gradient
from kernels.blocksparse.common import layouts, mask_words
from kernels.blocksparse.common.buffers import Buffers, release, wait_full
from kernels.blocksparse.dq_by_queries.tuning import STEP
from kernels.blocksparse.forward.hopper import wgmma
from kernels.blocksparse.forward.hopper.mainloop import round_into
from kernels.blocksparse.forward.mainloop import load_words


@cute.jit
def multiply_steps(w) -> None:
    """Runs all steps of the row: acc_dq from zero to dS K. w.before: steps of earlier tiles."""
    n_steps = w.tile_iterator.entries * (w.variant.tile_n // STEP)
    rounded = cute.make_rmem_tensor_like(w.acc_s, w.dtype)
    scored, multiplied = w.release_scored, w.release_multiplied
    if n_steps > 0:
        key, slot = issue_scores(w, Int32(0))
        issue_dp(w, Int32(0))
        look_up_mask(w, Int32(0), slot, key)
        warpgroup.wait_group(1)
        scored(w.buffers_k, w.before)
        probabilities(w, Int32(0), key)
        warpgroup.wait_group(0)
        release(w.buffers_v, w.before)
        differences(w, rounded)

        for s in cutlass.range(1, n_steps, unroll=1):
            key, slot = issue_scores(w, s)
            issue_dq(w, rounded, s - 1)
            issue_dp(w, s)
            look_up_mask(w, s, slot, key)
            warpgroup.wait_group(2)
            scored(w.buffers_k, w.before + s)
            probabilities(w, s, key)
            warpgroup.wait_group(1)
            multiplied(w.buffers_k, w.before + s - 1)
            warpgroup.wait_group(0)
            release(w.buffers_v, w.before + s)
            differences(w, rounded)

        warpgroup.fence()
        issue_dq(w, rounded, n_steps - 1)
        warpgroup.wait_group(0)
        multiplied(w.buffers_k, w.before + n_steps - 1)


@cute.jit
def issue_scores(w, s: Int32) -> tuple[Int32, Int32]:
    """Start S = Q Kᵀ of a step. Returns its first key and the slot of its mask's words."""
    stage = (w.before + s) % w.buffers_k.stages
    wait_full(w.buffers_k, w.before + s)
    key, slot = w.sPlace[0, stage], w.sPlace[1, stage]
    warpgroup.fence()
    wgmma.multiply(w.mma_s.op, w.acc_s, w.fragment_q, w.fragment_k[None, None, None, stage], False)
    return key, slot


@cute.jit
def issue_dp(w, s: Int32) -> None:
    """Start dP = dO Vᵀ of a step. The caller has fenced."""
    wait_full(w.buffers_v, w.before + s)
    stage = (w.before + s) % w.buffers_v.stages
    wgmma.multiply(w.mma_s.op, w.acc_dp, w.fragment_do, w.fragment_v[None, None, None, stage], False)


@cute.jit
def issue_dq(w, rounded: cute.Tensor, s: Int32) -> None:
    """Start dQ += dS K of a step. The caller has fenced since dS and dQ were written."""
    stage = (w.before + s) % w.buffers_k.stages
    operand_ds = layouts.as_operand_a(rounded)
    wgmma.multiply(w.mma_dq.op, w.acc_dq, operand_ds, w.fragment_k_transposed[None, None, None, stage], True)


@cute.jit
def look_up_mask(w, s: Int32, slot: Int32, key: Int32) -> None:
    """The words of a step's mask, where it has one."""
    steps_per_block = w.variant.tile_n // STEP
    load_words(w, s // steps_per_block, slot, key, s % steps_per_block * STEP)


@cute.jit
def probabilities(w, s: Int32, key: Int32) -> None:
    """S becomes P, 0 where it is masked; under a soft cap the slope is kept."""
    softmax_gradient.probabilities(w.variant.softcap, w.slope_of, w.acc_s, w.slope, w.lse2, w.factors)
    masked = (s // (w.variant.tile_n // STEP) < w.tile_iterator.n_partial) | (key + STEP > w.length_k)
    keep = w.keep_keys
    for _ in cutlass.range(mask_words.branch(masked)):
        keep(w.mask_rows, w.length_k - key)
        mask_words.apply(w.mask_rows, layouts.rows_columns(w.acc_s), Float32(0.0))


@cute.jit
def differences(w, rounded: cute.Tensor) -> None:
    """dS = P (dP - delta), times the slope of a soft cap, in the operands' dtype."""
    softmax_gradient.add_start(softmax_gradient.start_of, w.acc_dp, w.delta)
    if cutlass.const_expr(w.variant.softcap):
        w.acc_s.store(w.acc_s.load() * w.slope.load())
    w.acc_dp.store(w.acc_dp.load() * w.acc_s.load())
    round_into(rounded, w.acc_dp)


@cute.jit
def release_scored(buffers: Buffers, step: Int32) -> None:
    """Keeps a stage of K when S is there: dQ is still to read it."""


@cute.jit
def release_multiplied(buffers: Buffers, step: Int32) -> None:
    """Releases a stage of K when the dQ of its step has been added."""
    release(buffers, step)
