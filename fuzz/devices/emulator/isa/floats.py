"""Rows of the form table: floating-point arithmetic in every rounding, and conversions."""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa import conversions, float8
from fuzz.devices.emulator.isa.approximate import FUNCTIONS
from fuzz.devices.emulator.isa.moves import ORDER
from fuzz.devices.emulator.isa.table import Builder, add
from fuzz.devices.emulator.isa.vectors import (
    DOUBLE,
    FLOAT,
    I32,
    Value,
    absolute,
    bf16_to_f32,
    bits,
    canonical,
    constant,
    directed,
    extremum,
    f16_to_f32,
    f32_to_bf16,
    f32_to_f16,
    flush,
    from_bits,
    intrinsic,
    neg,
    splat,
    sum_to_odd,
    vec,
)


def rounded_sum(b: ir.IRBuilder, x: Value, y: Value, rounding: str) -> Value:
    """x + y in f32, rounded as told; an exact zero of opposite signs is -0 when rounding down."""
    nearest = b.fadd(x, y)
    if rounding == "rn":
        return nearest
    t = vec(DOUBLE, x.type.count)
    r = directed(b, nearest, sum_to_odd(b, b.fpext(x, t), b.fpext(y, t)), rounding)
    if rounding == "rm":
        zero = b.fcmp_ordered("==", nearest, constant(x, 0.0))
        opposite = b.icmp_signed("<", b.xor(bits(b, x), bits(b, y)), splat(bits(b, x).type, 0))
        r = b.select(b.and_(zero, opposite), constant(x, -0.0), r)
    return r


def flush_tiny(b: ir.IRBuilder, r: Value, wide: Value, rounding: str) -> Value:
    """r, or a zero of its sign where the exact result `wide` (f64) is below the normal numbers of f32.

    Hopper looks at the result rounded to 24 bits as if exponents had no end: 2**-126 (1 - 2**-24) has 24 bits and
    becomes zero, although as a subnormal it rounds to 2**-126; what is nearer to 2**-126 than that stays.
    """
    scaled = b.fmul(wide, splat(wide.type, 2.0**64))
    rounded = directed(b, b.fptrunc(scaled, r.type), scaled, rounding)
    tiny = b.fcmp_ordered("<", absolute(b, rounded), splat(r.type, 2.0**-62))
    sign = b.and_(bits(b, r), splat(bits(b, r).type, 0x80000000))
    return b.select(tiny, from_bits(b, sign), r)


def rounded_product(b: ir.IRBuilder, x: Value, y: Value, rounding: str, ftz: bool = False) -> Value:
    t = vec(DOUBLE, x.type.count)  # the product of two f32 is exact in f64
    wide = b.fmul(b.fpext(x, t), b.fpext(y, t))
    r = directed(b, b.fmul(x, y), wide, rounding)
    return flush_tiny(b, r, wide, rounding) if ftz else r


def rounded_fma(b: ir.IRBuilder, x: Value, y: Value, z: Value, rounding: str, ftz: bool = False) -> Value:
    """x y + z in f32, rounded as told; an exact zero of opposite signs is -0 when rounding down."""
    nearest = intrinsic(b, "fma", x, y, z)
    if rounding == "rn" and not ftz:
        return nearest
    t = vec(DOUBLE, x.type.count)
    wide = sum_to_odd(b, b.fmul(b.fpext(x, t), b.fpext(y, t)), b.fpext(z, t))
    r = directed(b, nearest, wide, rounding)
    if rounding == "rm":
        signs = b.xor(b.xor(bits(b, x), bits(b, y)), bits(b, z))
        opposite = b.icmp_signed("<", signs, splat(signs.type, 0))
        r = b.select(b.and_(b.fcmp_ordered("==", wide, splat(t, 0.0)), opposite), constant(x, -0.0), r)
    return flush_tiny(b, r, wide, rounding) if ftz else r


def rounded_quotient(b: ir.IRBuilder, x: Value, y: Value, ftz: bool) -> Value:
    r = b.fdiv(x, y)
    t = vec(DOUBLE, x.type.count)
    return flush_tiny(b, r, b.fdiv(b.fpext(x, t), b.fpext(y, t)), "rn") if ftz else r


