"""ldmatrix without checks, in LLVM IR: the rows that a warp's lanes point at in the shared memory of its CTA.

    int64 ldmatrix(int64 operation, int64 registers, int64 constants, int64 shared, int64 size)

`operation` is the address of the micro-operation, whose address register has 32 bits, `shared` that of the CTA's `size`
bytes of shared memory. Returns 1, or 0 where an address is no multiple of 16 or not inside of these bytes. Then nothing
is done, and `execute/load_store.py` does it and finds out why.
"""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import I16, I32, I64, LANES, Value, splat, vec
from fuzz.devices.emulator.reserved import RESERVED_SHARED

ROW = vec(I16, 8)
VARIANTS = [(count, transposed) for count in (1, 2, 4) for transposed in (False, True)]
_ARGUMENTS = [I64, I32, I64, I64, I64, I64, I64, I64]


def _row(b: ir.IRBuilder, address: Value) -> Value:
    return b.inttoptr(address, ROW.as_pointer())


def transposed_rows(b: ir.IRBuilder, rows: list[Value]) -> list[Value]:
    """The transpose of eight rows of eight numbers: the perfect shuffle of rows i and i + 4, three times."""
    low, high = (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)
    for _ in range(3):
        rows = [
            b.shuffle_vector(rows[i], rows[i + 4], ir.Constant(vec(I32, 8), [ir.Constant(I32, n) for n in order]))
            for i in range(4)
            for order in (low, high)
        ]
    return rows


def variant(module: ir.Module, count: int, transposed: bool) -> ir.Function:
    """int64 (int64 register, int32 immediate, int64 shared, int64 size, int64 destination × 4): `count` matrices, to
    the registers at the first `count` destinations; the result is that of `ldmatrix`. In `module` once."""
    name = f"ldmatrix_{count}{'_transposed' * transposed}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, ir.FunctionType(I64, _ARGUMENTS), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    register, immediate, shared, size, *destinations = function.args
    entry, check, copy, refuse = (function.append_basic_block(n) for n in ("entry", "check", "copy", "refuse"))
    b = ir.IRBuilder(entry)
    places = b.alloca(vec(I32))
    places.align = 64
    b.cbranch(b.icmp_signed(">=", size, ir.Constant(I64, RESERVED_SHARED + 16)), check, refuse)

    b.position_at_end(check)
    lanes = b.load(b.inttoptr(register, vec(I32).as_pointer()), align=64)
    zeros = ir.Constant(vec(I32), [ir.Constant(I32, 0)] * LANES)
    undefined = ir.Constant(vec(I32), ir.Undefined)

    def spread(x: Value) -> Value:
        return b.shuffle_vector(b.insert_element(undefined, x, ir.Constant(I32, 0)), undefined, zeros)

    lanes = b.add(lanes, spread(immediate))
    b.store(lanes, places, align=64)
    last = b.trunc(b.sub(size, ir.Constant(I64, RESERVED_SHARED + 16)), I32)
    own = b.sub(lanes, splat(vec(I32), RESERVED_SHARED))
    askew = b.icmp_unsigned("!=", b.and_(lanes, splat(vec(I32), 15)), zeros)
    outside = b.or_(askew, b.icmp_unsigned(">", own, spread(last)))
    bad = b.and_(b.bitcast(outside, I32), ir.Constant(I32, (1 << 8 * count) - 1))
    b.cbranch(b.icmp_unsigned("==", bad, ir.Constant(I32, 0)), copy, refuse)

    b.position_at_end(copy)
    first = b.bitcast(places, I32.as_pointer())
    for matrix in range(count):
        rows = []
        for row in range(8):
            offset = b.load(b.gep(first, [ir.Constant(I64, 8 * matrix + row)]), align=4)
            rows.append(b.load(_row(b, b.add(shared, b.zext(offset, I64))), align=1))
        for row, value in enumerate(transposed_rows(b, rows) if transposed else rows):
            b.store(value, _row(b, b.add(destinations[matrix], ir.Constant(I64, 16 * row))), align=16)
    b.ret(ir.Constant(I64, 1))
    b.position_at_end(refuse)
    b.ret(ir.Constant(I64, 0))
    return function


def write_ldmatrix(module: ir.Module) -> None:
    """Adds `ldmatrix` to the module."""
    function = ir.Function(module, ir.FunctionType(I64, [I64] * 5), "ldmatrix")
    operation, registers, constants, shared, size = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    words = b.inttoptr(operation, I32.as_pointer())
    refuse = function.append_basic_block("refuse")

    def word(index: int) -> Value:
        return b.load(b.gep(words, [ir.Constant(I64, index)]), align=4)

    place = word(3)
    own = b.icmp_signed(">=", place, ir.Constant(I32, 0))
    register = b.select(
        own, b.add(registers, b.sext(place, I64)), b.add(constants, b.sext(b.not_(place), I64))
    )  # fmt: skip
    immediate = word(4)
    destinations = [b.add(registers, b.sext(word(5 + i), I64)) for i in range(4)]
    choose = b.switch(b.or_(b.shl(word(9), ir.Constant(I32, 1)), word(10)), refuse)
    for count, transposed in VARIANTS:
        block = function.append_basic_block()
        choose.add_case(ir.Constant(I32, 2 * count + transposed), block)
        b.position_at_end(block)
        b.ret(b.call(variant(module, count, transposed), [register, immediate, shared, size, *destinations]))
    b.position_at_end(refuse)
    b.ret(ir.Constant(I64, 0))
