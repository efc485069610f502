# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loops of the forward kernel: over the key steps of one query tile, and what happens in one step.

NOTE [steps] A row of blocks is computed in steps of `step` keys. One by one: a step's scores, softmax and product
follow one another, and other warps fill the gaps. Pipelined: the product of the next step's scores stands between this
step's exponentials and its second product, so that one warp keeps the tensor cores busy during its own softmax; steps
come in pairs, so that what is next in one is current in the other without moving registers.
"""

import math
from types import SimpleNamespace

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint32, cute

from kernels.blocksparse.common import layouts, mask_words, mma
from kernels.blocksparse.common.list_reader import listed, read
from kernels.blocksparse.common.mask_words import MaskRows

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
LAG = 8.0  # log2 of how far exponentials may exceed 1, see `rescale`


class Work(SimpleNamespace):
    """All that the loop over one query tile uses; forward.py lists it where it makes one."""


@cute.jit
def one_by_one(w: Work) -> None:
    """Two stages: K and V of the next step are on their way while this one computes; one barrier a step. One stage: V
    is on its way during the first product and the next K during the second; two barriers a step, half the memory."""
    step, two = w.tuning.step, w.tuning.stages == 2
    steps_per_block = w.variant.tile_n // step
    n_steps = w.tile_iterator.entries * steps_per_block
    key, slot = Int32(0), slot_of(w, Int32(0))
    if n_steps > 0:
        key = listed(w.tile_iterator, Int32(0)) * w.variant.tile_n
        load(w, w.k, 0, key)
        if cutlass.const_expr(two):
            load(w, w.v, 0, key)
    cute.arch.cp_async_commit_group()
    block_next, slot_next = Int32(0), slot_of(w, Int32(1) // steps_per_block)
    if n_steps > 1:
        block_next = listed(w.tile_iterator, Int32(1) // steps_per_block)
    operand_q = w.operand_q
    if cutlass.const_expr(w.tuning.q_in_registers):
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        operand_q = operand_q.load_all()

    for s in cutlass.range(n_steps):
        stage = s % w.tuning.stages
        key_next = block_next * w.variant.tile_n + (s + 1) % steps_per_block * step
        # the block after the next, and the mask's words: on their way while this step computes
        if s + 2 < n_steps:
            block_next = listed(w.tile_iterator, (s + 2) // steps_per_block)
        slot_after = slot_of(w, (s + 2) // steps_per_block)
        load_words(w, s // steps_per_block, slot, key, s % steps_per_block * step)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        if cutlass.const_expr(two):
            left = keys_after(w, key_next, s + 1 < n_steps)
            start_copy(w, w.k, 1 - stage, key_next, left)
            start_copy(w, w.v, 1 - stage, key_next, left)
        else:
            load(w, w.v, 0, key)
        cute.arch.cp_async_commit_group()
        acc_s = scores(w, operand_q, stage)
        if cutlass.const_expr(not two):
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            if s + 1 < n_steps:
                load(w, w.k, 0, key_next)
            cute.arch.cp_async_commit_group()
        prepare(w, acc_s, s // steps_per_block, key)
        add_values(w, exponentials(w, acc_s), stage)
        key, slot, slot_next = key_next, slot_next, slot_after


@cute.jit
def pipelined(w: Work) -> None:
    """While step s computes, K of s + 2 and V of s + 1 are on their way: two stages, one barrier a step."""
    step = w.tuning.step
    pairs = w.variant.tile_n // step // 2  # of steps, in a block
    n_pairs = w.tile_iterator.entries * pairs
    key, key_next = Int32(0), Int32(0)
    slot, slot_next = slot_of(w, Int32(0)), slot_of(w, Int32(1) // pairs)
    if n_pairs > 0:
        key = listed(w.tile_iterator, Int32(0)) * w.variant.tile_n
        load(w, w.k, 0, key)
    cute.arch.cp_async_commit_group()
    if n_pairs > 0:
        load(w, w.k, 1, key + step)
        load(w, w.v, 0, key)
    cute.arch.cp_async_commit_group()
    if n_pairs > 1:
        key_next = listed(w.tile_iterator, Int32(1) // pairs) * w.variant.tile_n + Int32(1) % pairs * (2 * step)
    cute.arch.cp_async_wait_group(1)
    cute.arch.sync_threads()
    operand_q = w.operand_q
    if cutlass.const_expr(w.tuning.q_in_registers):
        operand_q = operand_q.load_all()
    acc_first = mma.accumulator(w.warps, w.thread, w.variant.tile_m, step)
    if n_pairs > 0:
        mma.multiply(w.warps, acc_first, operand_q, operand_k(w, 0))

    for p in cutlass.range(n_pairs):
        entry, first_column = p // pairs, p % pairs * (2 * step)
        key_after = key_next
        if p + 2 < n_pairs:
            key_after = listed(w.tile_iterator, (p + 2) // pairs) * w.variant.tile_n + (p + 2) % pairs * (2 * step)
        slot_after = slot_of(w, (p + 2) // pairs)
        more = p + 1 < n_pairs

        load_words(w, entry, slot, key, first_column)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        if more:
            load(w, w.k, 0, key_next)
        load(w, w.v, 1, key + step)
        cute.arch.cp_async_commit_group()
        prepare(w, acc_first, entry, key)
        acc_second = scores(w, operand_q, 1)
        add_values(w, exponentials(w, acc_first), 0)

        load_words(w, entry, slot, key + step, first_column + step)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        if more:
            load(w, w.k, 1, key_next + step)
            load(w, w.v, 0, key_next)
        cute.arch.cp_async_commit_group()
        prepare(w, acc_second, entry, key + step)
        # after the last pair these are scores of keys that were there before: finite, and not used
        acc_first.fill(0.0)
        mma.multiply(w.warps, acc_first, operand_q, operand_k(w, 0))
        add_values(w, exponentials(w, acc_second), 1)
        key, key_next, slot, slot_next = key_next, key_after, slot_next, slot_after


@cute.jit
def load(w: Work, operand, stage: Int32, first_key: Int32) -> None:
    """Start copying `step` rows of K or V from `first_key` on into one stage."""
    start_copy(w, operand, stage, first_key, w.keys_left(w.length_k, first_key))


@cute.jit
def keys_after(w: Work, first_key: Int32, more: Boolean) -> Int32:
    """Rows to copy for the next step, none where there is none: zeros are copied then, by no branch. So addresses are
    computed among the products rather than before them, some 3 % of the time at head dim 64
    (docs/performance/log.md)."""
    left = w.keys_left(w.length_k, first_key)
    return left if more else Int32(0)


@cute.jit
def start_copy(w: Work, operand, stage: Int32, first_key: Int32, left: Int32) -> None:
    """Start copying `step` rows of K or V, of which `left` may be read, into one stage; the others become zeros."""
    pointer, stride, shared = operand
    start = pointer + w.key_offset(first_key, cute.assume(stride, divby=8))
    w.copy.load(start, stride, left, layouts.stage(shared, w.kv_layout, stage))


@cute.jit
def key_offset(first_key: Int32, stride: Int64) -> Int64:
    """Elements from the first row of K or V to that of `first_key`."""
    return Int64(first_key) * stride


@cute.jit
def keys_left(length: Int32, first_key: Int32) -> Int32:
    """Rows of K and V that may be read from `first_key` on."""
    return length - first_key


def operand_k(w: Work, stage: Int32) -> mma.SharedOperand:
    """One stage of K as the second operand of the scores."""
    return mma.SharedOperand(w.warps, w.thread, layouts.stage(w.k[2], w.kv_layout, stage), "B")


def scores(w: Work, operand_q, stage: Int32) -> cute.Tensor:
    """Q · Kᵀ of one stage."""
    acc_s = mma.accumulator(w.warps, w.thread, w.variant.tile_m, w.tuning.step)
    mma.multiply(w.warps, acc_s, operand_q, operand_k(w, stage))
    return acc_s


def add_values(w: Work, probabilities: cute.Tensor, stage: Int32) -> None:
    """O += P · V of one stage."""
    sV = layouts.stage(w.v[2], w.kv_layout, stage)
    operand_p = mma.RegisterOperand(layouts.as_operand_a(probabilities))
    operand_v = mma.SharedOperand(w.warps, w.thread, layouts.transposed(sV), "B", transpose=True)
    mma.multiply(w.warps, w.acc_o, operand_p, operand_v)


@cute.jit
def slot_of(w: Work, entry: Int32) -> Int32:
    """The slot of an entry's packed words, read early; 0 for entries and masks that have none."""
    slot = Int32(0)
    if cutlass.const_expr(w.variant.mask == "bits"):  # noqa: SIM102  (decided when the kernel is built)
        if entry < w.tile_iterator.n_partial:
            slot = read(w.mask.slot, w.tile_iterator.first + entry)
    return slot


