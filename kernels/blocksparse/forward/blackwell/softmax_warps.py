# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The work of a softmax warp on a query tile: Q without TMA, the steps of mainloop.py, and its rows of O and LSE."""

import cutlass
from cutlass import Float32, Int32, cute

from kernels.blocksparse.common import buffers, tcgen05
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.forward.blackwell import mainloop
from kernels.blocksparse.forward.blackwell.query_tiles import MEETING, SOFTMAX_THREADS, meet, rows_before
from kernels.blocksparse.forward.mainloop import Work


@cute.jit
def softmax_tile(common: Work, thread, columns: cute.Pointer, q, o, lse_row, factors) -> None:
    """A softmax warp's 32 rows of a query tile. thread: of all softmax threads; q, o: (address of the tile's first row,
    stride of rows), None by TMA; lse_row: address of the first row's LSE."""
    variant, tuning = common.variant, common.tuning
    tile = cute.arch.make_warp_uniform(thread // SOFTMAX_THREADS)
    row, thread = thread, thread % SOFTMAX_THREADS
    use = common.count * common.tiles + tile
    stage = buffers.stage_of(use, tuning.q_stages)
    band_offset = Int32(0)
    if cutlass.const_expr(variant.mask == "band"):
        band_offset = read(common.mask.band_offset, common.place[0] * common.mask.band_stride)
    sQ, first_column, own_barrier = common.sQ[None, None, stage], common.first_column, common.own_barrier
    fence_shared, fence_output, rows_of_tile = common.fence_shared, common.fence_output, common.rows_of_tile
    if cutlass.const_expr(not tuning.tma):
        copy = TileCopy(common.dtype, SOFTMAX_THREADS, variant.dim_padded, thread, common.dim)
        rows_left = rows_of_tile(common.rows_left, tile)
        buffers.wait_empty(common.buffers_q, use)
        copy.load(q[0] + rows_before(tile, q[1]), q[1], rows_left, sQ)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        fence_shared()
        mainloop.arrive(common.buffers_q.full + stage)
    row_ref, row_sum = (cute.make_rmem_tensor(1, Float32) for _ in range(2))
    row_ref.fill(-Float32.inf)
    row_sum.fill(0.0)
    w = Work(
        **{
            **common.__dict__,
            "thread": thread,
            "row": row,
            "mask_rows": tcgen05.LaneRow(row, tuning.step),
            "band_offset": band_offset,
            "columns_s": columns + first_column(variant, tuning, tile, "scores"),
            "columns_o": columns + first_column(variant, tuning, tile, "output"),
            "scored": own_barrier(common.scored, tile, tuning.buffers),
            "ready": common.ready + tile * tuning.buffers,
            "added": own_barrier(common.added, tile, 1),
            "row_ref": row_ref,
            "row_sum": row_sum,
            "to_tanh": factors[0],
            "to_log2": factors[1],
        }
    )
    mainloop.softmax_steps(w)
    # Q is there, and the products that read it are done for all: its place becomes that of O
    if cutlass.const_expr(tuning.tma):
        buffers.wait_full(w.buffers_q, use)
    meet(MEETING + 1 + tile)
    write_row(w, sQ, lse_row)
    if cutlass.const_expr(tuning.tma):
        fence_output()
        mainloop.arrive(w.written_o + stage)
    else:
        meet(MEETING + 1 + tile)
        copy.store(sQ, o[0] + rows_before(tile, o[1]), o[1], rows_left)
        # O has been read: the next Q may take its place
        meet(MEETING + 1 + tile)


@cute.jit
def write_row(w: Work, sO: cute.Tensor, lse_row) -> None:
    """Divide a thread's row of O by its sum and write it to shared memory, and its log-sum-exp to global memory."""
    n_entries, total, lse_of, inverse_of = w.tile_iterator.entries, w.row_sum[0], w.lse_of, w.inverse_of
    row, rows_left = w.row, w.rows_left
    factor, wait_loaded, wait_added = inverse_of(total), w.wait_loaded, w.wait_added
    if n_entries > 0:
        wait_added(w, w.before + n_entries * (w.variant.tile_n // w.tuning.step) - 1)
    for i in cutlass.range_constexpr(w.variant.dim_padded // tcgen05.CHUNK):
        values = cute.make_rmem_tensor(tcgen05.CHUNK, Float32)
        values.fill(0.0)
        if n_entries > 0:
            tcgen05.load(w.columns_o + i * tcgen05.CHUNK, w.thread, values)
            wait_loaded()
        rounded = cute.make_rmem_tensor(tcgen05.CHUNK, w.dtype)
        rounded.store((values.load() * factor).to(w.dtype))
        own = cute.local_tile(sO, (1, tcgen05.CHUNK), (w.thread, i))
        cute.autovec_copy(rounded, own[0, None])
    value, reference = -Float32.inf, w.row_ref[0] * w.to_log2
    if total != 0.0:
        value = lse_of(reference, total)
    if row < rows_left:
        cute.make_tensor(lse_row + row, cute.make_layout(1))[0] = value
