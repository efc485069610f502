"""Rows of the form table: sums of absolute differences, dot products of the bytes of a register, and arithmetic of two
16-bit integers in one."""

from __future__ import annotations

from llvmlite import ir

from fuzz.devices.emulator.isa.table import add, typed
from fuzz.devices.emulator.isa.vectors import I8, I16, I32, LANES, Value, splat, vec


def part(b: ir.IRBuilder, x: Value, index: int, width: int, signed: bool) -> Value:
    """A byte or half of a register of 32 bits, extended."""
    moved = b.lshr(x, splat(x.type, index * width)) if index else x
    cut = b.trunc(moved, vec(I8 if width == 8 else I16))
    return (b.sext if signed else b.zext)(cut, vec(I32))


def dot4(b: ir.IRBuilder, x: Value, y: Value, z: Value, x_signed: bool, y_signed: bool) -> Value:
    for i in range(4):
        z = b.add(z, b.mul(part(b, x, i, 8, x_signed), part(b, y, i, 8, y_signed)))
    return z


def dot2(b: ir.IRBuilder, x: Value, y: Value, z: Value, x_signed: bool, y_signed: bool, high: bool) -> Value:
    """Both halves of x with the two lower or higher bytes of y."""
    for i in range(2):
        z = b.add(z, b.mul(part(b, x, i, 16, x_signed), part(b, y, i + 2 * high, 8, y_signed)))
    return z


for sign, compare in (("s", "icmp_signed"), ("u", "icmp_unsigned")):
    for names, t in typed("sad", (16, 32, 64), sign):

        def difference(b: ir.IRBuilder, x: Value, y: Value, z: Value, compare: str = compare) -> Value:
            return b.add(z, b.select(getattr(b, compare)("<", x, y), b.sub(y, x), b.sub(x, y)))

        add(names, t, f"{t} {t} {t}", difference)
    for other in "su":
        signs = (sign == "s", other == "s")
        add(f"dp4a.{sign}32.{other}32", "b32", "b32 b32 b32", lambda b, x, y, z, s=signs: dot4(b, x, y, z, *s))
        for name, high in (("lo", False), ("hi", True)):
            add(
                f"dp2a.{name}.{sign}32.{other}32", "b32", "b32 b32 b32",
                lambda b, x, y, z, s=signs, h=high: dot2(b, x, y, z, s[0], s[1], h),
            )  # fmt: skip
    for op, order in (("min", "<"), ("max", ">")):

        def halves(b: ir.IRBuilder, x: Value, y: Value, compare: str = compare, order: str = order) -> Value:
            t = vec(I16, 2 * LANES)
            p, q = b.bitcast(x, t), b.bitcast(y, t)
            return b.bitcast(b.select(getattr(b, compare)(order, p, q), p, q), vec(I32))

        add(f"{op}.{sign}16x2", "b32", "b32 b32", halves)

for op, order in (("min", "<"), ("max", ">")):

    def not_negative(b: ir.IRBuilder, x: Value, y: Value, order: str = order) -> Value:
        """min or max of halves, zero in place of a negative number."""
        t = vec(I16, 2 * LANES)
        p, q, zero = b.bitcast(x, t), b.bitcast(y, t), splat(t, 0)
        found = b.select(b.icmp_signed(order, p, q), p, q)
        return b.bitcast(b.select(b.icmp_signed("<", found, zero), zero, found), vec(I32))

    add(f"{op}.relu.s16x2", "b32", "b32 b32", not_negative)


def added(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    t = vec(I16, 2 * LANES)
    return b.bitcast(b.add(b.bitcast(x, t), b.bitcast(y, t)), vec(I32))


add(["add.s16x2", "add.u16x2"], "b32", "b32 b32", added)
