# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Products of tcgen05: 128 rows in fp32, sums in tensor memory; and moves between it and registers.

NOTE [asynchronous tcgen05] A product is issued by one thread and runs on; products of that thread take effect in
order. For other threads it is done once they have waited for an mbarrier at which a later `tcgen05.commit` arrived.
Loads and stores of tensor memory are asynchronous too: `wait_loaded` and `wait_stored` say that a warp's are done.
Around barriers that order tensor memory between warps stand `fence_before` (before an arrival) and `fence_after` (after
a wait).

Relies on rows of shared tiles being swizzled as tile_layout says, at addresses that are multiples of 1,024, and on row
r of a product being lane r of tensor memory, its columns one after the other.
"""

from cutlass import Boolean, Float32, Int32, Uint32, cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

from kernels.blocksparse.common.layouts import chunk_columns
from kernels.blocksparse.common.mask_words import MaskRows
from kernels.blocksparse.spec.sm100 import ROWS

CHUNK = 32  # columns that one instruction moves
BOTH = 0b11  # mask of the CTAs of a pair
LANE = 1 << 16  # distance of two lanes in addresses of tensor memory


def scores_mma(dtype: type, step: int) -> cute.TiledMma:
    """Q · Kᵀ, both from shared memory."""
    return tiled(dtype, step, tcgen05.OperandSource.SMEM, OperandMajorMode.K)


def values_mma(dtype: type, dim: int) -> cute.TiledMma:
    """P · V, with P in tensor memory and V as it lies."""
    return tiled(dtype, dim, tcgen05.OperandSource.TMEM, OperandMajorMode.MN)


def tiled(
    dtype: type,
    columns: int,
    a_source,
    b_major: OperandMajorMode,
    a_major: OperandMajorMode = OperandMajorMode.K,
    rows: int = ROWS,
    group: tcgen05.CtaGroup = tcgen05.CtaGroup.ONE,
) -> cute.TiledMma:
    """A product of so many rows and columns, by one CTA or a pair of CTAs; major: which mode of an operand is
    contiguous in shared memory."""
    return cute.make_tiled_mma(
        tcgen05.MmaF16BF16Op(dtype, Float32, (rows, columns, 16), group, a_source, a_major, b_major)
    )


def tile_layout(dtype: type, rows: int, dim: int, stages: int) -> cute.ComposedLayout:
    """Layout of `stages` (rows, dim) tiles of 16-bit elements; the swizzle permutes pieces of rows, 128 or 64 bytes."""
    kind = tcgen05.SmemLayoutAtomKind.K_SW128 if chunk_columns(dim) == 64 else tcgen05.SmemLayoutAtomKind.K_SW64
    return cute.tile_to_shape(tcgen05.make_smem_layout_atom(kind, dtype), (rows, dim, stages), (0, 1, 2))


def shared_tiles(pointer: cute.Pointer, dtype: type, rows: int, dim: int, stages: int) -> cute.Tensor:
    """(rows, dim, stages) tiles at `pointer`, which the swizzle is moved to: products take plain layouts."""
    layout = tile_layout(dtype, rows, dim, stages)
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, dtype), layout.outer)


def transposed(sX: cute.Tensor) -> cute.Tensor:
    """View of (rows, dim, stages) as (dim, rows, stages)."""
    return cute.make_tensor(sX.iterator, cute.select(sX.layout, [1, 0, 2]))


def sums(mma: cute.TiledMma, pointer: cute.Pointer, columns: int, rows: int = ROWS) -> cute.Tensor:
    """The fp32 accumulator of a product, at a column of tensor memory."""
    return cute.make_tensor(pointer, mma.make_fragment_C(mma.partition_shape_C((rows, columns))).layout)


def operand_a(mma: cute.TiledMma, pointer: cute.Pointer, dtype: type, k: int, rows: int = ROWS) -> cute.Tensor:
    """Operand A (rows, k) in tensor memory, two elements in a column; of a pair of CTAs each has half of the rows."""
    fragment = mma.make_fragment_A(mma.partition_shape_A((rows, k)))
    return cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), fragment.layout)


def multiply(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, add: Boolean | bool, first_b: int = 0
) -> None:
    """Issue acc (+)= A · Bᵀ, by one thread of a whole warp. a, b: fragments (…, rows or columns, k); first_b: the piece
    of b that goes with the first one of a."""
    atom = cute.make_mma_atom(mma.op)
    for k in range(cute.size(a, mode=[2])):
        atom.set(tcgen05.Field.ACCUMULATE, add if k == 0 else True)
        cute.gemm(atom, acc, a[None, None, k], b[None, None, first_b + k], acc)


@cute.jit
def commit(barrier: cute.Pointer) -> None:
    """A whole warp: one arrival at an mbarrier as soon as all products that it has issued are done."""
    with cute.arch.elect_one():
        tcgen05.commit(barrier)


@cute.jit
def commit_to_pair(barrier: cute.Pointer) -> None:
    """As `commit`, of products of a pair of CTAs: an arrival at the mbarrier at this place in both."""
    with cute.arch.elect_one():
        tcgen05.commit(barrier, BOTH, tcgen05.CtaGroup.TWO)


def load(pointer: cute.Pointer, thread: Int32, target: cute.Tensor) -> None:
    """Start loading this thread's lane, from the column at `pointer` on, into fp32 registers: a multiple of CHUNK."""
    for i in range(cute.size(target) // CHUNK):
        source, copy, shape = _chunk(tcgen05.Ld32x32bOp, pointer + i * CHUNK, CHUNK)
        part = copy.get_slice(thread)
        into = cute.make_tensor(target.iterator + i * CHUNK, cute.make_layout(part.partition_D(shape).shape))
        cute.copy(copy, part.partition_S(source), into)


def store(pointer: cute.Pointer, thread: Int32, values: cute.Tensor) -> None:
    """Start storing 32-bit registers into this thread's lane, from the column at `pointer` on: a multiple of 16."""
    width = min(CHUNK, cute.size(values))
    for i in range(cute.size(values) // width):
        target, copy, shape = _chunk(tcgen05.St32x32bOp, pointer + i * width, width)
        part = copy.get_slice(thread)
        from_ = cute.make_tensor(values.iterator + i * width, cute.make_layout(part.partition_S(shape).shape))
        cute.copy(copy, from_, part.partition_D(target))


def _chunk(operation, pointer: cute.Pointer, width: int):
    """`width` columns of all lanes, what moves them, and their coordinates."""
    columns = cute.make_tensor(pointer, cute.make_layout((ROWS, width), stride=(LANE, 1)))
    atom = cute.make_copy_atom(operation(tcgen05.Repetition(width)), Float32)
    return columns, tcgen05.make_tmem_copy(atom, columns), cute.make_identity_tensor((ROWS, width))


@cute.jit
def wait_loaded() -> None:
    """Waits until the warp's loads have been carried out."""
    cute.arch.fence_view_async_tmem_load()


@cute.jit
def wait_stored() -> None:
    """Waits until the warp's stores have been carried out."""
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def fence_shared() -> None:
    """Makes this thread's writes to shared memory visible to products, which read through another path."""
    cute.arch.fence_view_async_shared()


@cute.jit
def fence_shared_of_pair() -> None:
    """As `fence_shared`, of writes to the shared memory of the other CTA too."""
    cute.arch.fence_proxy("async.shared", space="cluster")


def fence_before() -> None:
    """Orders accesses of tensor memory before the arrival at a barrier that follows."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


def fence_after() -> None:
    """Orders accesses of tensor memory after the wait for a barrier that came before."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


class LaneRow(MaskRows):
    """MaskRows of a thread that has one row, with all its columns."""

    def __init__(self, thread: Int32, columns: int) -> None:
        self.rows, self.columns, self.row = 1, columns, [thread]
        self.first, self.offset, self.n_words = 0, list(range(columns)), columns // 32
        self.words = cute.make_rmem_tensor(cute.make_layout((1, self.n_words), stride=(self.n_words, 1)), Uint32)


def row_of(columns: int) -> cute.Tensor:
    """fp32 registers of one row, as the layout views of mma.sync's accumulators have it: ((columns, 1), 1, 1)."""
    return cute.make_rmem_tensor(cute.make_layout(((columns, 1), 1, 1)), Float32)
