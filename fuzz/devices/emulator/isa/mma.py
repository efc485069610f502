"""mma.sync m16n8k16 and m16n8k8 on the registers of a warp.

A fragment register of A holds an 8 x 8 block of 16-bit numbers row by row when its 32 lanes are read as memory, one of
B holds such a block of B transposed, and a pair of accumulators holds the even and the odd columns of an 8 x 8 block:
so the rows are vectors already, and only B needs shuffling. Products are exact in f32; sums are f32 with one rounding
per term (tensor cores add several terms at once and truncate, see ci/emulator_vs_gpu.py for the measured distance).
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import (
    FLOAT,
    I16,
    I32,
    I64,
    Value,
    bf16_to_f32,
    canonical,
    f16_to_f32,
    f32_to_f16,
    intrinsic,
    splat,
    vec,
)

# name: (type of A and B, type of C and D, k)
MATRIX = {
    f"mma.sync.aligned.m16n8k{k}.row.col.{c}.{a}.{a}.{c}": (a, c, k)
    for k in (8, 16)
    for a, c in (("bf16", "f32"), ("f16", "f32"), ("f16", "f16"))
}


def _row(b: ir.IRBuilder, address: Value, row: int, kind: str) -> Value:
    """Row `row` of the 8 x 8 block at `address` as 8 floats."""
    place = b.inttoptr(b.add(address, ir.Constant(I64, 16 * row)), vec(I16, 8).as_pointer())
    return (bf16_to_f32 if kind == "bf16" else f16_to_f32)(b, b.load(place, align=16))


def _half(b: ir.IRBuilder, address: Value, row: int, t: ir.VectorType) -> Value:
    return b.inttoptr(b.add(address, ir.Constant(I64, 16 * row)), t.as_pointer())


def _columns(b: ir.IRBuilder, address: Value, kind: str) -> list[Value]:
    """The 8 x 8 block of B whose transpose lies at `address`: row k as floats, columns 0 2 4 6 1 3 5 7."""
    lanes = b.load(b.inttoptr(address, vec(I32).as_pointer()), align=64)
    rows = []
    for pair in range(4):
        order = [4 * n + pair for n in (0, 2, 4, 6, 1, 3, 5, 7)]
        mask = ir.Constant(vec(I32, 8), [ir.Constant(I32, i) for i in order])
        packed = b.shuffle_vector(lanes, ir.Constant(lanes.type, ir.Undefined), mask)
        for part in range(2):
            if kind == "bf16":
                t = packed.type
                word = b.shl(packed, splat(t, 16)) if part == 0 else b.and_(packed, splat(t, 0xFFFF0000))
                rows.append(b.bitcast(word, vec(FLOAT, 8)))
            else:
                short = b.trunc(b.lshr(packed, splat(packed.type, 16 * part)), vec(I16, 8))
                rows.append(f16_to_f32(b, short))
    return rows


def write_mma(b: ir.IRBuilder, name: str, address: Callable[[int], Value]) -> None:
    """D = A B + C; operands in the order of the PTX instruction: D, A, B, C."""
    kind, sums, k = MATRIX[name]
    steps = k // 8
    n_d = 4 if sums == "f32" else 2
    d = [address(i) for i in range(n_d)]
    a = [address(n_d + i) for i in range(2 * steps)]
    bb = [address(n_d + 2 * steps + i) for i in range(steps)]
    c = [address(n_d + 3 * steps + i) for i in range(n_d)]
    columns = [row for step in range(steps) for row in _columns(b, bb[step], kind)]
    entry = b.function.entry_basic_block
    with b.goto_block(entry):
        b.position_before(entry.terminator)
        scratch = b.alloca(ir.ArrayType(FLOAT, 8 * k), name="a")
        scratch.align = 64
    quad = vec(FLOAT, 4)
    join = ir.Constant(vec(I32, 8), [ir.Constant(I32, i) for i in range(8)])
    finished = []
    for block in range(2):  # rows 0-7, then 8-15
        for step in range(steps):
            for row in range(8):
                values = _row(b, a[2 * step + block], row, kind)
                at = b.gep(scratch, [ir.Constant(I32, 0), ir.Constant(I32, row * k + 8 * step)])
                b.store(values, b.bitcast(at, vec(FLOAT, 8).as_pointer()), align=32)
        total = []
        for row in range(8):
            if sums == "f32":
                even, odd = (b.load(_half(b, c[2 * block + i], row, quad), align=16) for i in range(2))
                total.append(b.shuffle_vector(even, odd, join))
            else:
                pairs = b.load(_half(b, c[block], row, vec(I16, 8)), align=16)
                order = ir.Constant(vec(I32, 8), [ir.Constant(I32, i) for i in (0, 2, 4, 6, 1, 3, 5, 7)])
                total.append(f16_to_f32(b, b.shuffle_vector(pairs, ir.Constant(pairs.type, ir.Undefined), order)))
        for i in range(k):
            for row in range(8):
                at = b.gep(scratch, [ir.Constant(I32, 0), ir.Constant(I32, row * k + i)])
                one = b.load(at, align=4)
                undefined = ir.Constant(vec(FLOAT, 8), ir.Undefined)
                first = b.insert_element(undefined, one, ir.Constant(I32, 0))
                spread = b.shuffle_vector(first, undefined, ir.Constant(vec(I32, 8), [ir.Constant(I32, 0)] * 8))
                total[row] = intrinsic(b, "fma", spread, columns[i], total[row])
        finished.append([canonical(b, t) for t in total])
    # D may be the same registers as A or C: nothing is written before everything is read
    for block in range(2):
        for row in range(8):
            value = finished[block][row]
            if sums == "f32":
                for i in range(2):
                    part = ir.Constant(vec(I32, 4), [ir.Constant(I32, 4 * i + j) for j in range(4)])
                    half = b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), part)
                    b.store(half, _half(b, d[2 * block + i], row, quad), align=16)
            else:
                back = ir.Constant(vec(I32, 8), [ir.Constant(I32, i) for i in (0, 4, 1, 5, 2, 6, 3, 7)])
                ordered = b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), back)
                b.store(f32_to_f16(b, ordered), _half(b, d[block], row, vec(I16, 8)), align=16)
