"""Rows of the form table: moves, selections, comparisons."""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.table import add
from fuzz.devices.emulator.isa.vectors import (
    I32,
    Value,
    flush,
    splat,
    vec,
)

for width in (16, 32, 64):
    t = f"b{width}"
    kinds = [f"{s}{width}" for s in "busf" if not (s == "f" and width == 16)]
    add([f"mov.{k}" for k in kinds], t, t, lambda b, x: x)
    add([f"selp.{k}" for k in kinds], t, f"{t} {t} p", lambda b, x, y, p: b.select(p, x, y))
    slct = lambda b, x, y, z: b.select(b.icmp_signed(">=", z, splat(z.type, 0)), x, y)  # noqa: E731
    add([f"slct.{k}.s32" for k in kinds], t, f"{t} {t} b32", slct)
add("mov.pred", "p", "p", lambda b, x: x)
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
