"""Rows of the form table: integer arithmetic, logic, shifts and bits."""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.table import Builder, add, typed
from fuzz.devices.emulator.isa.vectors import (
    I1,
    I32,
    I64,
    Value,
    intrinsic,
    splat,
    vec,
)

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
for op, order in (("min", "<"), ("max", ">")):

    def not_negative(b: ir.IRBuilder, x: Value, y: Value, order: str = order) -> Value:
        """min or max, zero in place of a negative number."""
        found, zero = b.select(b.icmp_signed(order, x, y), x, y), splat(x.type, 0)
        return b.select(b.icmp_signed("<", found, zero), zero, found)

    add(f"{op}.relu.s32", "b32", "b32 b32", not_negative)
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
        """Quotient or rest; a zero divisor gives all ones in both (what GPUs do), the overflowing quotient wraps."""
        t = x.type
        zero = b.icmp_unsigned("==", y, splat(t, 0))
        safe = b.select(zero, splat(t, 1), y)
        if sign == "s":
            minus = b.icmp_unsigned("==", y, splat(t, -1))
            safe = b.select(minus, splat(t, 1), safe)
            if rest:
                return b.select(zero, splat(t, -1), b.select(minus, splat(t, 0), b.srem(x, safe)))
            return b.select(zero, splat(t, -1), b.select(minus, b.neg(x), b.sdiv(x, safe)))
        if rest:
            return b.select(zero, splat(t, -1), b.urem(x, safe))
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
    """bfe: `length` bits of x from `place`, zero- or sign-extended (from the last bit that exists). PTX limits both to
    0 … 255; beyond that Hopper takes their lowest 8 bits where x has 32, all bits where it has 64."""
    width = x.type.element.width
    t = vec(ir.IntType(2 * width))
    pos, num = (b.and_(v, splat(v.type, 255)) if width == 32 else v for v in (place, length))
    last = splat(pos.type, 2 * width - 1)
    v = b.sext(x, t) if signed else b.zext(x, t)
    shift = b.zext(b.select(b.icmp_unsigned(">", pos, last), last, pos), t)
    v = b.ashr(v, shift) if signed else b.lshr(v, shift)
    rest = b.select(b.icmp_unsigned(">", num, splat(num.type, width)), splat(num.type, width), num)
    free = b.zext(b.sub(splat(num.type, 2 * width), rest), t)
    none = b.icmp_unsigned("==", rest, splat(num.type, 0))
    free = b.select(none, splat(t, 2 * width - 1), free)
    up = b.shl(v, free)
    r = b.trunc(b.ashr(up, free) if signed else b.lshr(up, free), x.type)
    return b.select(none, splat(x.type, 0), r)


for width in (32, 64):
    t = f"b{width}"
    for sign in "us":
        add(
            f"bfe.{sign}{width}", t, f"{t} b32 b32",
            lambda b, x, p, n, signed=sign == "s": extract(b, x, p, n, signed),
        )  # fmt: skip


def insert(b: ir.IRBuilder, x: Value, into: Value, place: Value, length: Value) -> Value:
    """bfi: the lowest `length` bits of x, put into `into` from `place` on. PTX limits both to 0 … 255; beyond that
    Hopper takes their lowest 8 bits where x has 32, all bits where it has 64."""
    width = x.type.element.width
    t = vec(ir.IntType(2 * width))
    cap = splat(place.type, width)
    pos, num = (b.and_(v, splat(v.type, 255)) if width == 32 else v for v in (place, length))
    pos, num = (b.zext(b.select(b.icmp_unsigned(">", v, cap), cap, v), t) for v in (pos, num))
    mask = b.shl(b.sub(b.shl(splat(t, 1), num), splat(t, 1)), pos)
    merged = b.or_(b.and_(b.zext(into, t), b.not_(mask)), b.and_(b.shl(b.zext(x, t), pos), mask))
    return b.trunc(merged, x.type)


add("bfi.b32", "b32", "b32 b32 b32 b32", insert)
add("bfi.b64", "b64", "b64 b64 b32 b32", insert)


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