@cute.jit
def load_words(w: Work, entry: Int32, slot: Int32, first_key: Int32, first_column: Int32) -> None:
    """The mask's words of a step that needs them: of a partial block, or where the keys end inside."""
    allow_all = w.allow_all
    if entry < w.tile_iterator.n_partial:
        mask_words.load_partial(
            w.variant.mask,
            w.mask_rows,
            w.mask,
            (w.variant.tile_m, w.variant.tile_n),
            slot,
            w.place[0],
            w.place[1],
            w.band_offset,
            w.first_row,
            w.rows_left,
            first_key,
            first_column,
        )
    elif first_key + w.tuning.step > w.length_k:
        allow_all(w.mask_rows)


@cute.jit
def prepare(w: Work, acc_s: cute.Tensor, entry: Int32, first_key: Int32) -> None:
    """Cap and mask the scores of a step, and bring the rows' references up to date with them."""
    cap_scores(w, acc_s)
    mask_scores(w, acc_s, masks(w, entry, first_key), first_key)
    rescale(w, layouts.rows_columns(acc_s))


@cute.jit
def masks(w: Work, entry: Int32, first_key: Int32) -> Int32:
    """1 where a step's scores need its mask: of a partial block, or where the keys end inside; else 0."""
    return mask_words.branch((entry < w.tile_iterator.n_partial) | (first_key + w.tuning.step > w.length_k))


