# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Operand A of wgmma in registers: columns of a tile that many products read stay there, and leave shared memory to the
other operands."""

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import warp

DEPTH = 16  # columns of one instruction


@cute.jit
def load_held(mma: cute.TiledMma, sA: cute.Tensor, columns: cutlass.Constexpr, thread: Int32) -> cute.Tensor:
    """A thread's part of the first columns of A, (m, k) in swizzled shared memory, by ldmatrix.

    mma      whose A is in registers; thread: of its threads
    columns  a multiple of DEPTH; registers of the others are not written
    """
    own, atom = mma.get_slice(thread), cute.make_copy_atom(warp.LdMatrix8x8x16bOp(num_matrices=4), sA.element_type)
    copy = cute.make_tiled_copy_A(atom, mma).get_slice(thread)
    rA = own.make_fragment_A(own.partition_A(sA))
    source, target = copy.partition_S(sA), copy.retile(rA)
    for k in cutlass.range_constexpr(columns // DEPTH):
        cute.copy(copy, source[None, None, k], target[None, None, k])
    return rA
