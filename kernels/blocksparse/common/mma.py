# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Warp-level products: m16n8k16 in fp32 from 16-bit operands that ldmatrix reads from swizzled shared memory.

A product iterates over k in steps of 16 and reads the fragments of step k + 1 while step k multiplies. An operand is an
object with `load(k)` and `fragment`; one that lives in registers already loads nothing.
"""

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warp


def tiled_mma(dtype: type, warps_m: int, warps_n: int = 1) -> cute.TiledMma:
    """warps_m × warps_n warps; each covers 16 rows and two groups of 8 columns of a 16·warps_m × 16·warps_n tile.

    Columns of warp w in one such tile: 8·w … 8·w + 7 and 8·(warps_n + w) … 8·(warps_n + w) + 7.
    """
    return cute.make_tiled_mma(
        warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16)),
        (warps_m, warps_n, 1),
        permutation_mnk=(16 * warps_m, 16 * warps_n, 16),
    )


def accumulator(mma: cute.TiledMma, thread: Int32, rows: int, columns: int) -> cute.Tensor:
    """A zeroed fp32 accumulator of a (rows, columns) product."""
    acc = cute.make_rmem_tensor(mma.get_slice(thread).partition_shape_C((rows, columns)), Float32)
    acc.fill(0.0)
    return acc


class SharedOperand:
    """Operand A (rows, k) or B (columns, k) of a product, in shared memory; `transpose` when k is slow there."""

    def __init__(self, mma: cute.TiledMma, thread: Int32, sX: cute.Tensor, side: str, transpose: bool = False) -> None:
        dtype = sX.element_type
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=transpose, num_matrices=4), dtype)
        thread_mma = mma.get_slice(thread)
        if side == "A":
            self.copy = cute.make_tiled_copy_A(atom, mma)
            self.fragment = thread_mma.make_fragment_A(thread_mma.partition_A(sX))
        else:
            self.copy = cute.make_tiled_copy_B(atom, mma)
            self.fragment = thread_mma.make_fragment_B(thread_mma.partition_B(sX))
        thread_copy = self.copy.get_slice(thread)
        self.source = thread_copy.partition_S(sX)
        self.target = thread_copy.retile(self.fragment)
        self.steps = cute.size(self.fragment, mode=[2])

    def load(self, k: int) -> None:
        cute.copy(self.copy, self.source[None, None, k], self.target[None, None, k])

    def load_all(self) -> "RegisterOperand":
        """The whole operand in registers."""
        for k in range(self.steps):
            self.load(k)
        return RegisterOperand(self.fragment)


class RegisterOperand:
    """An operand whose fragments are in registers."""

    def __init__(self, fragment: cute.Tensor) -> None:
        self.fragment = fragment
        self.steps = cute.size(fragment, mode=[2])

    def load(self, k: int) -> None:
        pass


def multiply(mma: cute.TiledMma, acc: cute.Tensor, a: SharedOperand | RegisterOperand, b: SharedOperand) -> None:
    """acc += A · Bᵀ, with the fragments of the next step read ahead."""
    assert a.steps == b.steps
    a.load(0)
    b.load(0)
    for k in range(b.steps):
        if k + 1 < b.steps:
            a.load(k + 1)
            b.load(k + 1)
        cute.gemm(mma, acc, a.fragment[None, None, k], b.fragment[None, None, k], acc)


@cute.jit
def quad_max(value: Float32) -> Float32:
    """The largest value of the four threads that share an accumulator row."""
    for offset in cutlass.range_constexpr(1, 3):
        value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
    return value


@cute.jit
def quad_sum(value: Float32) -> Float32:
    """The sum over the four threads that share an accumulator row."""
    for offset in cutlass.range_constexpr(1, 3):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
    return value
