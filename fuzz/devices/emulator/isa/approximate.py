"""The approximate functions of PTX (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh) within their documented errors.

Results are not bit for bit those of a GPU, whose tables are not published; special values (zeros, infinities, NaN,
negative arguments) are exact. ci/emulator_vs_gpu.py measures the distance to hardware.
"""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import (
    FLOAT,
    I32,
    Value,
    absolute,
    bits,
    canonical,
    constant,
    flush,
    from_bits,
    intrinsic,
    splat,
    vec,
)

# 2**x on [-0.5, 0.5], relative error 3e-9: a Chebyshev fit
EXP2 = (
    0.9999999999595488, 0.69314720671062, 0.24022651213595259, 0.05550327214209535,
    0.00961802560294165, 0.0013400432165251623, 0.0001546973198244552,
)  # fmt: skip
INFINITY = float("inf")


def polynomial(b: ir.IRBuilder, x: Value, coefficients: tuple[float, ...]) -> Value:
    r: Value = constant(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        r = intrinsic(b, "fma", r, x, constant(x, c))
    return r


def ex2(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    if ftz:
        x = flush(b, x)
    high = b.select(b.fcmp_ordered(">", x, constant(x, 200.0)), constant(x, 200.0), x)
    clamped = b.select(b.fcmp_ordered("<", high, constant(x, -200.0)), constant(x, -200.0), high)
    whole = intrinsic(b, "rint", clamped)
    r = polynomial(b, b.fsub(clamped, whole), EXP2)
    exact = b.fcmp_ordered("==", clamped, whole)
    r = b.select(exact, constant(x, 1.0), r)
    n = b.fptosi(whole, vec(I32, x.type.count))
    half = b.ashr(n, splat(n.type, 1))
    for part in (half, b.sub(n, half)):
        r = b.fmul(r, from_bits(b, b.shl(b.add(part, splat(n.type, 127)), splat(n.type, 23))))
    r = b.select(b.fcmp_unordered("uno", x, x), x, r)
    return canonical(b, flush(b, r) if ftz else r)


def lg2(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    if ftz:
        x = flush(b, x)
    tiny = b.fcmp_ordered("<", x, constant(x, 2.0**-126))
    scaled = b.select(tiny, b.fmul(x, constant(x, 2.0**24)), x)
    raw = bits(b, scaled)
    t = raw.type
    # split at sqrt(1/2): m in [0.707, 1.414)
    shifted = b.sub(raw, splat(t, 0x3F3504F3))
    exponent = b.ashr(shifted, splat(t, 23))
    m = from_bits(b, b.sub(raw, b.shl(exponent, splat(t, 23))))
    e = b.sitofp(exponent, vec(FLOAT, x.type.count))
    e = b.fsub(e, b.select(tiny, constant(x, 24.0), constant(x, 0.0)))
    f = b.fsub(m, constant(x, 1.0))
    # log2(1 + f) = 2/ln2 * atanh(s), s = f / (2 + f), |s| < 0.172
    s = b.fdiv(f, b.fadd(f, constant(x, 2.0)))
    s2 = b.fmul(s, s)
    k = 2.8853900817779268
    series = polynomial(b, s2, (k, k / 3, k / 5, k / 7, k / 9))
    r = intrinsic(b, "fma", s, series, e)
    r = b.select(b.fcmp_ordered("==", x, constant(x, 0.0)), constant(x, -INFINITY), r)
    r = b.select(b.fcmp_ordered("<", x, constant(x, 0.0)), constant(x, float("nan")), r)
    r = b.select(b.fcmp_ordered("==", x, constant(x, INFINITY)), x, r)
    r = b.select(b.fcmp_unordered("uno", x, x), x, r)
    return canonical(b, flush(b, r) if ftz else r)


def rcp(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    if ftz:
        x = flush(b, x)
    r = b.fdiv(constant(x, 1.0), x)
    return canonical(b, flush(b, r) if ftz else r)


def sqrt(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    if ftz:
        x = flush(b, x)
    return canonical(b, intrinsic(b, "sqrt", x))


def rsqrt(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    if ftz:
        x = flush(b, x)
    return canonical(b, b.fdiv(constant(x, 1.0), intrinsic(b, "sqrt", x)))


def tanh(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    """1 - 2 / (e**2|x| + 1) for |x| > 0.6, the odd series below; the sign of x."""
    raw = bits(b, x)
    sign = b.and_(raw, splat(raw.type, 0x80000000))
    a = absolute(b, x)
    e = ex2(b, b.fmul(a, constant(x, 2 * 1.4426950408889634)), False)
    big = b.fsub(constant(x, 1.0), b.fdiv(constant(x, 2.0), b.fadd(e, constant(x, 1.0))))
    a2 = b.fmul(a, a)
    odd = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075)
    small = b.fmul(a, polynomial(b, a2, odd))
    r = b.select(b.fcmp_ordered(">", a, constant(x, 0.5)), big, small)
    signed = from_bits(b, b.or_(bits(b, r), sign))
    return canonical(b, b.select(b.fcmp_unordered("uno", x, x), x, signed))


def _trig(b: ir.IRBuilder, x: Value, shift: float) -> Value:
    """cos(x - shift): the argument reduced to a quarter turn in f64."""
    wide = vec(ir.DoubleType(), x.type.count)
    d = b.fmul(b.fpext(x, wide), splat(wide, 0.15915494309189535))
    d = b.fsub(d, splat(wide, shift))
    d = b.fsub(d, intrinsic(b, "rint", d))  # turns in [-0.5, 0.5]
    a = intrinsic(b, "fabs", d)
    far = b.fcmp_ordered(">", a, splat(wide, 0.25))
    q = b.select(far, b.fsub(splat(wide, 0.5), a), a)
    t = b.fmul(q, splat(wide, 6.283185307179586))
    t2 = b.fmul(t, t)
    r: Value = splat(wide, 1 / 479001600)
    for c in (-1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -0.5, 1.0):
        r = b.fadd(b.fmul(r, t2), splat(wide, c))
    r = b.select(far, b.fneg(r), r)
    return canonical(b, b.fptrunc(r, x.type))


def sin(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    return _trig(b, flush(b, x) if ftz else x, 0.25)


def cos(b: ir.IRBuilder, x: Value, ftz: bool) -> Value:
    return _trig(b, flush(b, x) if ftz else x, 0.0)


FUNCTIONS = {"ex2": ex2, "lg2": lg2, "rcp": rcp, "sqrt": sqrt, "rsqrt": rsqrt, "tanh": tanh, "sin": sin, "cos": cos}
