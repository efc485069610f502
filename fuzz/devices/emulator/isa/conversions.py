"""The cvt instructions, as rows for the table in `forms.py`: (name, result, operands, what writes it).

Integers wrap unless .sat; float to integer clamps and NaN gives 0 (the most negative number for 64 bits), as PTX says;
narrower integers live in registers of 16 bits or more, which is why results of 8 bits are extended again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import (
    DOUBLE,
    FLOAT,
    Value,
    bf16_to_f32,
    canonical,
    constant,
    directed,
    f16_to_f32,
    f32_to_bf16,
    f32_to_f16,
    flush,
    intrinsic,
    splat,
    vec,
)

Row = tuple[str, str, str, Callable[..., Value]]
ROUND_TO_INT = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def container(width: int) -> str:
    return f"b{max(width, 16)}"


def integer(b: ir.IRBuilder, x: Value, to: int, to_signed: bool, source: int, signed: bool, sat: bool) -> Value:
    """An integer of `source` bits (in its container) to one of `to` bits (in its container)."""
    v = b.trunc(x, vec(ir.IntType(source))) if x.type.element.width > source else x
    extend = b.sext if signed else b.zext
    if sat and to == 64:
        if not to_signed:  # of a signed number
            v = b.select(b.icmp_signed("<", v, splat(v.type, 0)), splat(v.type, 0), v)
            v = extend(v, vec(ir.IntType(64))) if source < 64 else v
        else:  # s64 of u64
            most = splat(v.type, (1 << 63) - 1)
            v = b.select(b.icmp_unsigned(">", v, most), most, v)
    elif sat:
        wide = vec(ir.IntType(128 if source == 64 else 64))
        v = extend(v, wide)
        low = -(1 << (to - 1)) if to_signed else 0
        high = (1 << (to - to_signed)) - 1
        v = b.select(b.icmp_signed("<", v, splat(wide, low)), splat(wide, low), v)
        v = b.select(b.icmp_signed(">", v, splat(wide, high)), splat(wide, high), v)
        v = b.trunc(v, vec(ir.IntType(to)))
    elif to > source:
        v = extend(v, vec(ir.IntType(to)))
    elif to < source:
        v = b.trunc(v, vec(ir.IntType(to)))
    if to < 16:
        v = (b.sext if to_signed else b.zext)(v, vec(ir.IntType(16)))
    return v


def to_integer(b: ir.IRBuilder, x: Value, width: int, signed: bool, rounding: str) -> Value:
    """A float to an integer, clamped to its range; NaN gives 0, or the top bit alone for 64 bits and of f64."""
    wide = vec(DOUBLE)
    d = x if x.type.element == DOUBLE else b.fpext(x, wide)
    d = intrinsic(b, ROUND_TO_INT[rounding], d)
    low = -(2.0 ** (width - 1)) if signed else 0.0
    high = 2.0 ** (width - signed)
    inside = b.and_(b.fcmp_ordered(">=", d, splat(wide, low)), b.fcmp_ordered("<", d, splat(wide, high)))
    t = vec(ir.IntType(width))
    safe = b.select(inside, d, splat(wide, 0.0))
    r = b.fptosi(safe, t) if signed else b.fptoui(safe, t)
    top = (1 << (width - signed)) - 1
    bottom = -(1 << (width - 1)) if signed else 0
    clamped = b.select(b.fcmp_ordered(">", d, splat(wide, 0.0)), splat(t, top), splat(t, bottom))
    r = b.select(inside, r, clamped)
    nan = (1 << (width - 1)) if width == 64 or x.type.element == DOUBLE else 0
    return b.select(b.fcmp_unordered("uno", d, d), splat(t, nan), r)


def from_integer(b: ir.IRBuilder, x: Value, signed: bool, target: ir.Type) -> Value:
    return (b.sitofp if signed else b.uitofp)(x, vec(target))


def _pack(down: Callable[..., Value], relu: bool, rounding: str) -> Callable[..., Value]:
    """cvt.….x2.f32 d, hi, lo: two floats to one register, the second in the lower half."""

    def write(b: ir.IRBuilder, hi: Value, lo: Value) -> Value:
        i32 = vec(ir.IntType(32))
        halves = []
        for v in (hi, lo):
            w = v
            if relu:
                w = b.select(b.fcmp_unordered(">", v, constant(v, 0.0)), v, constant(v, 0.0))
            halves.append(b.zext(down(b, w, rounding), i32))
        return b.or_(b.shl(halves[0], splat(i32, 16)), halves[1])

    return write


def table() -> Iterator[Row]:
    kinds = [(s, w) for s in "su" for w in (8, 16, 32, 64)]
    for to_sign, to in kinds:
        for sign, source in kinds:
            holds = to >= source if to_sign == sign else to_sign == "s" and to > source
            for sat in ("",) if holds else ("", ".sat"):  # PTX refuses .sat where every number fits
                yield (
                    f"cvt{sat}.{to_sign}{to}.{sign}{source}", container(to), container(source),
                    lambda b, x, a=(to, to_sign == "s", source, sign == "s", bool(sat)): integer(b, x, *a),
                )  # fmt: skip
    for sign in "su":
        for width in (16, 32, 64):
            for rounding in ROUND_TO_INT:
                for ftz in ("", ".ftz"):
                    yield (
                        f"cvt.{rounding}{ftz}.{sign}{width}.f32", f"b{width}", "f32",
                        lambda b, x, w=width, s=sign == "s", r=rounding, z=ftz: to_integer(
                            b, flush(b, x) if z else x, w, s, r),
                    )  # fmt: skip
            for half, up in (("f16", f16_to_f32), ("bf16", bf16_to_f32)):
                yield (
                    f"cvt.rzi.{sign}{width}.{half}", f"b{width}", half,
                    lambda b, x, w=width, s=sign == "s", up=up: to_integer(b, up(b, x), w, s, "rzi"),
                )  # fmt: skip
        for width in (8, 16, 32, 64):

            def whole(b: ir.IRBuilder, x: Value, w: int = width) -> Value:
                return b.trunc(x, vec(ir.IntType(w))) if w < 16 else x

            yield (
                f"cvt.rn.f32.{sign}{width}", "f32", container(width),
                lambda b, x, s=sign == "s", v=whole: from_integer(b, v(b, x), s, FLOAT),
            )  # fmt: skip
            if width <= 32:  # exact in f64
                yield (
                    f"cvt.rz.f32.{sign}{width}", "f32", container(width),
                    lambda b, x, s=sign == "s", v=whole: directed(
                        b, from_integer(b, v(b, x), s, FLOAT), from_integer(b, v(b, x), s, DOUBLE), "rz"),
                )  # fmt: skip
            yield (
                f"cvt.rn.f64.{sign}{width}", "f64", container(width),
                lambda b, x, s=sign == "s", v=whole: from_integer(b, v(b, x), s, DOUBLE),
            )  # fmt: skip
            if width <= 16:
                for target, down in (("f16", f32_to_f16), ("bf16", f32_to_bf16)):
                    yield (
                        f"cvt.rn.{target}.{sign}{width}", target, container(width),
                        lambda b, x, s=sign == "s", v=whole, d=down: d(b, from_integer(b, v(b, x), s, FLOAT)),
                    )  # fmt: skip
    for rounding in ROUND_TO_INT:
        for ftz in ("", ".ftz"):
            yield (
                f"cvt.{rounding}{ftz}.f32.f32", "f32", "f32",
                lambda b, x, r=rounding, z=ftz: canonical(b, intrinsic(b, ROUND_TO_INT[r], flush(b, x) if z else x)),
            )  # fmt: skip
    for target, down in (("f16", f32_to_f16), ("bf16", f32_to_bf16)):
        for rounding in ("rn", "rz"):
            yield f"cvt.{rounding}.{target}.f32", target, "f32", lambda b, x, d=down, r=rounding: d(b, x, r)
            for relu in ("", ".relu"):
                yield f"cvt.{rounding}{relu}.{target}x2.f32", "b32", "f32 f32", _pack(down, bool(relu), rounding)
    yield "cvt.f32.f16", "f32", "f16", lambda b, x: canonical(b, f16_to_f32(b, x))
    # a NaN keeps what fits of its bits in these: the first is a shift, the others go through the unit for f64
    yield "cvt.f32.bf16", "f32", "bf16", bf16_to_f32
    yield "cvt.rn.f32.f64", "f32", "f64", lambda b, x: b.fptrunc(x, vec(FLOAT))
    yield "cvt.f64.f32", "f64", "f32", lambda b, x: b.fpext(x, vec(DOUBLE))
