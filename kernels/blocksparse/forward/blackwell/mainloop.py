# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The two loops over the key steps of a query tile: of the warp that issues products, and of the softmax warps.

NOTE [turns] Step s has buffer s % buffers of tensor memory: first its scores, then, in the same columns, its
probabilities. `scored` of that buffer says that the scores are there; `ready` that the probabilities are, and that O
has been rescaled to the references that they are relative to; `added` (one for all steps) that O += P · V of a step is
done.
Products take effect in the order of their issue, so that scores may replace the probabilities that the product before
them reads. With two buffers the scores of step s + 1 are computed during the softmax of step s.
Two query tiles have all of these each, and are served by turns: while one's softmax runs, the other's products do. The
stages of K and V are released by the products of the second one, which follow those of the first.
Scores of a tile's first step are issued beside the last step's products of the tile before: NOTE [next tile] of
kernel.py. `ready` of its first step also says that the rows of O before it have been read, and are free for new ones.
Phases are counted over all tiles. A softmax warp waits for every phase of `added`, whether it rescales O or not: a wait
by parity takes the phase before the last for the one to come.
"""

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from kernels.blocksparse.common import buffers, layouts, mask_words, tcgen05
from kernels.blocksparse.common.list_reader import listed
from kernels.blocksparse.forward.blackwell.exponentials import exponentials
from kernels.blocksparse.forward.mainloop import LAG, cap_scores, load_words, mask_scores, masks, slot_of


@cute.jit
def issue_tiles(w) -> None:
    """The issuing warp: scores of all steps of all tiles and their products with V, into tensor memory."""
    steps_per_block, take_tile = w.variant.tile_n // w.tuning.step, w.take_tile
    count, before, n_steps, more = Int32(0), Int32(0), Int32(0), Boolean(True)
    while more:
        # of the tile before the CTA's `count`-th one; at first there is none
        issue_steps(w, count - 1, before, n_steps)
        tile = take_tile(w.tile_pipeline, count, w.lists)
        more = tile.batch >= 0
        n_next = tile.tile_iterator.entries * steps_per_block
        issue_last_step(w, count, before, n_steps, n_next, more)
        before += n_steps
        n_steps = n_next
        count += 1


@cute.jit
def issue_steps(w, count: Int32, before: Int32, n_steps: Int32) -> None:
    """All steps of the CTA's `count`-th tile but the last one's product, and but the first one's scores."""
    for s in cutlass.range(cutlass.max(n_steps - 1, 0)):
        for tile in cutlass.range_constexpr(w.tiles):
            if cutlass.const_expr(w.tuning.buffers == 1):
                issue_values(w, tile, before, s)
            issue_scores(w, tile, count, before + s + 1)
            if cutlass.const_expr(w.tuning.buffers == 2):
                issue_values(w, tile, before, s)


@cute.jit
def issue_last_step(w, count: Int32, before: Int32, n_steps: Int32, n_next: Int32, more: Boolean) -> None:
    """The last step's product of a tile, and the first step's scores of the next, the CTA's `count`-th.

    Where O is stored from the place of the next tile's Q, scores come after the products of all query tiles: O has
    theirs, and would wait for them."""
    has_place = w.tuning.q_stages > w.tiles
    for tile in cutlass.range_constexpr(w.tiles):
        if cutlass.const_expr(has_place and w.tuning.buffers == 2):
            begin_tile(w, tile, count, before + n_steps, n_next, more)
        if n_steps > 0:
            issue_values(w, tile, before, n_steps - 1)
        if cutlass.const_expr(has_place and w.tuning.buffers == 1):
            begin_tile(w, tile, count, before + n_steps, n_next, more)
    for tile in cutlass.range_constexpr(0 if has_place else w.tiles):
        begin_tile(w, tile, count, before + n_steps, n_next, more)


@cute.jit
def begin_tile(w, tile: cutlass.Constexpr, count: Int32, step: Int32, n_steps: Int32, more: Boolean) -> None:
    """Waits for Q of a query tile and issues its first scores, where it has blocks. step: its first one."""
    use, waits = count * w.tiles + tile, w.waits_for_queries
    if more & waits(n_steps):
        buffers.wait_full(w.buffers_q, use)
        # without scores nothing else says that this phase has been waited for
        buffers.release(w.buffers_q, use)
    if n_steps > 0:
        issue_scores(w, tile, count, step)


