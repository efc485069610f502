"""The table of register-to-register instructions: PTX form → operand types and meaning on 32 lanes.

An entry is data plus one small function that writes LLVM IR, so a new form is one line here. Types are those of the
operands in registers: b16 b32 b64 f16 bf16 f32 f64, p (predicate), and pairs f16x2 bf16x2 (in 32 bits), f32x2 (in 64).
Memory, control flow and everything that crosses lanes is not here but in `interpreter.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from fuzz.devices.emulator import conversions
from fuzz.devices.emulator.approximate import FUNCTIONS
from fuzz.devices.emulator.vectors import (
    DOUBLE,
    FLOAT,
    I1,
    I32,
    I64,
    LANES,
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

Builder = Callable[..., Value]


@dataclass(frozen=True)
class Form:
    """One instruction form: the type of its result, of its operands, and the function that writes it."""

    name: str
    result: str
    operands: tuple[str, ...]
    write: Builder


FORMS: dict[str, Form] = {}


def add(names: str | list[str], result: str, operands: str, write: Builder) -> None:
    for name in [names] if isinstance(names, str) else names:
        assert name not in FORMS, name
        FORMS[name] = Form(name, result, tuple(operands.split()), write)


def typed(op: str, widths: tuple[int, ...], signs: str, mods: tuple[str, ...] = ("",)) -> list[tuple[list[str], str]]:
    """The names of one operation for each width, with the register type: [(['add.s32', 'add.u32'], 'b32'), …]."""
    return [([f"{op}{m}.{s}{w}" for s in signs for m in mods], f"b{w}") for w in widths]


# ---- integers -----------------------------------------------------------------------------------------------------
for op, method in (("add", "add"), ("sub", "sub"), ("mul.lo", "mul")):
    for names, t in typed(op, (16, 32, 64), "su"):
        add(names, t, f"{t} {t}", lambda b, x, y, m=method: getattr(b, m)(x, y))
for names, t in typed("mad.lo", (16, 32, 64), "su"):
    add(names, t, f"{t} {t} {t}", lambda b, x, y, z: b.add(b.mul(x, y), z))
for op, method in (("and", "and_"), ("or", "or_"), ("xor", "xor")):
    for names, t in typed(op, (16, 32, 64), "b"):
        add(names, t, f"{t} {t}", lambda b, x, y, m=method: getattr(b, m)(x, y))
    add(f"{op}.pred", "p", "p p", lambda b, x, y, m=method: getattr(b, m)(x, y))
for names, t in typed("not", (16, 32, 64), "b"):
    add(names, t, t, lambda b, x: b.not_(x))
add("not.pred", "p", "p", lambda b, x: b.not_(x))
for names, t in typed("cnot", (16, 32, 64), "b"):
    add(names, t, t, lambda b, x: b.zext(b.icmp_unsigned("==", x, splat(x.type, 0)), x.type))
for names, t in typed("neg", (16, 32, 64), "s"):
    add(names, t, t, lambda b, x: b.neg(x))
for names, t in typed("abs", (16, 32, 64), "s"):
    add(names, t, t, lambda b, x: b.select(b.icmp_signed("<", x, splat(x.type, 0)), b.neg(x), x))
for sign, compare in (("s", "icmp_signed"), ("u", "icmp_unsigned")):
    for op, order in (("min", "<"), ("max", ">")):
        for names, t in typed(op, (16, 32, 64), sign):
            add(names, t, f"{t} {t}", lambda b, x, y, c=compare, o=order: b.select(getattr(b, c)(o, x, y), x, y))
    extend = "sext" if sign == "s" else "zext"

    def high(b: ir.IRBuilder, x: Value, y: Value, extend: str = extend) -> Value:
        """The upper half of the product."""
        width = x.type.element.width
        wide = vec(ir.IntType(2 * width), x.type.count)
        product = b.mul(getattr(b, extend)(x, wide), getattr(b, extend)(y, wide))
        return b.trunc(b.lshr(product, splat(wide, width)), x.type)

    for names, t in typed("mul.hi", (16, 32, 64), sign):
        add(names, t, f"{t} {t}", high)
    for names, t in typed("mad.hi", (16, 32, 64), sign):
        add(names, t, f"{t} {t} {t}", lambda b, x, y, z, h=high: b.add(h(b, x, y), z))

    def wide(b: ir.IRBuilder, x: Value, y: Value, extend: str = extend) -> Value:
        t = vec(ir.IntType(2 * x.type.element.width), x.type.count)
        return b.mul(getattr(b, extend)(x, t), getattr(b, extend)(y, t))

    for width in (16, 32):
        t, double = f"b{width}", f"b{2 * width}"
        add(f"mul.wide.{sign}{width}", double, f"{t} {t}", wide)
        add(f"mad.wide.{sign}{width}", double, f"{t} {t} {double}", lambda b, x, y, z, w=wide: b.add(w(b, x, y), z))

    def divide(b: ir.IRBuilder, x: Value, y: Value, rest: bool, sign: str = sign) -> Value:
        """Quotient or rest; a zero divisor gives all ones (what GPUs give), the overflowing quotient wraps."""
        t = x.type
        zero = b.icmp_unsigned("==", y, splat(t, 0))
        safe = b.select(zero, splat(t, 1), y)
        if sign == "s":
            minus = b.icmp_unsigned("==", y, splat(t, -1))
            safe = b.select(minus, splat(t, 1), safe)
            if rest:
                return b.select(zero, x, b.select(minus, splat(t, 0), b.srem(x, safe)))
            return b.select(zero, splat(t, -1), b.select(minus, b.neg(x), b.sdiv(x, safe)))
        if rest:
            return b.select(zero, x, b.urem(x, safe))
        return b.select(zero, splat(t, -1), b.udiv(x, safe))

    for op, rest in (("div", False), ("rem", True)):
        for names, t in typed(op, (16, 32, 64), sign):
            add(names, t, f"{t} {t}", lambda b, x, y, d=divide, r=rest: d(b, x, y, r))


def shift(b: ir.IRBuilder, x: Value, amount: Value, kind: str) -> Value:
    """Shifts by the width or more give zero (or the sign)."""
    t = x.type
    width = t.element.width
    limit = splat(amount.type, width - 1)
    over = b.icmp_unsigned(">", amount, limit)
    fitted = b.select(over, limit, amount)
    n = fitted if width == 32 else (b.zext(fitted, t) if width > 32 else b.trunc(fitted, t))
    if kind == "ashr":
        return b.ashr(x, n)
    return b.select(over, splat(t, 0), getattr(b, kind)(x, n))


for op, signs, kind in (("shl", "b", "shl"), ("shr", "ub", "lshr"), ("shr", "s", "ashr")):
    for names, t in typed(op, (16, 32, 64), signs):
        add(names, t, f"{t} b32", lambda b, x, n, k=kind: shift(b, x, n, k))


def funnel(b: ir.IRBuilder, low: Value, high_: Value, amount: Value, left: bool, clamp: bool) -> Value:
    t = vec(I64)
    both = b.or_(b.zext(low, t), b.shl(b.zext(high_, t), splat(t, 32)))
    if clamp:
        n = b.select(b.icmp_unsigned(">", amount, splat(amount.type, 32)), splat(amount.type, 32), amount)
    else:
        n = b.and_(amount, splat(amount.type, 31))
    n = b.zext(n, t)
    moved = b.lshr(b.shl(both, n), splat(t, 32)) if left else b.lshr(both, n)
    return b.trunc(moved, low.type)


for side in ("l", "r"):
    for mode in ("wrap", "clamp"):
        add(
            f"shf.{side}.{mode}.b32", "b32", "b32 b32 b32",
            lambda b, x, y, n, s=side, m=mode: funnel(b, x, y, n, s == "l", m == "clamp"),
        )  # fmt: skip
for width in (32, 64):
    t = f"b{width}"

    def narrow(b: ir.IRBuilder, x: Value) -> Value:
        return x if x.type.element == I32 else b.trunc(x, vec(I32))

    def count_zeros(b: ir.IRBuilder, x: Value) -> Value:
        return intrinsic(b, "ctlz", x, ir.Constant(I1, 0))

    add(f"popc.b{width}", "b32", t, lambda b, x, n=narrow: n(b, intrinsic(b, "ctpop", x)))
    add(f"clz.b{width}", "b32", t, lambda b, x, n=narrow, c=count_zeros: n(b, c(b, x)))
    add(f"brev.b{width}", t, t, lambda b, x: intrinsic(b, "bitreverse", x))

    def find(b: ir.IRBuilder, x: Value, signed: bool, distance: bool, n: Builder = narrow, c: Builder = count_zeros):  # type: ignore[no-untyped-def]
        """bfind: place of the highest significant bit, all ones when there is none."""
        w = x.type.element.width
        if signed:
            x = b.select(b.icmp_signed("<", x, splat(x.type, 0)), b.not_(x), x)
        zeros = n(b, c(b, x))
        place = zeros if distance else b.sub(splat(zeros.type, w - 1), zeros)
        return b.select(n_equal_width(b, zeros, w), splat(zeros.type, -1), place)

    for sign in "su":
        add(f"bfind.{sign}{width}", "b32", t, lambda b, x, s=sign, f=find: f(b, x, s == "s", False))
        add(f"bfind.shiftamt.{sign}{width}", "b32", t, lambda b, x, s=sign, f=find: f(b, x, s == "s", True))


def n_equal_width(b: ir.IRBuilder, zeros: Value, width: int) -> Value:
    return b.icmp_unsigned("==", zeros, splat(zeros.type, width))


def extract(b: ir.IRBuilder, x: Value, place: Value, length: Value, signed: bool) -> Value:
    """bfe: `length` bits of x from `place`, zero- or sign-extended (from the last bit that exists)."""
    t = vec(I64)
    pos = b.and_(place, splat(place.type, 255))
    num = b.and_(length, splat(length.type, 255))
    sixty = splat(pos.type, 63)
    clip = lambda v: b.zext(b.select(b.icmp_unsigned(">", v, sixty), sixty, v), t)  # noqa: E731
    v = b.sext(x, t) if signed else b.zext(x, t)
    v = b.ashr(v, clip(pos)) if signed else b.lshr(v, clip(pos))
    rest = b.select(b.icmp_unsigned(">", num, splat(num.type, 32)), splat(num.type, 32), num)
    free = b.zext(b.sub(splat(num.type, 64), rest), t)
    none = b.icmp_unsigned("==", rest, splat(num.type, 0))
    free = b.select(none, splat(t, 63), free)
    up = b.shl(v, free)
    r = b.trunc(b.ashr(up, free) if signed else b.lshr(up, free), x.type)
    return b.select(none, splat(x.type, 0), r)


add("bfe.u32", "b32", "b32 b32 b32", lambda b, x, p, n: extract(b, x, p, n, False))
add("bfe.s32", "b32", "b32 b32 b32", lambda b, x, p, n: extract(b, x, p, n, True))


def insert(b: ir.IRBuilder, x: Value, into: Value, place: Value, length: Value) -> Value:
    t = vec(I64)
    cap = splat(place.type, 32)
    pos, num = (b.and_(v, splat(v.type, 255)) for v in (place, length))
    pos, num = (b.zext(b.select(b.icmp_unsigned(">", v, cap), cap, v), t) for v in (pos, num))
    mask = b.shl(b.sub(b.shl(splat(t, 1), num), splat(t, 1)), pos)
    merged = b.or_(b.and_(b.zext(into, t), b.not_(mask)), b.and_(b.shl(b.zext(x, t), pos), mask))
    return b.trunc(merged, x.type)


add("bfi.b32", "b32", "b32 b32 b32 b32", insert)


def permute(b: ir.IRBuilder, x: Value, y: Value, selector: Value) -> Value:
    """prmt in its default mode: each nibble of the selector picks a byte of {y, x}, or its sign eight times."""
    t = vec(I64)
    both = b.or_(b.zext(x, t), b.shl(b.zext(y, t), splat(t, 32)))
    result: Value = splat(vec(I32), 0)
    for i in range(4):
        nibble = b.and_(b.lshr(selector, splat(selector.type, 4 * i)), splat(selector.type, 15))
        place = b.zext(b.shl(b.and_(nibble, splat(nibble.type, 7)), splat(nibble.type, 3)), t)
        byte = b.and_(b.trunc(b.lshr(both, place), vec(I32)), splat(vec(I32), 255))
        sign = b.mul(b.lshr(byte, splat(byte.type, 7)), splat(byte.type, 255))
        chosen = b.select(b.icmp_unsigned(">", nibble, splat(nibble.type, 7)), sign, byte)
        result = b.or_(result, b.shl(chosen, splat(byte.type, 8 * i)))
    return result


add("prmt.b32", "b32", "b32 b32 b32", permute)


def logic3(b: ir.IRBuilder, x: Value, y: Value, z: Value, table: Value) -> Value:
    """lop3: bit i of the table is the result where (x, y, z) spell i."""
    result: Value = splat(x.type, 0)
    for i in range(8):
        term = b.and_(x if i & 4 else b.not_(x), y if i & 2 else b.not_(y))
        term = b.and_(term, z if i & 1 else b.not_(z))
        chosen = b.and_(b.lshr(table, splat(table.type, i)), splat(table.type, 1))
        result = b.or_(result, b.and_(term, b.neg(chosen)))
    return result


add("lop3.b32", "b32", "b32 b32 b32 b32", logic3)
add("carry.add.b32", "p", "b32 b32", lambda b, x, y: b.icmp_unsigned("<", b.add(x, y), x))

# ---- moves, selection, comparison ---------------------------------------------------------------------------------
for width in (16, 32, 64):
    t = f"b{width}"
    kinds = [f"{s}{width}" for s in "busf" if not (s == "f" and width == 16)]
    add([f"mov.{k}" for k in kinds], t, t, lambda b, x: x)
    add([f"selp.{k}" for k in kinds], t, f"{t} {t} p", lambda b, x, y, p: b.select(p, x, y))
    slct = lambda b, x, y, z: b.select(b.icmp_signed(">=", z, splat(z.type, 0)), x, y)  # noqa: E731
    add([f"slct.{k}.s32" for k in kinds], t, f"{t} {t} b32", slct)
add("mov.pred", "p", "p", lambda b, x: x)
add("selp.pred", "p", "p p p", lambda b, x, y, p: b.select(p, x, y))
# parts of the vector moves mov.b64 {lo, hi}, x and back
add("low.b64", "b32", "b64", lambda b, x: b.trunc(x, vec(I32)))
add("high.b64", "b32", "b64", lambda b, x: b.trunc(b.lshr(x, splat(x.type, 32)), vec(I32)))
add("low.b32", "b16", "b32", lambda b, x: b.trunc(x, vec(ir.IntType(16))))
add("high.b32", "b16", "b32", lambda b, x: b.trunc(b.lshr(x, splat(x.type, 16)), vec(ir.IntType(16))))


def join(b: ir.IRBuilder, low: Value, high_: Value) -> Value:
    width = low.type.element.width
    t = vec(ir.IntType(2 * width))
    return b.or_(b.zext(low, t), b.shl(b.zext(high_, t), splat(t, width)))


add("join.b64", "b64", "b32 b32", join)
add("join.b32", "b32", "b16 b16", join)

ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
for width in (16, 32, 64):
    t = f"b{width}"
    for name, order in ORDER.items():
        signed = lambda b, x, y, o=order: b.icmp_signed(o, x, y)  # noqa: E731
        unsigned = lambda b, x, y, o=order: b.icmp_unsigned(o, x, y)  # noqa: E731
        add(f"setp.{name}.s{width}", "p", f"{t} {t}", signed)
        add(f"setp.{name}.u{width}", "p", f"{t} {t}", unsigned)
        if name in ("eq", "ne"):
            add(f"setp.{name}.b{width}", "p", f"{t} {t}", unsigned)
    for name, order in UNSIGNED.items():
        add(f"setp.{name}.u{width}", "p", f"{t} {t}", lambda b, x, y, o=order: b.icmp_unsigned(o, x, y))
for t in ("f32", "f64"):
    for ftz in ("", ".ftz") if t == "f32" else ("",):

        def pair(b: ir.IRBuilder, x: Value, y: Value, ftz: str = ftz) -> tuple[Value, Value]:
            return (flush(b, x), flush(b, y)) if ftz else (x, y)

        for name, order in ORDER.items():
            add(
                f"setp.{name}{ftz}.{t}", "p", f"{t} {t}",
                lambda b, x, y, o=order, p=pair: b.fcmp_ordered(o, *p(b, x, y)),
            )  # fmt: skip
            add(
                f"setp.{name}u{ftz}.{t}", "p", f"{t} {t}",
                lambda b, x, y, o=order, p=pair: b.fcmp_unordered(o, *p(b, x, y)),
            )  # fmt: skip
        add(f"setp.num{ftz}.{t}", "p", f"{t} {t}", lambda b, x, y: b.fcmp_ordered("ord", x, y))
        add(f"setp.nan{ftz}.{t}", "p", f"{t} {t}", lambda b, x, y: b.fcmp_unordered("uno", x, y))

# ---- floating point -----------------------------------------------------------------------------------------------


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


def rounded_product(b: ir.IRBuilder, x: Value, y: Value, rounding: str) -> Value:
    t = vec(DOUBLE, x.type.count)  # the product of two f32 is exact in f64
    return directed(b, b.fmul(x, y), b.fmul(b.fpext(x, t), b.fpext(y, t)), rounding)


def rounded_fma(b: ir.IRBuilder, x: Value, y: Value, z: Value, rounding: str) -> Value:
    if rounding == "rn":
        return intrinsic(b, "fma", x, y, z)
    t = vec(DOUBLE, x.type.count)
    wide_sum = sum_to_odd(b, b.fmul(b.fpext(x, t), b.fpext(y, t)), b.fpext(z, t))
    return directed(b, intrinsic(b, "fma", x, y, z), wide_sum, rounding)


def saturate(b: ir.IRBuilder, x: Value) -> Value:
    zero, one = constant(x, 0.0), constant(x, 1.0)
    return b.select(b.fcmp_ordered(">", x, zero), b.select(b.fcmp_ordered(">", x, one), one, x), zero)


def arithmetic(f: Builder, ftz: bool, sat: bool) -> Builder:
    """`f` with flushed operands and result where told, and PTX's NaN."""

    def write(b: ir.IRBuilder, *args: Value) -> Value:
        if ftz:
            args = tuple(flush(b, a) for a in args)
        r = f(b, *args)
        if ftz:
            r = flush(b, r)
        return saturate(b, r) if sat else canonical(b, r)

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
                minus = lambda b, x, y, w=way: rounded_sum(b, x, neg(b, y), w)  # noqa: E731
                times = lambda b, x, y, w=way: rounded_product(b, x, y, w)  # noqa: E731
                fused = lambda b, x, y, z, w=way: rounded_fma(b, x, y, z, w)  # noqa: E731
                add(f"add{end}", t, f"{t} {t}", arithmetic(plus, *how))
                add(f"sub{end}", t, f"{t} {t}", arithmetic(minus, *how))
                add(f"mul{end}", t, f"{t} {t}", arithmetic(times, *how))
                if rounding:
                    add([f"fma{end}", f"mad{end}"], t, f"{t} {t} {t}", arithmetic(fused, *how))
