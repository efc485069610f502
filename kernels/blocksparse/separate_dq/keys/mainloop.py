# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loop of a multiplying warpgroup over its halves of the listed tiles of queries; scores have keys as rows.

S of this step, dK of the last one, dP of this one     issued together
when S and the last dV are done: P, masked             while the others run
when dK is done: release the last step's Q
dV of this step                                        with P from registers
when dP is done: dS = P (dP - delta)                   in registers, the operand of the next step's dK
"""

import cutlass
from cutlass import Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernels.blocksparse.backward import masking
from kernels.blocksparse.backward.softmax_gradient import exp2
from kernels.blocksparse.backward.tile_iterator import Block
from kernels.blocksparse.common import layouts
from kernels.blocksparse.common.mask_words import branch
from kernels.blocksparse.forward.hopper import pipeline, wgmma
from kernels.blocksparse.forward.hopper.mainloop import round_into
from kernels.blocksparse.separate_dq.keys.tuning import STEP

ATOMS = STEP // 8  # groups of eight queries, of which a thread has two


class LaneQueries:
    """What masking.find_words takes as `Words`: the queries of a lane, and the first key of the word that has its
    warp's 16 keys."""

    def __init__(self, thread: Int32) -> None:
        self.row = [thread % 32 + 32 * i for i in range(STEP // 32)]
        self.first, self.lane, self.per_row = thread // 64 * 32, Int32(0), 1


@cute.jit
def multiply_steps(w) -> None:
    """All steps of a tile of keys: acc_dk from zero to its end, and acc_dv, which is not initialised: the compiler
    would write the zeros behind the first product's fence."""
    rounded_p, rounded_ds = (cute.make_rmem_tensor_like(w.acc_s, w.dtype) for _ in range(2))
    acc_dv = w.acc_dv
    if w.total > 0:
        block = issue_scores(w, Int32(0))
        issue_dp(w, Int32(0))
        words = words_of(w, block)
        warpgroup.wait_group(1)
        probabilities(w, Int32(0), block, words)
        finish_step(w, Int32(0), rounded_p, rounded_ds, False)

        for s in cutlass.range(1, w.total, unroll=1):
            block = issue_scores(w, s)
            issue_dk(w, rounded_ds, s - 1)
            issue_dp(w, s)
            words = words_of(w, block)
            warpgroup.wait_group(2)
            probabilities(w, s, block, words)
            warpgroup.wait_group(1)
            pipeline.release(w.buffers_q, w.before + s - 1)
            finish_step(w, s, rounded_p, rounded_ds, True)

        warpgroup.fence()
        issue_dk(w, rounded_ds, w.total - 1)
        warpgroup.wait_group(0)
        pipeline.release(w.buffers_q, w.before + w.total - 1)
    else:
        acc_dv.fill(0.0)


@cute.jit
def finish_step(w, s: Int32, rounded_p: cute.Tensor, rounded_ds: cute.Tensor, add: cutlass.Constexpr) -> None:
    """From P on, with dP under way: dV (+)= P dO, then dS."""
    round_into(rounded_p, w.acc_s)
    issue_dv(w, rounded_p, s, add)
    warpgroup.wait_group(1)
    differences(w, s)
    round_into(rounded_ds, w.acc_dp)
    warpgroup.wait_group(0)
    pipeline.release(w.buffers_do, w.before + s)


@cute.jit
def issue_scores(w, s: Int32) -> Block:
    """Start S = K Qᵀ of a step. Returns where its queries are."""
    stage = (w.before + s) % w.buffers_q.stages
    pipeline.wait_full(w.buffers_q, w.before + s)
    block = Block(w.sBlock[0, stage], w.sBlock[1, stage], Int32(0), w.sBlock[2, stage])
    warpgroup.fence()
    wgmma.multiply(w.mma_s, w.acc_s, w.fragment_k, w.fragment_q[None, None, None, stage], False)
    return block


@cute.jit
def issue_dp(w, s: Int32) -> None:
    """Start dP = V dOᵀ of a step. The caller has fenced."""
    pipeline.wait_full(w.buffers_do, w.before + s)
    stage = (w.before + s) % w.buffers_do.stages
    wgmma.multiply(w.mma_s, w.acc_dp, w.fragment_v, w.fragment_do[None, None, None, stage], False)


@cute.jit
def issue_dk(w, rounded: cute.Tensor, s: Int32) -> None:
    """Start dK += dS Q of a step. The caller has fenced since dS was written."""
    stage, operand_ds = (w.before + s) % w.buffers_q.stages, layouts.as_operand_a(rounded)
    wgmma.multiply(w.mma_dkv, w.acc_dk, operand_ds, w.fragment_q_transposed[None, None, None, stage], True)


@cute.jit
def issue_dv(w, rounded: cute.Tensor, s: Int32, add: cutlass.Constexpr) -> None:
    """Start dV (+)= P dO of a step."""
    stage, operand_p = (w.before + s) % w.buffers_do.stages, layouts.as_operand_a(rounded)
    warpgroup.fence()
    wgmma.multiply(w.mma_dkv, w.acc_dv, operand_p, w.fragment_do_transposed[None, None, None, stage], add)


def is_masked(w, block: Block):
    """True where the mask or the end of the keys forbids anything in a block."""
    masked = w.keys_left < w.variant.tile_n
    return masked if w.variant.mask == "none" else masked | (block.partial != 0)


@cute.jit
def words_of(w, block: Block) -> cute.Tensor:
    """For each of a lane's queries the bits of 32 keys; not set where nothing is masked."""
    rWords = cute.make_rmem_tensor(STEP // 32, Uint32)
    rWords.fill(Uint32(0))
    for _ in cutlass.range(branch(is_masked(w, block))):
        found = masking.find_words(
            w.variant,
            w.tail_mask,
            w.words,
            w.mask,
            w.batch,
            w.band_offset,
            block,
            w.n_block,
            w.group * STEP,
            w.queries_length - block.m_block * w.variant.tile_m,
            w.keys_left,
        )
        for i in cutlass.range_constexpr(STEP // 32):
            rWords[i] = found[i, 0]
    return rWords


@cute.jit
def probabilities(w, s: Int32, block: Block, rWords: cute.Tensor) -> None:
    """S becomes P, 0 where it is masked."""
    stage, first, acc = (w.before + s) % w.buffers_q.stages, w.thread % 4 * 2, w.acc_s
    for atom in cutlass.range_constexpr(ATOMS):
        lse2 = pair_of(w.sLSE, stage, atom, first)
        for column in cutlass.range_constexpr(2):
            for row in cutlass.range_constexpr(2):
                at = ((column, row), 0, atom)
                acc[at] = exp2(acc[at] * w.to_log2 - lse2[column])
    for _ in cutlass.range(branch(is_masked(w, block))):
        key = Uint32(w.thread // 32 % 2 * 16 + w.thread % 32 // 4)
        for atom in cutlass.range_constexpr(ATOMS):
            for column in cutlass.range_constexpr(2):
                lane = atom % 4 * 8 + first + column
                word = Uint32(cute.arch.shuffle_sync(rWords[atom // 4], lane)) >> key
                for row in cutlass.range_constexpr(2):
                    at = ((column, row), 0, atom)
                    acc[at] = acc[at] if (word & Uint32(1 << 8 * row)) != Uint32(0) else Float32(0.0)


@cute.jit
def differences(w, s: Int32) -> None:
    """dP becomes dS = P (dP - delta)."""
    stage, first, acc = (w.before + s) % w.buffers_do.stages, w.thread % 4 * 2, w.acc_dp
    for atom in cutlass.range_constexpr(ATOMS):
        delta = pair_of(w.sDelta, stage, atom, first)
        for column in cutlass.range_constexpr(2):
            start = w.start_of(delta[column])
            for row in cutlass.range_constexpr(2):
                at = ((column, row), 0, atom)
                acc[at] = w.acc_s[at] * (acc[at] + start)


@cute.jit
def pair_of(sValues: cute.Tensor, stage: Int32, atom: cutlass.Constexpr, first: Int32) -> cute.Tensor:
    """The statistics of two adjacent queries."""
    rPair = cute.make_rmem_tensor(2, Float32)
    source = sValues.iterator + cute.assume(stage * STEP + first, divby=2) + 8 * atom
    cute.autovec_copy(cute.make_tensor(source, cute.make_layout(2)), rPair)
    return rPair
