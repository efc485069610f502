# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The end of a tile of keys: dK and dV from tensor memory to global memory, by the softmax warps."""

import cutlass
from cutlass import Float32, Int64, cute

from kernels.blocksparse.backward.blackwell.dq_warps import VECTOR
from kernels.blocksparse.backward.blackwell.tuning import SOFTMAX_WARPS
from kernels.blocksparse.backward.dkv_partials import sums_of
from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.spec.sm100 import ROWS

BARRIER, THREADS = 1, 32 * SOFTMAX_WARPS  # the named barrier of the softmax warps


@cute.jit
def write_gradients(w, dk, dv, mSums: cute.Pointer, sums: Int64) -> None:
    """dK and dV, or their sums where a group has several units. K and V have been read: dK and dV take their place."""
    storage, dim, total = w.storage, w.tiling.dim, w.total
    if total > 0:
        cute.arch.mbarrier_wait(w.ended, 0)
        tcgen05.fence_after()
    share(w, w.columns_dk, storage.sK, w.kernel.dk_factor(w.factors.scale), sums_of(mSums, sums, 0, w.tiling))
    share(w, w.columns_dv, storage.sV, Float32(1.0), sums_of(mSums, sums, 1, w.tiling))
    tcgen05.fence_before()
    cute.arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)
    tcgen05.fence_after()
    if w.counts.group_split == 1:
        copy = TileCopy(w.dtype, THREADS, dim, w.thread, w.dim)
        copy.store(storage.sK[None, None, 0], dk[0], dk[1], w.keys_left)
        copy.store(storage.sV[None, None, 0], dv[0], dv[1], w.keys_left)


@cute.jit
def share(w, columns: cute.Pointer, sX: cute.Tensor, factor: Float32, target: cute.Pointer) -> None:
    """A thread's half of a row, to shared memory in 16 bits, or as sums to memory: NOTE [dQ of tcgen05]."""
    half, per_half = w.thread // ROWS, w.tiling.dim // 2 // tcgen05.CHUNK
    for i in cutlass.range_constexpr(per_half):
        chunk = half * per_half + i
        values = cute.make_rmem_tensor(tcgen05.CHUNK, Float32)
        values.fill(0.0)
        if w.total > 0:
            tcgen05.load(columns + chunk * tcgen05.CHUNK, w.row, values)
            tcgen05.wait_loaded()
        values.store(values.load() * factor)
        if w.counts.group_split > 1:
            write_sums(values, target + chunk * (tcgen05.CHUNK * ROWS) + w.row * VECTOR)
        else:
            rounded = cute.make_rmem_tensor(tcgen05.CHUNK, w.dtype)
            rounded.store(values.load().to(w.dtype))
            own = cute.local_tile(sX[None, None, 0], (1, tcgen05.CHUNK), (w.row, chunk))
            cute.autovec_copy(rounded, own[0, None])


@cute.jit
def write_sums(values: cute.Tensor, target: cute.Pointer) -> None:
    """32 columns of a row."""
    for c in cutlass.range_constexpr(0, tcgen05.CHUNK, VECTOR):
        four = cute.make_tensor(values.iterator + c, cute.make_layout(VECTOR))
        cute.autovec_copy(four, cute.make_tensor((target + c * ROWS).align(16), cute.make_layout(VECTOR)))
