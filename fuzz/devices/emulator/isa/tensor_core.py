"""The inner product of tcgen05.mma, in LLVM IR: eight rows of D += A B in f32.

    void tensor_product(int64 c, int64 c_stride, int64 a, int64 b, int64 n, int64 k)

`c` is the address of the first of eight rows of n floats, `c_stride` bytes apart; `a` that of the eight rows of A, k
floats each, and `b` that of the k rows of B, n floats each (n a multiple of 8). Sums round once per term, in the order
of k, as those of mma.sync do (`mma.py`), so that the three kinds of tensor core instructions give the same bits.
"""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import FLOAT, I32, I64, Value, canonical, intrinsic, vec

ROWS, BLOCK = 8, 8
NAME = "tensor_product"


def write_tensor_product(module: ir.Module) -> None:
    """Adds `tensor_product` to the module."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), NAME)
    c, c_stride, a, b_matrix, n, k = function.args
    entry, columns, terms, store, done = (
        function.append_basic_block(name) for name in ("entry", "columns", "terms", "store", "done")
    )
    b = ir.IRBuilder(entry)
    row = vec(FLOAT, BLOCK)

    def at(base: Value, *parts: Value) -> Value:
        for part in parts:
            base = b.add(base, part)
        return base

    def times(x: Value, y: int) -> Value:
        return b.mul(x, ir.Constant(I64, y))

    starts = [at(c, times(c_stride, i)) for i in range(ROWS)]
    lefts = [at(a, b.mul(k, ir.Constant(I64, 4 * i))) for i in range(ROWS)]
    b.branch(columns)

    b.position_at_end(columns)
    j = b.phi(I64, "j")
    j.add_incoming(ir.Constant(I64, 0), entry)
    offset = times(j, 4)
    before = [b.load(b.inttoptr(at(start, offset), row.as_pointer()), align=4) for start in starts]
    b.branch(terms)

    b.position_at_end(terms)
    i = b.phi(I64, "i")
    totals = [b.phi(row) for _ in range(ROWS)]
    i.add_incoming(ir.Constant(I64, 0), columns)
    right = b.load(b.inttoptr(at(b_matrix, offset, b.mul(b.mul(i, n), ir.Constant(I64, 4))), row.as_pointer()), align=4)
    undefined = ir.Constant(row, ir.Undefined)
    zeros = ir.Constant(vec(I32, BLOCK), [ir.Constant(I32, 0)] * BLOCK)
    after = []
    for total, left in zip(totals, lefts, strict=True):
        one = b.load(b.inttoptr(at(left, times(i, 4)), FLOAT.as_pointer()), align=4)
        spread = b.shuffle_vector(b.insert_element(undefined, one, ir.Constant(I32, 0)), undefined, zeros)
        after.append(intrinsic(b, "fma", spread, right, total))
    following = b.add(i, ir.Constant(I64, 1))
    i.add_incoming(following, terms)
    for total, first, sum_ in zip(totals, before, after, strict=True):
        total.add_incoming(first, columns)
        total.add_incoming(sum_, terms)
    b.cbranch(b.icmp_unsigned("<", following, k), terms, store)

    b.position_at_end(store)
    for start, sum_ in zip(starts, after, strict=True):
        b.store(canonical(b, sum_), b.inttoptr(at(start, offset), row.as_pointer()), align=4)
    next_block = b.add(j, ir.Constant(I64, BLOCK))
    j.add_incoming(next_block, store)
    b.cbranch(b.icmp_unsigned("<", next_block, n), columns, done)

    b.position_at_end(done)
    b.ret_void()
