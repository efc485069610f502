# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The two loops over a row's blocks: of the warp that issues products, and of the softmax warps. A step is a block.

    issuer                                      softmax, a key and 64 queries a thread
    S = K Q^T                                   P = exp2(S scale - lse), masked, in place of S
    dP = V dO^T                                 dS = P (dP - delta), in place of dP and to shared memory
    dV += P dO, then S of the next step
    dK += dS Q, dQ = dS K, then the next dP     meanwhile the dQ warps add dQ in memory

NOTE [turns] Each arrow between two roles is an mbarrier of turns.py. Products take effect in the order of their issue:
the next S may replace the P that the product before it reads, and dQ the dS that dK reads. A commit after them says
that all of them are done: so who has waited for dP may overwrite dS of the step before in shared memory.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward import softmax_gradient
from kernels.blocksparse.backward.blackwell import turns
from kernels.blocksparse.backward.blackwell.key_words import GROUPS, LaneWords, apply_kept, find_kept
from kernels.blocksparse.backward.blackwell.products import Products
from kernels.blocksparse.backward.blackwell.tuning import HALF, Q_STAGES
from kernels.blocksparse.backward.mainloop_mma import Work, is_masked
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.common.mask_words import branch
from kernels.blocksparse.spec.sm100 import ROWS

CHUNK = tcgen05.CHUNK


@cute.jit
def issue_products(w) -> None:
    """The issuing warp: products of all steps."""
    await_keys = w.kernel.await_keys
    issue_steps(
        w,
        Products(w),
        SimpleNamespace(
            await_k=lambda: await_keys(w, w.k_full),
            await_v=lambda: await_keys(w, w.v_full),
            scores=issue_scores,
            dp=issue_dp,
            dv=issue_dv,
            dk_dq=issue_dk_dq,
            commit=tcgen05.commit,
        ),
    )


@cute.jit
def issue_steps(w, products, issue: cutlass.Constexpr) -> None:
    """Products of all steps, by a kernel's own functions. issue: those that wait for K and V, that issue products of a
    step, and that commit."""
    shares_dq, await_columns = w.tiling.shares_dq, w.kernel.await_columns
    await_k, await_v, commit = issue.await_k, issue.await_v, issue.commit
    scores, dp, dv, dk_dq = issue.scores, issue.dp, issue.dv, issue.dk_dq
    if w.total > 0:
        await_k()
        scores(w, products, Int32(0))
        await_v()
        dp(w, products, Int32(0))
    for step in cutlass.range(w.total, unroll=1):
        dv(w, products, step)
        if step + 1 < w.total:
            scores(w, products, step + 1)
        dk_dq(w, products, step)
        if step + 1 < w.total:
            if cutlass.const_expr(shares_dq):
                await_columns(w, step)
            dp(w, products, step + 1)
    if w.total > 0:
        commit(w.ended)


@cute.jit
def issue_scores(w, products, step: Int32) -> None:
    """S of a step."""
    turns.await_queries(w, step)
    w.kernel.fence_products()
    products.scores(w.columns_s, step % Q_STAGES)
    tcgen05.commit(w.scored)


@cute.jit
def issue_dp(w, products, step: Int32) -> None:
    """dP of a step."""
    turns.await_do(w, step)
    w.kernel.fence_products()
    products.dp(w.columns_dp)
    tcgen05.commit(w.multiplied)


@cute.jit
def issue_dv(w, products, step: Int32) -> None:
    """dV of a step, after which dO is empty."""
    cute.arch.mbarrier_wait(w.p_ready, step % 2)
    w.kernel.fence_products()
    products.dv(w.columns_dv, w.columns_s, step > 0)
    tcgen05.commit(w.do_empty)


@cute.jit
def issue_dk_dq(w, products, step: Int32) -> None:
    """dK and dQ of a step, after which Q is empty."""
    shares_dq, stage, await_columns = w.tiling.shares_dq, step % Q_STAGES, w.kernel.await_columns
    cute.arch.mbarrier_wait(w.ds_ready, step % 2)
    w.kernel.fence_products()
    products.dk(w.columns_dk, w.columns_dp, stage, step > 0)
    w.kernel.release_queries(w.q_empty + stage)
    if cutlass.const_expr(not shares_dq):  # noqa: SIM102 (one is for the compiler)
        if step > 0:
            await_columns(w, step - 1)
    products.dq(w.columns_dq)
    tcgen05.commit(w.dq_done)