def cap_scores(w: Work, acc_s: cute.Tensor) -> None:
    """Cap the scores of a step, where the variant does."""
    if w.variant.softcap:
        acc_s.store(tanh(acc_s.load() * w.to_tanh))


@cute.jit
def mask_scores(w: Work, acc_s: cute.Tensor, masked: Int32, first_key: Int32) -> None:
    """Replace the scores of a step that its mask forbids. masked: of `masks`."""
    acc_s_mn = layouts.rows_columns(acc_s)
    keep = w.keep_keys
    for _ in cutlass.range(masked):
        keep(w.mask_rows, w.length_k - first_key)
        mask_words.apply(w.mask_rows, acc_s_mn, -Float32.inf)


@cute.jit
def rescale(w: Work, acc_s_mn: cute.Tensor) -> None:
    """Move the references of rows that fell behind, and the sums and O with them.

    A row's exponentials are relative to its reference: a maximum of its scores so far, not always the latest. It
    follows when a new one is more than 2^LAG times larger, which after a few blocks hardly happens, so that most steps
    leave O alone. Exponentials are then at most 2^LAG, and what is divided by their sum in the end is the same.
    """
    acc_o_mn, row_ref, row_sum, factor_of = layouts.rows_columns(w.acc_o), w.row_ref, w.row_sum, w.correction
    finite_of = w.finite
    n_rows = cute.size(row_ref)
    row_max = cute.make_rmem_tensor(n_rows, Float32)
    behind = Boolean(False)
    for i in cutlass.range_constexpr(n_rows):
        row_max[i] = mma.quad_max(acc_s_mn[i, None].load().reduce(cute.ReductionOp.MAX, row_ref[i], 0))
        behind = behind | ((row_max[i] - row_ref[i]) * w.to_log2 > LAG)
    for _ in cutlass.range(mask_words.branch(cute.arch.vote_any_sync(behind))):
        for i in cutlass.range_constexpr(n_rows):
            factor = factor_of(row_ref[i], finite_of(row_max[i]), w.to_log2)
            row_sum[i] = row_sum[i] * factor
            acc_o_mn[i, None] = acc_o_mn[i, None].load() * factor
            row_ref[i] = row_max[i]


@cute.jit
def exponentials(w: Work, acc_s: cute.Tensor) -> cute.Tensor:
    """The step's probabilities times the final sum, in the operands' dtype; adds them to the rows' sums."""
    exponentiate(w, acc_s)
    rounded = cute.make_rmem_tensor_like(acc_s, w.dtype)
    rounded.store(acc_s.load().to(w.dtype))
    return rounded


@cute.jit
def exponentiate(w: Work, acc_s: cute.Tensor) -> None:
    """Make the step's scores its probabilities times the final sum, and add them to the rows' sums."""
    acc_s_mn = layouts.rows_columns(acc_s)
    for i in cutlass.range_constexpr(cute.size(w.row_ref)):
        offset = w.finite(w.row_ref[i]) * w.to_log2
        values = cute.math.exp2(acc_s_mn[i, None].load() * w.to_log2 - offset, fastmath=True)
        w.row_sum[i] = w.row_sum[i] + values.reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
        acc_s_mn[i, None] = values


@cute.jit
def keep_keys(mask_rows: MaskRows, keys_left: Int32) -> None:
    """Forbid the keys past the end of the sequence."""
    mask_words.keep_before(mask_rows, keys_left)


@cute.jit
def allow_all(mask_rows: MaskRows) -> None:
    """The words of a full block, before the keys past the end of the sequence are forbidden."""
    mask_words.fill_with(mask_rows, Uint32(0xFFFFFFFF))


@cute.jit
def finite(reference: Float32) -> Float32:
    """The reference of a row's exponentials: 0 while the row has met no key."""
    return Float32(0.0) if reference == -Float32.inf else reference


@cute.jit
def correction(old: Float32, new: Float32, to_log2: Float32) -> Float32:
    """The factor of sums relative to the old maximum: 0 for one of -inf, exactly 1 where it has not moved. (Of maxima
    that are scaled apart, ptxas makes one of the products a part of the difference, which then is not 0 where they are
    equal; over many steps sums that follow in every step would drift.)"""
    return cute.math.exp2((old - new) * to_log2, fastmath=True)


def tanh(values: cute.TensorSSA) -> cute.TensorSSA:
    """1 - 2 / (1 + exp(2x)): within 1e-6 of tanh everywhere, where tanh.approx is 5e-4 off. Exact ±1 at the ends."""
    grown = cute.math.exp2(values * (2.0 * LOG2_E), fastmath=True)
    return 1.0 - 2.0 / (grown + 1.0)