for ftz in ("", ".ftz"):
    for op, greater in (("max", True), ("min", False)):
        for nan in ("", ".NaN"):
            best = lambda b, x, y, g=greater, n=nan: extremum(b, x, y, g, bool(n))  # noqa: E731
            best3 = lambda b, x, y, z, f=best: f(b, f(b, x, y), z)  # noqa: E731
            add(f"{op}{ftz}{nan}.f32", "f32", "f32 f32", arithmetic(best, bool(ftz), False))
            add(f"{op}3{ftz}{nan}.f32", "f32", "f32 f32 f32", arithmetic(best3, bool(ftz), False))
    add(f"neg{ftz}.f32", "f32", "f32", lambda b, x, z=ftz: neg(b, flush(b, x) if z else x))
    add(f"abs{ftz}.f32", "f32", "f32", lambda b, x, z=ftz: absolute(b, flush(b, x) if z else x))
    for name, function in FUNCTIONS.items():
        add(f"{name}.approx{ftz}.f32", "f32", "f32", lambda b, x, f=function, z=ftz: f(b, x, bool(z)))
    quotient = lambda b, x, y: b.fdiv(x, y)  # noqa: E731
    add(
        [f"div.{k}{ftz}.f32" for k in ("rn", "full", "approx")],
        "f32",
        "f32 f32",
        arithmetic(quotient, bool(ftz), False),
    )
    root = lambda b, x: intrinsic(b, "sqrt", x)  # noqa: E731
    add(f"sqrt.rn{ftz}.f32", "f32", "f32", arithmetic(root, bool(ftz), False))
    invert = lambda b, x: b.fdiv(constant(x, 1.0), x)  # noqa: E731
    add(f"rcp.rn{ftz}.f32", "f32", "f32", arithmetic(invert, bool(ftz), False))
add("div.rn.f64", "f64", "f64 f64", arithmetic(lambda b, x, y: b.fdiv(x, y), False, False))
add("neg.f64", "f64", "f64", neg)
add("abs.f64", "f64", "f64", absolute)
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
        flip = lambda b, x: b.xor(x, splat(x.type, 0x8000))  # noqa: E731
        clear = lambda b, x: b.and_(x, splat(x.type, 0x7FFF))  # noqa: E731
        add(f"neg.{kind}", kind, kind, flip)
        add(f"abs.{kind}", kind, kind, clear)
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


for name, result, operands, write in conversions.table():
    add(name, result, operands, write)

assert LANES == 32
