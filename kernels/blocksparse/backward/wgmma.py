# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Products of the backward kernel by warpgroups (wgmma), on Hopper: two of them, operands in shared memory, fp32 sums.

`GroupProduct` and `GroupThread` stand where `Product` and `ThreadProduct` of mma.py do. Tiles lie in shared memory as
they do there (common/layouts.py), which is the 128-byte swizzle of wgmma's descriptors: "straight" operands are
K-major, "transposed" ones MN-major. Needs columns of tiles in multiples of 64, and tiles at addresses that are
multiples of 1,024.

NOTE [asynchronous wgmma] A product is issued and runs on. Until `finish` says so, no thread touches its sums, nor the
shared memory that it reads. What threads wrote to shared memory is fenced (`publish`) before the barrier that lets a
product read it: products read by another path, the async proxy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cutlass import Float32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernels.blocksparse.common.held_operand import DEPTH, load_held

WARPGROUP = 128
ROWS = 64  # of one instruction


@dataclass(frozen=True)
class GroupProduct:
    """shape is (m, n, k); warps (m, n): four for each warpgroup, whose rows and columns are adjacent; transpose_a,
    transpose_b: the operand lies with m (n) contiguous in shared memory; a_in_registers: a result of a product before,
    rounded, whose rows its threads hold."""

    dtype: type
    shape: tuple[int, int, int]
    warps: tuple[int, int]
    transpose_a: bool = False
    transpose_b: bool = False
    a_in_registers: bool = False

    def tiled_mma(self) -> cute.TiledMma:
        """The tiled mma of both warpgroups."""
        groups = (self.warps[0] // 4, self.warps[1])
        operation = self.operation(self.shape[1] // groups[1])
        return cute.make_tiled_mma(cute.make_mma_atom(operation), (*groups, 1))

    def operation(self, columns: int) -> warpgroup.MmaF16BF16Op:
        """The instruction of a warpgroup that computes so many columns of 64 rows."""
        major = {False: OperandMajorMode.K, True: OperandMajorMode.MN}
        source = warpgroup.OperandSource.RMEM if self.a_in_registers else warpgroup.OperandSource.SMEM
        shape = (ROWS, columns, DEPTH)
        return warpgroup.MmaF16BF16Op(
            self.dtype, Float32, shape, source, major[self.transpose_a], major[self.transpose_b]
        )


class GroupThread:
    """A product seen by one thread: its warpgroup's share of the operands, and where its own results lie."""

    def __init__(
        self,
        product: GroupProduct,
        thread,
        sA: cute.Tensor | None,
        sB: cute.Tensor,
        depth: int = 0,
        columns: int = 0,
    ):
        """sA (m, k, stages) and sB (n, k, stages), as `operand` and `transposed_operand` give them; sA is None where A
        is in registers. depth: the product is over the first `depth` of k, as the others are zeros; 0: all. columns:
        likewise of n, where a warpgroup has all of them: the others of D are not touched."""
        self.depth, self.columns = depth or product.shape[2], columns
        self.product, self.mma = product, product.tiled_mma()
        self.thread = self.mma.get_slice(thread)
        group = cute.arch.make_warp_uniform(thread // WARPGROUP) * WARPGROUP
        own = self.mma.get_slice(group)
        self.a = None if sA is None else own.make_fragment_A(own.partition_A(sA))
        self.b = own.make_fragment_B(own.partition_B(sB))

    def by_atoms(self, sums: cute.Tensor) -> cute.Tensor:
        """View of this thread's part of a result, ((2, 2, n / 8), m, 1), as that of mma.sync's: ((2, 2), m, n / 8)."""
        (column, row, atoms), m, _ = sums.layout.shape
        (column_stride, row_stride, atom_stride), m_stride, _ = sums.layout.stride
        layout = cute.make_layout(
            ((column, row), m, atoms), stride=((column_stride, row_stride), m_stride, atom_stride)
        )
        return cute.make_tensor(sums.iterator, layout)


def operand(sX: cute.Tensor, rows: int, columns: int, stages: int = 1) -> cute.Tensor:
    """(rows, columns, stages) of what `tile_layout` and `staged_layout` laid out: its swizzle moves to the pointer, as
    products take plain layouts."""
    layout = operand_layout(sX.element_type, rows, columns, stages)
    return cute.make_tensor(cute.recast_ptr(sX.iterator, layout.inner, sX.element_type), layout.outer)


def operand_layout(dtype: type, rows: int, columns: int, stages: int = 1) -> cute.ComposedLayout:
    """The layout of (rows, columns, stages) that `operand` gives, with its swizzle."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    return cute.tile_to_shape(atom, (rows, columns, stages), (0, 1, 2))


def transposed_operand(sX: cute.Tensor, rows: int, columns: int, stages: int = 1) -> cute.Tensor:
    """An operand seen as (columns, rows, stages)."""
    straight = operand(sX, rows, columns, stages)
    return cute.make_tensor(straight.iterator, cute.select(straight.layout, [1, 0, 2]))


def is_of_groups(mma: cute.TiledMma) -> bool:
    """True where warpgroups multiply."""
    return isinstance(mma.op, warpgroup.MmaF16BF16Op)


def as_issued(sums: cute.Tensor) -> cute.Tensor:
    """The reverse of `GroupThread.by_atoms`; what is as a product takes it already stays."""
    if len(sums.layout.shape[0]) == 3:
        return sums
    (column, row), m, atoms = sums.layout.shape
    (column_stride, row_stride), m_stride, atom_stride = sums.layout.stride
    layout = cute.make_layout(
        ((column, row, atoms), m, 1), stride=((column_stride, row_stride, atom_stride), m_stride, 0)
    )
    return cute.make_tensor(sums.iterator, layout)


def first_columns(sums: cute.Tensor, columns: int) -> cute.Tensor:
    """A part of a result as `as_issued` gives it: so many of its columns."""
    (column, row, _), m, _ = sums.layout.shape
    layout = cute.make_layout(((column, row, columns // 8), m, 1), stride=sums.layout.stride)
    return cute.make_tensor(sums.iterator, layout)


def clear_others(product: GroupThread, rD: cute.Tensor) -> None:
    """Zeros in the columns of a result, as `GroupThread.by_atoms` gives it, that the product does not compute."""
    for i in range(product.columns // 2, cute.size(rD) if product.columns else 0):
        rD[i] = Float32(0.0)


def issue(product: GroupThread, rD: cute.Tensor, stage_a=0, stage_b=0, add: bool = True) -> None:
    """Starts D (+)= A B with the operands of those stages, as a group of its own."""
    _issue(product, rD, product.a[None, None, None, stage_a], stage_b, add)


def issue_from_registers(product: GroupThread, rD: cute.Tensor, rA: cute.Tensor, stage_b=0, add: bool = True) -> None:
    """Starts D (+)= A B as a group of its own. rA: 16-bit values where `product` has its A in registers, as
    layouts.as_operand_a gives them; no thread touches them until `finish` says that the group is done."""
    _issue(product, rD, rA, stage_b, add)


def _issue(product: GroupThread, rD: cute.Tensor, a: cute.Tensor, stage_b, add: bool) -> None:
    atom, target = cute.make_mma_atom(product.mma.op), as_issued(rD)
    if product.columns:
        atom = cute.make_mma_atom(product.product.operation(product.columns))
        target = first_columns(target, product.columns)
    b = product.b[None, None, None, stage_b]
    warpgroup.fence()
    for k in range(product.depth // DEPTH):
        atom.set(warpgroup.Field.ACCUMULATE, add or k > 0)
        cute.gemm(atom, target, a[None, None, k], b[None, None, k], target)
    warpgroup.commit_group()


def hold(product: GroupThread, sA: cute.Tensor, columns: int, thread) -> cute.Tensor:
    """The first columns of A in registers, for `issue_held`. sA: (m, k) with its swizzle in the layout; thread: of
    those of `product`."""
    return load_held(replace(product.product, a_in_registers=True).tiled_mma(), sA, columns, thread)


def issue_held(product: GroupThread, rD: cute.Tensor, rA: cute.Tensor | None, columns: int, stage_b=0) -> None:
    """Starts D = A B as a group of its own, of which the first columns of A are in registers, as `hold` brings them,
    and the others in shared memory; rA None: all."""
    if rA is None:
        issue(product, rD, 0, stage_b, add=False)
        return
    of_registers = cute.make_mma_atom(replace(product.product, a_in_registers=True).tiled_mma().op)
    of_shared, target = cute.make_mma_atom(product.mma.op), as_issued(rD)
    a, b = product.a[None, None, None, 0], product.b[None, None, None, stage_b]
    warpgroup.fence()
    for k in range(product.depth // DEPTH):
        atom, source = (of_registers, rA) if k < columns // DEPTH else (of_shared, a)
        atom.set(warpgroup.Field.ACCUMULATE, k > 0)
        cute.gemm(atom, target, source[None, None, k], b[None, None, k], target)
    warpgroup.commit_group()


def finish(but: int = 0) -> None:
    """All products of this warpgroup but the last ones are done."""
    warpgroup.wait_group(but)


def publish() -> None:
    """Makes this thread's writes to shared memory visible to wgmma, after a barrier."""
    cute.arch.fence_view_async_shared()