def waits_for_queries(n_steps: Int32) -> Boolean:
    """True if the issuing warp waits for Q of a tile of n_steps steps: NOTE [next tile] of kernel.py."""
    return Boolean(True)


@cute.jit
def issue_scores(w, tile: cutlass.Constexpr, count: Int32, step: Int32) -> None:
    """Q · Kᵀ of a query tile in a step, and the arrivals that follow it. step: counted over all tiles of the CTA."""
    buffer, keys = buffers.stage_of(step, w.tuning.buffers), w.tuning.step
    stage, place = buffers.stage_of(step, w.tuning.stages), buffers.stage_of(count * w.tiles + tile, w.tuning.q_stages)
    fence_after, release, wait_filled = w.fence_after, w.release_keys, w.wait_filled
    reads_last, first_column = w.reads_last, w.first_column
    if cutlass.const_expr(tile == 0):
        wait_filled(w.buffers_k, step)
    fence_after()
    columns = w.columns + first_column(w.variant, w.tuning, tile, "scores")
    acc = tcgen05.sums(w.mma_s, columns + buffer * keys, keys)
    q, k = w.fragment_q[None, None, None, place], w.fragment_k[None, None, None, stage]
    tcgen05.multiply(w.mma_s, acc, q, k, False)
    if cutlass.const_expr(reads_last(tile, w.tiles)):
        release(w.buffers_k.empty + stage)
    tcgen05.commit(w.scored + tile * w.tuning.buffers + buffer)


def reads_last(tile: int, tiles: int) -> bool:
    """True for the query tile whose products are the last ones that read a stage of K or V."""
    return tile == tiles - 1


@cute.jit
def release_keys(barrier: cute.Pointer) -> None:
    """The buffer of K is empty as soon as the products that read it are done."""
    tcgen05.commit(barrier)


@cute.jit
def issue_values(w, tile: cutlass.Constexpr, before: Int32, s: Int32) -> None:
    """O += P · V of a query tile in step s of its own, and the arrivals that follow it; the first one is not added to
    what the columns had. before: steps of earlier tiles."""
    step, keys = before + s, w.tuning.step
    stage, buffer = buffers.stage_of(step, w.tuning.stages), buffers.stage_of(step, w.tuning.buffers)
    fence_after, wait_filled, adds = w.fence_after, w.wait_filled, w.adds
    reads_last, first_column = w.reads_last, w.first_column
    if cutlass.const_expr(tile == 0):
        wait_filled(w.buffers_v, step)
    ready = w.ready + tile * w.tuning.buffers + buffer
    cute.arch.mbarrier_wait(ready, buffers.parity_of(step, w.tuning.buffers))
    fence_after()
    columns_s = w.columns + first_column(w.variant, w.tuning, tile, "scores")
    columns_o = w.columns + first_column(w.variant, w.tuning, tile, "output")
    operand_p = tcgen05.operand_a(w.mma_o, columns_s + buffer * keys, w.dtype, keys)
    acc = tcgen05.sums(w.mma_o, columns_o, w.variant.dim_padded)
    tcgen05.multiply(w.mma_o, acc, operand_p, w.fragment_v[None, None, None, stage], adds(before, s))
    if cutlass.const_expr(reads_last(tile, w.tiles)):
        tcgen05.commit(w.buffers_v.empty + stage)
    tcgen05.commit(w.added + tile)


def adds(before: Int32, s: Int32) -> Boolean:
    """True if the product of a tile's step s is added to O; that of its first step overwrites O."""
    return s > 0


