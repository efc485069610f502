"""The dQ accumulator and the protocol of its adds.

NOTE [dQ accumulator] float32, (heads_q, tiles, tile_m / step_m, fragments), `Tiles` saying which tile is whose: every
step's tile lies in the order in which the backward kernel's threads hold it, so that their adds are wide and adjacent.
Threads come in groups of `Tiling.dq_threads`, all of them or a warpgroup, one group's values after another's: value v
of thread t of a group is at (v // vector) * dq_threads * vector + t * vector + v % vector. Postprocess reads it in the
same order, with the same `Product`.

NOTE [dQ by dim] The transposed main loop computes dQ^T (dim, queries) at dim 128: a warpgroup has 64 columns of dQ as
rows of its sums, and a tile lies as (2, tile_m / 8, 512): for each warpgroup eight queries after eight queries, each of
them four adjacent values of 128 threads. So any run of queries in multiples of eight is adjacent in both halves.

NOTE [deterministic adds] One int32 semaphore per (batch, head_q, m_block), zero before the launch. The CTA that adds
block (n, m) waits until it equals the block's lock, adds, and releases it by adding one. Locks are ranks in launch
order (`WriteOrder`), and CTAs take their places in launch order from a tile counter, so the oldest resident CTA never
waits: it ends with any number of resident CTAs. A wrong lock, a missed release or a semaphore that is not zero hangs
the kernel, or lets two adds of one tile race. Kernels of Hopper have several semaphores for each, for parts of an add:
NOTE [ordered bulk adds] of transposed/dq_warps.py, NOTE [ordered adds in turns] of by_gradient/dq_warps.py.

NOTE [first add] Atomic adds start from zeros, which preprocess writes. With ordered ones nothing is zeroed: the first
block of a tile, that of rank 0, stores, and the others, which wait for it, add. A tile that no block is added to is
never written. Its semaphore is still 0 after the kernel, where any other's is the number of blocks that were added: so
postprocess writes zeros there, and does not read the accumulator. A first add of -0 leaves -0, where 0 + -0 is 0.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward.intrinsics import add_four, add_one
from kernels.blocksparse.backward.mma import Product
from kernels.blocksparse.backward.tiling import THREADS, Tiling, columns_of_dq
from kernels.blocksparse.backward.wgmma import GroupProduct
from kernels.blocksparse.common.list_reader import read

COLUMNS = 8  # of dQ that four adjacent values of each thread of a warpgroup make, in all of a step's rows


class Tiles(NamedTuple):
    """Numbers of the tiles of queries of all sequences, for the accumulator and the statistics.

    Padded problems have m_blocks for each sequence: stride_batch = m_blocks, total = batch · m_blocks. Packed ones
    have as many as their rows need, and at most one more each: stride_batch = 1, total = rows // tile_m + batch.
    """

    stride_batch: Int32
    total: Int32


@cute.jit
def tile_number(tiles: Tiles, batch: Int32, head: Int32, begin: Int32, tile_m: cutlass.Constexpr) -> Int64:
    """The first tile of a sequence that begins at row `begin`, for one query head."""
    return Int64(head) * tiles.total + (batch * tiles.stride_batch + begin // tile_m)


def dq_product(tiling: Tiling, dtype: type) -> Any:
    """dQ (step_m, dim) += dS (step_m, tile_n) K (tile_n, dim), whose accumulator is NOTE [dQ accumulator]'s
    fragment: a Product, or GroupProduct. By dim it is dQ^T (dim, step_m) += K^T dS^T: NOTE [dQ by dim]."""
    if tiling.dq_by_dim:
        return GroupProduct(dtype, (tiling.dim, tiling.step_m, tiling.tile_n), (8, 1), transpose_a=True)
    kind: Any = GroupProduct if tiling.wgmma else Product
    shape = (tiling.step_m, tiling.dim, tiling.tile_n)
    return kind(dtype, shape, tiling.warps_dq, transpose_a=tiling.transposed, transpose_b=True)


@cute.jit
def lock_of(rank: Int32, n_block: Int32) -> Int32:
    """The value of the semaphore at which a block may add."""
    return rank


@cute.jit
def is_first(rank: Int32) -> Boolean:
    """True for the block whose ordered add is the first one of its tile: it stores, NOTE [first add]."""
    return rank == 0


@cute.jit
def wait(semaphore: cute.Pointer, lock: Int32):
    """Waits, in one thread, until the semaphore equals the lock. Writes released before are visible afterwards."""
    value = cute.arch.load(semaphore, Int32, sem="acquire", scope="gpu")
    while value != lock:
        value = cute.arch.load(semaphore, Int32, sem="acquire", scope="gpu")


@cute.jit
def release(semaphore: cute.Pointer):
    """Lets the next block add: one thread, after a barrier that follows the CTA's adds. The release covers the other
    threads' adds too, which the barrier ordered before it."""
    cute.arch.red(semaphore, Int32(1), op="add", dtype="s32", sem="release", scope="gpu")


