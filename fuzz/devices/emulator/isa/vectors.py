"""LLVM building blocks for 32 lanes at once: types, constants, rounding, NaN rules. `forms.py` writes PTX semantics
with them and `straight_line.py` compiles the whole table into one switch.

A register is 32 lanes side by side: 32-bit and narrower values take 128 bytes (16-bit ones zero-extended), 64-bit ones
256 bytes, a predicate is one 32-bit mask, bit i for lane i.
"""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir

LANES = 32
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def vec(element: ir.Type, count: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, count)


NAN32 = 0x7FFFFFFF  # what PTX arithmetic on f32 gives
NAN64 = 0xFFF8000000000000  # what PTX arithmetic on f64 gives (sign set, as the hardware does)
NAN16 = 0x7FFF

Value = Any  # an llvmlite value; its vector type says how many lanes


def splat(like: ir.Type, value: float | int) -> ir.Constant:
    """The constant `value` in every lane of the vector type `like`."""
    return ir.Constant(like, [ir.Constant(like.element, value)] * like.count)


def bits(b: ir.IRBuilder, x: Value) -> Value:
    """x's bit pattern as integers of the same width."""
    width = {HALF: I16, FLOAT: I32, DOUBLE: I64}[x.type.element]
    return b.bitcast(x, vec(width, x.type.count))


def from_bits(b: ir.IRBuilder, x: Value) -> Value:
    """Integers read as floats of the same width."""
    kind = {16: HALF, 32: FLOAT, 64: DOUBLE}[x.type.element.width]
    return b.bitcast(x, vec(kind, x.type.count))


def intrinsic(b: ir.IRBuilder, name: str, *args: Value) -> Value:
    """A call of llvm.NAME overloaded on the type of the first argument."""
    kind = args[0].type
    short = {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}.get(kind.element) or f"i{kind.element.width}"
    full = f"llvm.{name}.v{kind.count}{short}"
    function = b.module.globals.get(full)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(kind, [a.type for a in args]), full)
    return b.call(function, args)


def is_nan(b: ir.IRBuilder, x: Value) -> Value:
    return b.fcmp_unordered("uno", x, x)


def canonical(b: ir.IRBuilder, x: Value) -> Value:
    """x with every NaN replaced by the one that PTX produces."""
    pattern = {HALF: NAN16, FLOAT: NAN32, DOUBLE: NAN64}[x.type.element]
    nan = from_bits(b, splat(bits(b, x).type, pattern))
    return b.select(is_nan(b, x), nan, x)


def flush(b: ir.IRBuilder, x: Value) -> Value:
    """Subnormals become zeros of the same sign (.ftz)."""
    raw = bits(b, x)
    exponent = b.and_(raw, splat(raw.type, 0x7F800000))
    tiny = b.icmp_unsigned("==", exponent, splat(raw.type, 0))
    return from_bits(b, b.select(tiny, b.and_(raw, splat(raw.type, 0x80000000)), raw))


def neg(b: ir.IRBuilder, x: Value) -> Value:
    raw = bits(b, x)
    return from_bits(b, b.xor(raw, splat(raw.type, 1 << (raw.type.element.width - 1))))


def absolute(b: ir.IRBuilder, x: Value) -> Value:
    raw = bits(b, x)
    return from_bits(b, b.and_(raw, splat(raw.type, (1 << (raw.type.element.width - 1)) - 1)))


def extremum(b: ir.IRBuilder, x: Value, y: Value, greater: bool, nan: bool) -> Value:
    """max or min as PTX has it: -0 < +0; a NaN gives way to a number unless `nan`."""
    rx, ry = bits(b, x), bits(b, y)
    first = b.fcmp_ordered(">" if greater else "<", x, y)
    equal = b.fcmp_ordered("==", x, y)
    same = from_bits(b, b.and_(rx, ry) if greater else b.or_(rx, ry))
    r = b.select(equal, same, b.select(first, x, y))
    if nan:
        r = b.select(is_nan(b, x), x, b.select(is_nan(b, y), y, r))
    else:
        r = b.select(is_nan(b, x), y, b.select(is_nan(b, y), x, r))
    return canonical(b, r)


def bf16_to_f32(b: ir.IRBuilder, x: Value) -> Value:
    """<n x i16> bfloat16 patterns to floats, exactly."""
    wide = vec(I32, x.type.count)
    return from_bits(b, b.shl(b.zext(x, wide), splat(wide, 16)))


