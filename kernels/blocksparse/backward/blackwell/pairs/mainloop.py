# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loops over a row's blocks of a pair of CTAs: of the warp that issues products, in the leader; of the warp that
tells it what the other CTA has loaded; and of the softmax warps of both.

NOTE [turns of pairs] The order of products and all that is said there are NOTE [turns] of blackwell/mainloop.py's. What
products of the pair have done is committed to both CTAs. What they wait for arrives in the leader: warps of both CTAs
that write P and dS or read dQ arrive there; loads arrive in the CTA that they bring data to, and `hand_on_loads` tells
the leader. Who has waited for dP may overwrite dS of the step before in the other CTA too: its commit says that the
products before it are done in both.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.blackwell.key_words import GROUPS, LaneWords, find_kept
from kernels.blocksparse.backward.blackwell.mainloop import CHUNK, chunk_of, ds_of, issue_steps, make_probabilities
from kernels.blocksparse.backward.blackwell.pairs import turns
from kernels.blocksparse.backward.blackwell.pairs.dq_warps import block_of
from kernels.blocksparse.backward.blackwell.pairs.products import PairProducts
from kernels.blocksparse.backward.blackwell.tuning import HALF, Q_STAGES
from kernels.blocksparse.backward.blackwell.turns import arrive, await_do, await_queries
from kernels.blocksparse.backward.mainloop_mma import Work, is_masked
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.spec.sm100 import ROWS


@cute.jit
def issue_products(w) -> None:
    """The leader's issuing warp: products of all steps."""
    await_once = w.kernel.await_once
    issue_steps(
        w,
        PairProducts(w),
        SimpleNamespace(
            await_k=lambda: await_once(w.k_full, w.k_peer, Int32(0)),
            await_v=lambda: await_once(w.v_full, w.v_peer, Int32(0)),
            scores=issue_scores,
            dp=issue_dp,
            dv=issue_dv,
            dk_dq=issue_dk_dq,
            commit=w.kernel.commit,
        ),
    )


@cute.jit
def issue_scores(w, products, step: Int32) -> None:
    """S of a step, after which Q by rows is empty."""
    stage, commit, await_both = step % Q_STAGES, w.kernel.commit, w.kernel.await_both
    release = w.kernel.release_stage
    await_both(w.q_full + stage, w.q_peer + stage, step // Q_STAGES % 2)
    w.kernel.fence_products()
    products.scores(w.columns_s, stage)
    commit(w.scored)
    release(w.q_empty + stage)


@cute.jit
def issue_dp(w, products, step: Int32) -> None:
    """dP of a step."""
    commit, await_both = w.kernel.commit, w.kernel.await_both
    await_both(w.do_full, w.do_peer, step % 2)
    w.kernel.fence_products()
    products.dp(w.columns_dp)
    commit(w.multiplied)


@cute.jit
def issue_dv(w, products, step: Int32) -> None:
    """dV of a step, after which dO is empty."""
    release = w.kernel.release_stage
    cute.arch.mbarrier_wait(w.p_ready, step % 2)
    w.kernel.fence_products()
    products.dv(w.columns_dv, w.columns_s, step > 0)
    release(w.do_empty)


@cute.jit
def issue_dk_dq(w, products, step: Int32) -> None:
    """dK and dQ of a step; after dK Q by columns is empty."""
    shares_dq, await_columns = w.tiling.shares_dq, w.kernel.await_columns
    commit, await_both = w.kernel.commit, w.kernel.await_both
    release, await_once = w.kernel.release_stage, w.kernel.await_once
    cute.arch.mbarrier_wait(w.ds_ready, step % 2)
    await_both(w.qc_full, w.qc_peer, step % 2)
    w.kernel.fence_products()
    products.dk(w.columns_dk, w.columns_dp, 0, step > 0)
    release(w.qc_empty)
    if step == 0:
        await_once(w.kc_full, w.kc_peer, Int32(0))
    if cutlass.const_expr(not shares_dq):  # noqa: SIM102 (one is for the compiler)
        if step > 0:
            await_columns(w, step - 1)
    products.dq(w.columns_dq)
    commit(w.dq_done)


@cute.jit
def hand_on_loads(w) -> None:
    """The issuing warp of the other CTA: tells the leader what has been loaded here, in the order in which that waits
    for it."""
    hand_on = w.kernel.hand_on
    if w.total > 0:
        hand_on(w.k_full, w.k_peer, Int32(0))
        hand_on(w.q_full, w.q_peer, Int32(0))
        hand_on(w.v_full, w.v_peer, Int32(0))
        hand_on(w.do_full, w.do_peer, Int32(0))
    for step in cutlass.range(w.total, unroll=1):
        following, stage = step + 1, (step + 1) % Q_STAGES
        if following < w.total:
            hand_on(w.q_full + stage, w.q_peer + stage, following // Q_STAGES % 2)
        hand_on(w.qc_full, w.qc_peer, step % 2)
        if step == 0:
            hand_on(w.kc_full, w.kc_peer, Int32(0))
        if following < w.total:
            hand_on(w.do_full, w.do_peer, following % 2)


@cute.jit
def softmax_steps(w) -> None:
    """A softmax warp: P and dS of all steps."""
    half = cute.arch.make_warp_uniform(w.thread // ROWS)
    w = Work(**{**w.__dict__, "words": LaneWords(w.thread, half, w.rank * ROWS), "half": half})
    await_scores, await_products = w.kernel.await_scores, w.kernel.await_products
    stored_ds, publish_ds = w.kernel.stored_ds, w.kernel.publish_ds
    for step in cutlass.range(w.total, unroll=1):
        await_queries(w, step)
        block = block_of(w, step)
        masked, rKept = is_masked(w, block), find_kept(w, block)
        await_scores(w, step)
        rP = cute.make_rmem_tensor(HALF, cutlass.Float32)
        tcgen05.load(w.columns_s + half * HALF, w.row, rP)
        tcgen05.wait_loaded()
        for group in cutlass.range_constexpr(GROUPS):
            make_probabilities(w, chunk_of(rP, group), masked, rKept[group], group, step % Q_STAGES)
        stored_ds()
        tcgen05.fence_before()
        turns.arrive_at_leader(w.p_ready)
        arrive(w.q_empty + step % Q_STAGES)
        await_do(w, step)
        await_products(w, step)
        for group in cutlass.range_constexpr(GROUPS):
            share_ds(w, ds_of(w, chunk_of(rP, group), group), group)
        arrive(w.do_empty)
        stored_ds()
        publish_ds()
        tcgen05.fence_before()
        turns.arrive_at_leader(w.ds_ready)


@cute.jit
def share_ds(w, rounded: cute.Tensor, group: cutlass.Constexpr) -> None:
    """dS of a key and 32 queries, to the shared memory of the CTA that has these queries: NOTE [shares]."""
    keys, owner_of = w.storage.sdS[None, None, w.rank], w.kernel.owner_of
    if owner_of(w.half) == w.rank:
        own = cute.local_tile(keys, (1, CHUNK), (w.row, group))
        cute.autovec_copy(rounded, own[0, None])
    else:
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(keys.iterator, 1 - w.rank), keys.layout)
        theirs = cute.local_tile(there, (1, CHUNK), (w.row, group))
        cute.autovec_copy(rounded, theirs[0, None])


def owner_of(half: Int32) -> Int32:
    """The CTA that has half of the queries as rows of dQ."""
    return half