@cute.jit
def ended_step(step: Int32, steps: Int32) -> Int32:
    """The step that has ended when `step` of a row of `steps` begins; in it the dQ of the step before it was added."""
    return step - 1


@cute.jit
def clear(semaphore: cute.Pointer):
    """Sets, in one thread before the launch, the value that lets the first block add."""
    cute.make_tensor(semaphore, cute.make_layout(1))[0] = Int32(0)


@cute.jit
def is_added(semaphores: cute.Pointer, tile: Int32) -> Boolean:
    """True where a tile of the accumulator has sums, after the kernel: everywhere without semaphores (null), which are
    those of ordered adds; with them where a block was added. tile: its number among semaphores."""
    added = Boolean(True)
    if semaphores.toint() != 0:
        added = read(semaphores, tile) != 0
    return added


@cute.jit
def store_fragment(rdQ: cute.Tensor, tile: cute.Pointer, tidx: Int32, vector: cutlass.Constexpr):
    """Stores a thread's dQ to the step's tile, as `add_fragment` adds it."""
    here, there = fragment_views(rdQ, tile + cute.assume(tidx * vector, divby=vector), THREADS, vector)
    cute.autovec_copy(here, there)


@cute.jit
def add_fragment(rdQ: cute.Tensor, tile: cute.Pointer, tidx: Int32, vector: cutlass.Constexpr):
    """Adds a thread's dQ to the step's tile."""
    flat = cute.make_tensor(rdQ.iterator, cute.make_layout(cute.size(rdQ)))
    start = tile + tidx * vector
    for v in cutlass.range_constexpr(0, cute.size(rdQ), vector):
        if cutlass.const_expr(vector == 4):
            add_four(start + v * THREADS, flat[v], flat[v + 1], flat[v + 2], flat[v + 3])
        else:
            add_one(start + v * THREADS, flat[v])


def group_offset(tiling: Tiling, step: Any, group: Any) -> Any:
    """Floats from the start of a tile of queries to what a group of threads has of a step's dQ."""
    half = tiling.dim // (THREADS // tiling.dq_threads)
    if tiling.dq_by_dim:
        return (group * tiling.tile_m + step * tiling.step_m) * half
    return step * tiling.step_m * tiling.dim + group * tiling.step_m * half


@cute.jit
def read_fragment(
    rdQ: cute.Tensor, tile: cute.Pointer, step: cutlass.Constexpr, tidx: Int32, tiling: cutlass.Constexpr
):
    """A thread's dQ of a step from the tile of queries: the reverse of `add_fragment`. Where the second group has fewer
    columns, rdQ keeps what it has in the place of the others."""
    threads, vector = tiling.dq_threads, tiling.vector
    first = group_offset(tiling, step, tidx // threads) + tidx % threads * vector
    here, there = fragment_views(rdQ, tile + cute.assume(first, divby=vector), threads, vector)
    if cutlass.const_expr(tiling.by_gradient and columns_of_dq(tiling, 1) < columns_of_dq(tiling, 0)):
        shape = (vector, 1)
        for atom in cutlass.range_constexpr(columns_of_dq(tiling, 0) // COLUMNS):
            if (atom < columns_of_dq(tiling, 1) // COLUMNS) | (tidx < threads):
                cute.autovec_copy(cute.local_tile(there, shape, (0, atom)), cute.local_tile(here, shape, (0, atom)))
    else:
        cute.autovec_copy(there, here)


def fragment_views(rdQ: cute.Tensor, first: cute.Pointer, threads: int, vector: int) -> tuple[cute.Tensor, cute.Tensor]:
    """A thread's dQ in its registers, and the same values in memory from its first one on: (vector, vectors) each."""
    vectors = cute.size(rdQ) // vector
    here = cute.make_tensor(rdQ.iterator, cute.make_layout((vector, vectors)))
    return here, cute.make_tensor(first, cute.make_layout((vector, vectors), stride=(1, threads * vector)))