@cute.jit
def softmax_steps(w) -> None:
    """A softmax warp: P and dS of all steps."""
    half = cute.arch.make_warp_uniform(w.thread // ROWS)
    w = Work(**{**w.__dict__, "words": LaneWords(w.thread, half), "half": half})
    await_scores, await_products = w.kernel.await_scores, w.kernel.await_products
    stored_ds, publish_ds = w.kernel.stored_ds, w.kernel.publish_ds
    for step in cutlass.range(w.total, unroll=1):
        turns.await_queries(w, step)
        block = block_at(w.storage.sEntries, step)
        masked, rKept = is_masked(w, block), find_kept(w, block)
        await_scores(w, step)
        rP = cute.make_rmem_tensor(HALF, cutlass.Float32)
        tcgen05.load(w.columns_s + half * HALF, w.row, rP)
        tcgen05.wait_loaded()
        for group in cutlass.range_constexpr(GROUPS):
            make_probabilities(w, chunk_of(rP, group), masked, rKept[group], group, step % Q_STAGES)
        stored_ds()
        tcgen05.fence_before()
        turns.arrive(w.p_ready)
        turns.arrive(w.q_empty + step % Q_STAGES)
        turns.await_do(w, step)
        await_products(w, step)
        for group in cutlass.range_constexpr(GROUPS):
            make_ds(w, chunk_of(rP, group), group)
        turns.arrive(w.do_empty)
        stored_ds()
        publish_ds()
        tcgen05.fence_before()
        turns.arrive(w.ds_ready)


def chunk_of(values: cute.Tensor, group: int) -> cute.Tensor:
    """32 of a thread's registers."""
    return cute.make_tensor(values.iterator + group * CHUNK, cute.make_layout(CHUNK))


def by_query(values: cute.Tensor) -> cute.Tensor:
    """Registers of one key as an accumulator whose rows are queries: what layouts.rows_columns takes."""
    return cute.make_tensor(values.iterator, cute.make_layout(((1, CHUNK), 1, 1), stride=((0, 1), 0, 0)))


@cute.jit
def make_probabilities(w, rP: cute.Tensor, masked, word, group: cutlass.Constexpr, stage: Int32) -> None:
    """S of 32 queries becomes P, which replaces it in tensor memory too; under a soft cap then P times the slope."""
    rSlope = cute.make_rmem_tensor(CHUNK, cutlass.Float32) if cutlass.const_expr(w.variant.softcap) else None
    slope = by_query(rSlope) if cutlass.const_expr(w.variant.softcap) else None
    rLSE = read_values(w, w.storage.sLSE, group, stage)
    softmax_gradient.probabilities(
        w.variant.softcap, w.kernel.slope_of, by_query(rP), slope, [rLSE[i] for i in range(CHUNK)], w.factors
    )
    for _ in cutlass.range(branch(masked)):
        apply_kept(rP, word)
    rounded = cute.make_rmem_tensor(CHUNK, w.dtype)
    rounded.store(rP.load().to(w.dtype))
    tcgen05.store(packed_columns(w, w.columns_s, group), w.row, cute.recast_tensor(rounded, cutlass.Float32))
    if cutlass.const_expr(w.variant.softcap):
        rP.store(rP.load() * rSlope.load())


@cute.jit
def make_ds(w, rP: cute.Tensor, group: cutlass.Constexpr) -> None:
    """dS of 32 queries, in tensor memory in place of dP, and in shared memory."""
    rounded = ds_of(w, rP, group)
    own = cute.local_tile(w.storage.sdS[None, None, 0], (1, CHUNK), (w.row, w.half * GROUPS + group))
    cute.autovec_copy(rounded, own[0, None])


@cute.jit
def ds_of(w, rP: cute.Tensor, group: cutlass.Constexpr) -> cute.Tensor:
    """dS of 32 queries in 16 bits, which takes dP's place in tensor memory."""
    rdS = cute.make_rmem_tensor(CHUNK, cutlass.Float32)
    tcgen05.load(w.columns_dp + w.half * HALF + group * CHUNK, w.row, rdS)
    rDelta = read_values(w, w.storage.sDelta, group, Int32(0))
    tcgen05.wait_loaded()
    softmax_gradient.add_start(w.kernel.start_of, by_query(rdS), [rDelta[i] for i in range(CHUNK)])
    rounded = cute.make_rmem_tensor(CHUNK, w.dtype)
    rounded.store((rdS.load() * rP.load()).to(w.dtype))
    tcgen05.store(packed_columns(w, w.columns_dp, group), w.row, cute.recast_tensor(rounded, cutlass.Float32))
    return rounded


def packed_columns(w, first: cute.Pointer, group: int) -> cute.Pointer:
    """Where 32 queries of a thread lie in 16 bits: each half of the threads writes where it has read."""
    return first + w.half * HALF + group * (CHUNK // 2)


@cute.jit
def read_values(w, sValues: cute.Tensor, group: cutlass.Constexpr, stage: Int32) -> cute.Tensor:
    """LSE or delta of 32 queries: the same in all lanes, read four at once."""
    rValues = cute.make_rmem_tensor(CHUNK, cutlass.Float32)
    first = cute.assume(stage * ROWS + w.half * HALF + group * CHUNK, divby=4)
    cute.autovec_copy(cute.make_tensor(sValues.iterator + first, cute.make_layout(CHUNK)), rValues)
    return rValues
