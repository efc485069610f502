"""Rows of the form table: what f64 has beyond sums and products, its conversions, and those of f16 and bf16 that CUDA
C++ adds to what Triton and CuTe DSL emit."""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.conversions import ROUND_TO_INT, from_integer, to_integer
from fuzz.devices.emulator.isa.floats import arithmetic, kept_nan, saturate, to_odd_f32
from fuzz.devices.emulator.isa.moves import ORDER
from fuzz.devices.emulator.isa.table import add
from fuzz.devices.emulator.isa.vectors import (
    DOUBLE,
    I64,
    Value,
    absolute,
    bf16_to_f32,
    bits,
    extremum,
    f16_to_f32,
    f32_to_bf16,
    f32_to_f16,
    flush,
    from_bits,
    intrinsic,
    is_nan,
    splat,
    vec,
)

SIGN = 1 << 63
UPPER = 0xFFFFFFFF00000000


def sum_toward_zero(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    """x + y in f64, truncated: the exact error of the rounded sum (TwoSum) says whether it went away from zero."""
    s = b.fadd(x, y)
    yy = b.fsub(s, x)
    error = b.fadd(b.fsub(x, b.fsub(s, yy)), b.fsub(y, yy))
    raw, zero = bits(b, s), splat(s.type, 0.0)
    away = b.or_(
        b.and_(b.fcmp_ordered("<", error, zero), b.fcmp_ordered(">", s, zero)),
        b.and_(b.fcmp_ordered(">", error, zero), b.fcmp_ordered("<", s, zero)),
    )
    infinite = b.fcmp_ordered("==", absolute(b, s), splat(s.type, float("inf")))
    finite = b.and_(*(b.fcmp_ordered("<", absolute(b, v), splat(s.type, float("inf"))) for v in (x, y)))
    down = b.or_(away, b.and_(infinite, finite))
    return from_bits(b, b.select(down, b.sub(raw, splat(raw.type, 1)), raw))


def upper_half(b: ir.IRBuilder, x: Value) -> Value:
    """x with the lower 32 bits of its pattern zero, as the approximate functions of f64 give it."""
    raw = bits(b, x)
    return from_bits(b, b.and_(raw, splat(raw.type, UPPER)))


def flushed(b: ir.IRBuilder, x: Value) -> Value:
    """x in f64 with subnormals made zeros of its sign."""
    raw = bits(b, x)
    tiny = b.icmp_unsigned("==", b.and_(raw, splat(raw.type, 0x7FF << 52)), splat(raw.type, 0))
    return from_bits(b, b.select(tiny, b.and_(raw, splat(raw.type, SIGN)), raw))


def double_extremum(b: ir.IRBuilder, x: Value, y: Value, greater: bool) -> Value:
    """max or min; of two NaNs the second one, made quiet."""
    r = extremum(b, x, y, greater, False)
    return b.select(b.and_(is_nan(b, x), is_nan(b, y)), kept_nan(b, y, y), r)


def inverse(b: ir.IRBuilder, x: Value) -> Value:
    return b.fdiv(splat(x.type, 1.0), x)


def inverse_root(b: ir.IRBuilder, x: Value) -> Value:
    return inverse(b, intrinsic(b, "sqrt", x))


add("add.rz.f64", "f64", "f64 f64", arithmetic(sum_toward_zero, False, False))
for op, greater in (("max", True), ("min", False)):
    add(f"{op}.f64", "f64", "f64 f64", lambda b, x, y, g=greater: double_extremum(b, x, y, g))
add("copysign.f64", "f64", "f64 f64", lambda b, x, y: from_bits(b, b.or_(
    b.and_(bits(b, x), splat(vec(I64), SIGN)), b.and_(bits(b, y), splat(vec(I64), SIGN - 1)))))  # fmt: skip
add("sqrt.rn.f64", "f64", "f64", lambda b, x: kept_nan(b, intrinsic(b, "sqrt", x), x))
add("rcp.rn.f64", "f64", "f64", lambda b, x: kept_nan(b, inverse(b, x), x))
add("rsqrt.approx.f64", "f64", "f64", lambda b, x: kept_nan(b, inverse_root(b, x), x))
for name, function in (("rcp", inverse), ("rsqrt", inverse_root)):
    add(
        f"{name}.approx.ftz.f64", "f64", "f64",
        lambda b, x, f=function: upper_half(b, kept_nan(b, flushed(b, f(b, flushed(b, x))), x)),
    )  # fmt: skip
for rounding, whole in ROUND_TO_INT.items():
    add(f"cvt.{rounding}.f64.f64", "f64", "f64", lambda b, x, w=whole: kept_nan(b, intrinsic(b, w, x), x))
    for sign in "su":
        for width in (16, 32, 64):
            add(
                f"cvt.{rounding}.{sign}{width}.f64", f"b{width}", "f64",
                lambda b, x, w=width, s=sign == "s", r=rounding: to_integer(b, x, w, s, r),
            )  # fmt: skip
            for half, up in (("f16", f16_to_f32), ("bf16", bf16_to_f32)):
                if rounding != "rzi":  # of which conversions.py has the row
                    add(
                        f"cvt.{rounding}.{sign}{width}.{half}", f"b{width}", half,
                        lambda b, x, w=width, s=sign == "s", r=rounding, up=up: to_integer(b, up(b, x), w, s, r),
                    )  # fmt: skip
for sign in "su":
    for half, down in (("f16", f32_to_f16), ("bf16", f32_to_bf16)):
        add(
            f"cvt.rn.{half}.{sign}32", half, "b32",
            lambda b, x, s=sign == "s", d=down: d(b, to_odd_f32(b, from_integer(b, x, s, DOUBLE))),
        )  # fmt: skip
add("cvt.sat.f32.f32", "f32", "f32", saturate)
add("cvt.ftz.sat.f32.f32", "f32", "f32", lambda b, x: saturate(b, flush(b, x)))
for half, up, one in (("f16", f16_to_f32, 0x3C00), ("bf16", bf16_to_f32, 0x3F80)):
    for name, order in ORDER.items():
        add(
            f"set.{name}.{half}.{half}", half, f"{half} {half}",
            lambda b, x, y, o=order, up=up, one=one: b.select(
                b.fcmp_ordered(o, up(b, x), up(b, y)), splat(x.type, one), splat(x.type, 0)),
        )  # fmt: skip