def f32_to_bf16(b: ir.IRBuilder, x: Value, rounding: str = "rn") -> Value:
    """Floats to bfloat16 patterns <n x i16>; NaN becomes 0x7fff."""
    raw = bits(b, x)
    t = raw.type
    if rounding == "rn":
        odd = b.and_(b.lshr(raw, splat(t, 16)), splat(t, 1))
        raw = b.add(raw, b.add(odd, splat(t, 0x7FFF)))
    elif rounding != "rz":
        raise AssertionError(rounding)
    short = b.trunc(b.lshr(raw, splat(t, 16)), vec(I16, t.count))
    return b.select(is_nan(b, x), splat(short.type, NAN16), short)


def f32_to_f16(b: ir.IRBuilder, x: Value, rounding: str = "rn") -> Value:
    """Floats to binary16 patterns <n x i16>; NaN becomes 0x7fff."""
    half = b.fptrunc(x, vec(HALF, x.type.count))
    if rounding == "rz":
        # one step towards zero where rounding to nearest went away from it (infinity from overflow included)
        raw = b.bitcast(half, vec(I16, x.type.count))
        back = b.fpext(half, x.type)
        away = b.fcmp_ordered(">", absolute(b, back), absolute(b, x))
        raw = b.select(away, b.sub(raw, splat(raw.type, 1)), raw)
    else:
        raw = b.bitcast(half, vec(I16, x.type.count))
    return b.select(is_nan(b, x), splat(raw.type, NAN16), raw)


def f16_to_f32(b: ir.IRBuilder, x: Value) -> Value:
    """binary16 patterns <n x i16> to floats, exactly."""
    return b.fpext(b.bitcast(x, vec(HALF, x.type.count)), vec(FLOAT, x.type.count))


def constant(like: Value, value: float) -> ir.Constant:
    """`value` rounded to f32 in every lane (llvmlite wants f32 constants to be exactly representable)."""
    return splat(like.type, struct.unpack("f", struct.pack("f", value))[0])


def step(b: ir.IRBuilder, x: Value, up: Value, down: Value) -> Value:
    """The next float above x where `up`, below it where `down` (x finite)."""
    raw = bits(b, x)
    t = raw.type
    one, zero = splat(t, 1), splat(t, 0)
    negative = b.icmp_signed("<", raw, zero)
    is_zero = b.icmp_unsigned("==", b.and_(raw, splat(t, 0x7FFFFFFF)), zero)
    above = b.select(is_zero, one, b.select(negative, b.sub(raw, one), b.add(raw, one)))
    below = b.select(is_zero, splat(t, 0x80000001), b.select(negative, b.add(raw, one), b.sub(raw, one)))
    return from_bits(b, b.select(up, above, b.select(down, below, raw)))


def directed(b: ir.IRBuilder, nearest: Value, wide: Value, rounding: str) -> Value:
    """`nearest` (f32) moved to the other neighbour where `wide`, the sum as an f64 rounded to odd, lies on that side.

    An f64 rounded to odd never coincides with an f32 unless it is exact, so comparing it decides every direction.
    """
    if rounding == "rn":
        return nearest
    back = b.fpext(nearest, wide.type)
    over, under = b.fcmp_ordered(">", back, wide), b.fcmp_ordered("<", back, wide)
    none = splat(vec(I1, LANES if nearest.type.count == LANES else nearest.type.count), 0)
    if rounding == "rm":
        up, down = none, over
    elif rounding == "rp":
        up, down = under, none
    else:
        positive = b.fcmp_ordered(">", wide, splat(wide.type, 0.0))
        up, down = b.and_(under, b.not_(positive)), b.and_(over, positive)
    return step(b, nearest, up, down)


def sum_to_odd(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    """x + y in f64 rounded to odd: the exact error (TwoSum) sets the last bit."""
    s = b.fadd(x, y)
    yy = b.fsub(s, x)
    error = b.fadd(b.fsub(x, b.fsub(s, yy)), b.fsub(y, yy))
    raw = bits(b, s)
    t = raw.type
    one, zero = splat(t, 1), splat(t, 0)
    inexact = b.fcmp_ordered("!=", error, splat(s.type, 0.0))
    even = b.icmp_unsigned("==", b.and_(raw, one), zero)
    # the neighbour of s on the side of the exact value has an odd last bit
    toward_zero = b.xor(b.fcmp_ordered("<", error, splat(s.type, 0.0)), b.icmp_signed("<", raw, zero))
    moved = b.select(toward_zero, b.sub(raw, one), b.add(raw, one))
    return from_bits(b, b.select(b.and_(inexact, even), moved, raw))
