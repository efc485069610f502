"""The inner product of tcgen05.mma, in LLVM IR: eight rows of D += A B in f32.

    void tensor_product(int64 c, int64 c_stride, int64 a, int64 b, int64 n, int64 k)

`c` is the address of the first of eight rows of n floats, `c_stride` bytes apart; `a` that of the eight rows of A, k
floats each, and `b` that of the k rows of B, n floats each (n a multiple of 8). Sums round once per term, in the order
of k, as those of mma.sync do (`mma.py`), so that the three kinds of tensor core instructions give the same bits.
"""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import FLOAT, I32, I64, Value, canonical, intrinsic, vec

ROWS = 8
WIDE, NARROW = 16, 8  # columns at once, and those of what is left at the end of a row
NAME = "tensor_product"


def write_tensor_product(module: ir.Module) -> None:
    """Adds `tensor_product` to the module."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6), NAME)
    entry, done = (function.append_basic_block(name) for name in ("entry", "done"))
    wide, narrow = (_Columns(function, count, done) for count in (WIDE, NARROW))
    b = ir.IRBuilder(entry)
    left = function.args[4]
    enough = b.icmp_unsigned("<=", ir.Constant(I64, WIDE), left)
    b.cbranch(enough, wide.head, narrow.head)
    for columns in (wide, narrow):
        columns.j.add_incoming(ir.Constant(I64, 0), entry)
    wide.build(otherwise=narrow)
    narrow.build(otherwise=None)
    b.position_at_end(done)
    b.ret_void()


class _Columns:
    """A loop over `count` columns of D at once, as long as there are so many."""

    def __init__(self, function: ir.Function, count: int, done: ir.Block) -> None:
        self.function, self.count, self.done = function, count, done
        self.head, self.terms, self.store = (
            function.append_basic_block(f"{name}_{count}") for name in ("columns", "terms", "store")
        )
        self.b = ir.IRBuilder(self.head)
        self.j = self.b.phi(I64)  # the first of the columns

    def build(self, otherwise: _Columns | None) -> None:
        """otherwise: the loop that takes what is left."""
        c, c_stride, a, b_matrix, n, k = self.function.args
        b, row = self.b, vec(FLOAT, self.count)

        def at(base: Value, *parts: Value) -> Value:
            for part in parts:
                base = b.add(base, part)
            return base

        def times(x: Value, y: int) -> Value:
            return b.mul(x, ir.Constant(I64, y))

        starts = [at(c, times(c_stride, i)) for i in range(ROWS)]
        lefts = [at(a, times(k, 4 * i)) for i in range(ROWS)]
        offset = times(self.j, 4)
        before = [b.load(b.inttoptr(at(start, offset), row.as_pointer()), align=4) for start in starts]
        b.branch(self.terms)

        b.position_at_end(self.terms)
        i = b.phi(I64)
        totals = [b.phi(row) for _ in range(ROWS)]
        i.add_incoming(ir.Constant(I64, 0), self.head)
        place = at(b_matrix, offset, times(b.mul(i, n), 4))
        right = b.load(b.inttoptr(place, row.as_pointer()), align=4)
        undefined = ir.Constant(row, ir.Undefined)
        zeros = ir.Constant(vec(I32, self.count), [ir.Constant(I32, 0)] * self.count)
        after = []
        for total, left in zip(totals, lefts, strict=True):
            one = b.load(b.inttoptr(at(left, times(i, 4)), FLOAT.as_pointer()), align=4)
            spread = b.shuffle_vector(b.insert_element(undefined, one, ir.Constant(I32, 0)), undefined, zeros)
            after.append(intrinsic(b, "fma", spread, right, total))
        following = b.add(i, ir.Constant(I64, 1))
        i.add_incoming(following, self.terms)
        for total, first, sum_ in zip(totals, before, after, strict=True):
            total.add_incoming(first, self.head)
            total.add_incoming(sum_, self.terms)
        b.cbranch(b.icmp_unsigned("<", following, k), self.terms, self.store)

        b.position_at_end(self.store)
        for start, sum_ in zip(starts, after, strict=True):
            b.store(canonical(b, sum_), b.inttoptr(at(start, offset), row.as_pointer()), align=4)
        end = b.add(self.j, ir.Constant(I64, self.count))
        self.j.add_incoming(end, self.store)
        enough = b.icmp_unsigned("<=", b.add(end, ir.Constant(I64, self.count)), n)
        if otherwise is None:
            b.cbranch(enough, self.head, self.done)
            return
        rest = self.function.append_basic_block("rest")
        b.cbranch(enough, self.head, rest)
        b.position_at_end(rest)
        otherwise.j.add_incoming(end, rest)
        b.cbranch(b.icmp_unsigned("<", end, n), otherwise.head, self.done)