def approximate_quotient(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    """x / y; where 2**126 < |y| < 2**128 the reciprocal that it is made of is zero (PTX, div.approx)."""
    size = absolute(b, y)
    large = b.and_(
        b.fcmp_ordered(">", size, constant(y, 2.0**126)), b.fcmp_ordered("<", size, constant(y, float("inf")))
    )
    sign = from_bits(b, b.and_(bits(b, y), splat(bits(b, y).type, 0x80000000)))
    return b.select(large, b.fmul(x, sign), b.fdiv(x, y))


def kept_nan(b: ir.IRBuilder, r: Value, *args: Value) -> Value:
    """r (f64), or an operand that is a NaN, made quiet: of several Hopper keeps the second, then the third."""
    r = canonical(b, r)
    for a in (*args[:1], *reversed(args[1:])):
        quiet = from_bits(b, b.or_(bits(b, a), splat(bits(b, a).type, 1 << 51)))
        r = b.select(b.fcmp_unordered("uno", a, a), quiet, r)
    return r


def negative(b: ir.IRBuilder, x: Value) -> Value:
    """-x; a NaN of f64 keeps its sign."""
    return b.select(b.fcmp_unordered("uno", x, x), x, neg(b, x))


def saturate(b: ir.IRBuilder, x: Value) -> Value:
    zero, one = constant(x, 0.0), constant(x, 1.0)
    return b.select(b.fcmp_ordered(">", x, zero), b.select(b.fcmp_ordered(">", x, one), one, x), zero)


def arithmetic(f: Builder, ftz: bool, sat: bool) -> Builder:
    """`f` with flushed operands and result where told, and the hardware's NaN."""

    def write(b: ir.IRBuilder, *args: Value) -> Value:
        if ftz:
            args = tuple(flush(b, a) for a in args)
        r = f(b, *args)
        if ftz:
            r = flush(b, r)
        if sat:
            return saturate(b, r)
        return canonical(b, r) if r.type.element == FLOAT else kept_nan(b, r, *args)

    return write


for t in ("f32", "f32x2", "f64"):
    for rounding in ("", ".rn", ".rz", ".rm", ".rp"):
        way = rounding[1:] or "rn"
        if t == "f64" and way != "rn":
            continue
        for ftz in ("", ".ftz") if t != "f64" else ("",):
            for sat in ("", ".sat") if t == "f32" else ("",):
                end = f"{rounding}{ftz}{sat}.{t}"
                how = (bool(ftz), bool(sat))
                plus = lambda b, x, y, w=way: rounded_sum(b, x, y, w)  # noqa: E731
                flip = negative if t == "f64" else neg
                minus = lambda b, x, y, w=way, f=flip: rounded_sum(b, x, f(b, y), w)  # noqa: E731
                times = lambda b, x, y, w=way, f=bool(ftz): rounded_product(b, x, y, w, f)  # noqa: E731
                fused = lambda b, x, y, z, w=way, f=bool(ftz): rounded_fma(b, x, y, z, w, f)  # noqa: E731
                add(f"add{end}", t, f"{t} {t}", arithmetic(plus, *how))
                add(f"sub{end}", t, f"{t} {t}", arithmetic(minus, *how))
                add(f"mul{end}", t, f"{t} {t}", arithmetic(times, *how))
                if rounding:
                    names = [f"fma{end}", f"mad{end}"][: 1 if t == "f32x2" else 2]
                    add(names, t, f"{t} {t} {t}", arithmetic(fused, *how))
for ftz in ("", ".ftz"):
    for op, greater in (("max", True), ("min", False)):
        for nan in ("", ".NaN"):
            best = lambda b, x, y, g=greater, n=nan: extremum(b, x, y, g, bool(n))  # noqa: E731
            best3 = lambda b, x, y, z, f=best: f(b, f(b, x, y), z)  # noqa: E731
            add(f"{op}{ftz}{nan}.f32", "f32", "f32 f32", arithmetic(best, bool(ftz), False))
            add(f"{op}3{ftz}{nan}.f32", "f32", "f32 f32 f32", arithmetic(best3, bool(ftz), False))
    add(f"neg{ftz}.f32", "f32", "f32", arithmetic(neg, bool(ftz), False))
    add(f"abs{ftz}.f32", "f32", "f32", arithmetic(absolute, bool(ftz), False))
    for name, function in FUNCTIONS.items():
        if ftz and name == "tanh":
            continue  # PTX has no such form
        add(f"{name}.approx{ftz}.f32", "f32", "f32", lambda b, x, f=function, z=ftz: f(b, x, bool(z)))
    quotient = lambda b, x, y: b.fdiv(x, y)  # noqa: E731
    rounded = lambda b, x, y, f=bool(ftz): rounded_quotient(b, x, y, f)  # noqa: E731
    add(f"div.rn{ftz}.f32", "f32", "f32 f32", arithmetic(rounded, bool(ftz), False))
    add(f"div.full{ftz}.f32", "f32", "f32 f32", arithmetic(quotient, bool(ftz), False))
    add(f"div.approx{ftz}.f32", "f32", "f32 f32", arithmetic(approximate_quotient, bool(ftz), False))
    root = lambda b, x: intrinsic(b, "sqrt", x)  # noqa: E731
    add(f"sqrt.rn{ftz}.f32", "f32", "f32", arithmetic(root, bool(ftz), False))
    invert = lambda b, x: b.fdiv(constant(x, 1.0), x)  # noqa: E731
    add(f"rcp.rn{ftz}.f32", "f32", "f32", arithmetic(invert, bool(ftz), False))
add("div.rn.f64", "f64", "f64 f64", lambda b, x, y: kept_nan(b, b.fdiv(x, y), y, x))  # a subroutine: the first NaN
add("neg.f64", "f64", "f64", lambda b, x: kept_nan(b, neg(b, x), x))
add("abs.f64", "f64", "f64", lambda b, x: kept_nan(b, absolute(b, x), x))
add("copysign.f32", "f32", "f32 f32", lambda b, x, y: from_bits(b, b.or_(
    b.and_(bits(b, x), splat(vec(I32), 0x80000000)), b.and_(bits(b, y), splat(vec(I32), 0x7FFFFFFF)))))  # fmt: skip


def classify(b: ir.IRBuilder, x: Value, kind: str) -> Value:
    a = absolute(b, x)
    inf = constant(x, float("inf"))
    if kind == "infinite":
        return b.fcmp_ordered("==", a, inf)
    if kind == "finite":
        return b.fcmp_ordered("<", a, inf)
    if kind == "notanumber":
        return b.fcmp_unordered("uno", x, x)
    return b.fcmp_ordered("ord", x, x)


for kind in ("infinite", "finite", "notanumber", "number"):
    add(f"testp.{kind}.f32", "p", "f32", lambda b, x, k=kind: classify(b, x, k))

# f16 and bf16, single and in pairs: computed in f32 (f64 for fma), rounded once
for t, up, down in (("f16", f16_to_f32, f32_to_f16), ("bf16", bf16_to_f32, f32_to_bf16)):
    for pair_mark in ("", "x2"):
        kind = t + pair_mark

        def short(f: Builder, up: Builder = up, down: Builder = down) -> Builder:
            return lambda b, *args: down(b, f(b, *(up(b, a) for a in args)))

        def short_fma(b: ir.IRBuilder, x: Value, y: Value, z: Value, up: Builder = up, down: Builder = down) -> Value:
            """Exact in f64 but for the last bit, which is rounded to odd on the way to f32 so that it rounds once."""
            wide_t = vec(DOUBLE, x.type.count)
            x, y, z = (b.fpext(up(b, v), wide_t) for v in (x, y, z))
            return down(b, to_odd_f32(b, sum_to_odd(b, b.fmul(x, y), z)))

        for rounding in ("", ".rn"):
            add(f"add{rounding}.{kind}", kind, f"{kind} {kind}", short(lambda b, x, y: b.fadd(x, y)))
            add(f"sub{rounding}.{kind}", kind, f"{kind} {kind}", short(lambda b, x, y: b.fsub(x, y)))
            add(f"mul{rounding}.{kind}", kind, f"{kind} {kind}", short(lambda b, x, y: b.fmul(x, y)))
        add(f"fma.rn.{kind}", kind, f"{kind} {kind} {kind}", short_fma)
        for op, greater in (("max", True), ("min", False)):
            for nan in ("", ".NaN"):
                best = lambda b, x, y, g=greater, n=nan: extremum(b, x, y, g, bool(n))  # noqa: E731
                add(f"{op}{nan}.{kind}", kind, f"{kind} {kind}", short(best))
        add(f"neg.{kind}", kind, kind, short(neg))
        add(f"abs.{kind}", kind, kind, short(absolute))
    for name, order in ORDER.items():
        add(
            f"setp.{name}.{t}", "p", f"{t} {t}",
            lambda b, x, y, o=order, up=up: b.fcmp_ordered(o, up(b, x), up(b, y)),
        )  # fmt: skip
        add(
            f"setp.{name}u.{t}", "p", f"{t} {t}",
            lambda b, x, y, o=order, up=up: b.fcmp_unordered(o, up(b, x), up(b, y)),
        )  # fmt: skip
    mixed = lambda b, x, y, z, up=up: canonical(b, intrinsic(b, "fma", up(b, x), up(b, y), z))  # noqa: E731
    add(f"fma.rn.f32.{t}", "f32", f"{t} {t} f32", mixed)
    add(f"add.rn.f32.{t}", "f32", f"{t} f32", lambda b, x, y, up=up: canonical(b, b.fadd(up(b, x), y)))
    add(f"sub.rn.f32.{t}", "f32", f"{t} f32", lambda b, x, y, up=up: canonical(b, b.fsub(up(b, x), y)))


def to_odd_f32(b: ir.IRBuilder, x: Value) -> Value:
    """f64 to f32, rounded to odd: truncated, with the last bit set when anything was cut off."""
    t = vec(FLOAT, x.type.count)
    cut = directed(b, b.fptrunc(x, t), x, "rz")
    raw = bits(b, cut)
    inexact = b.fcmp_ordered("!=", b.fpext(cut, x.type), x)
    return from_bits(b, b.select(inexact, b.or_(raw, splat(raw.type, 1)), raw))


for name, result, operands, write in (*conversions.table(), *float8.table()):
    add(name, result, operands, write)