@cute.jit
def softmax_steps(w) -> None:
    """A softmax warp: probabilities of all steps of a tile; row_ref and row_sum from -inf and 0 to their ends."""
    step = w.tuning.step
    steps_per_block = w.variant.tile_n // step
    n_steps = w.tile_iterator.entries * steps_per_block
    block, slot = Int32(0), slot_of(w, Int32(0))
    if n_steps > 0:
        block = listed(w.tile_iterator, Int32(0))
    wait_scored, wait_added, wait_loaded, wait_stored = w.wait_scored, w.wait_added, w.wait_loaded, w.wait_stored
    for s in cutlass.range(n_steps):
        buffer, column = buffers.stage_of(w.before + s, w.tuning.buffers), s % steps_per_block * step
        key = block * w.variant.tile_n + column
        load_words(w, s // steps_per_block, slot, key, column)
        # the next step's block and slot are on their way while this one computes
        block_next, slot_next = Int32(0), slot_of(w, (s + 1) // steps_per_block)
        if s + 1 < n_steps:
            block_next = listed(w.tile_iterator, (s + 1) // steps_per_block)
        acc_s = tcgen05.row_of(step)
        wait_scored(w, w.before + s)
        tcgen05.load(w.columns_s + buffer * step, w.thread, acc_s)
        wait_loaded()
        cap_scores(w, acc_s)
        mask_scores(w, acc_s, masks(w, s // steps_per_block, key), key)
        if s > 0:
            wait_added(w, w.before + s - 1)
        advance(w, acc_s, s)
        store_probabilities(w, acc_s, buffer)
        wait_stored()
        tcgen05.fence_before()
        arrive(w.ready + buffer)
        block, slot = block_next, slot_next


def store_probabilities(w, acc_s: cute.Tensor, buffer: Int32) -> None:
    """Start storing the step's probabilities, a few columns after the other: registers do not hold all of both."""
    for i in range(cute.size(acc_s) // tcgen05.CHUNK):
        part = cute.make_tensor(acc_s.iterator + i * tcgen05.CHUNK, cute.make_layout(((tcgen05.CHUNK, 1), 1, 1)))
        probabilities = cute.recast_tensor(exponentials(w, part), Float32)
        column = buffer * w.tuning.step + i * (tcgen05.CHUNK // 2)
        tcgen05.store(w.columns_s + column, w.thread, probabilities)


@cute.jit
def wait_scored(w, step: Int32) -> None:
    """Waits for the scores of a step, counted over all tiles of the CTA."""
    fence_after, n_buffers = w.fence_after, w.tuning.buffers
    cute.arch.mbarrier_wait(w.scored + buffers.stage_of(step, n_buffers), buffers.parity_of(step, n_buffers))
    fence_after()


@cute.jit
def wait_added(w, step: Int32) -> None:
    """Waits until O has the product of a step, counted over all tiles of the CTA."""
    fence_after = w.fence_after
    cute.arch.mbarrier_wait(w.added, step % 2)
    fence_after()


@cute.jit
def arrive(barrier: cute.Pointer) -> None:
    """One arrival of a warp."""
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        cute.arch.mbarrier_arrive(barrier)


@cute.jit
def advance(w, acc_s: cute.Tensor, s: Int32) -> None:
    """Bring the row's reference, its sum and O up to date with the scores, as mainloop.rescale does; all rows of a
    warp, where one of them fell behind."""
    row_ref, row_sum, factor_of, finite_of = w.row_ref, w.row_sum, w.correction, w.finite
    row_max = layouts.rows_columns(acc_s)[0, None].load().reduce(cute.ReductionOp.MAX, row_ref[0], 0)
    moved = cute.arch.vote_any_sync((row_max - row_ref[0]) * w.to_log2 > LAG)
    for _ in cutlass.range(mask_words.branch(moved)):
        factor = factor_of(row_ref[0], finite_of(row_max), w.to_log2)
        row_sum[0] = row_sum[0] * factor
        row_ref[0] = row_max
        if s > 0:
            rescale_output(w, factor)


@cute.jit
def rescale_output(w, factor) -> None:
    """Multiply the lanes of O, to which the step before has been added."""
    wait_loaded, wait_stored = w.wait_loaded, w.wait_stored
    for i in cutlass.range_constexpr(w.variant.dim_padded // tcgen05.CHUNK):
        values = cute.make_rmem_tensor(tcgen05.CHUNK, Float32)
        tcgen05.load(w.columns_o + i * tcgen05.CHUNK, w.thread, values)
        wait_loaded()
        values.store(values.load() * factor)
        tcgen05.store(w.columns_o + i * tcgen05.CHUNK, w.thread, values)
    wait_stored()
