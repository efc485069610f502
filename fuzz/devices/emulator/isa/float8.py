"""The cvt instructions of 8-bit floats, e4m3 and e5m2 in pairs, as rows for the form table.

A pair lies in 16 bits, the first operand in the upper byte. To 8 bits, numbers round to nearest even and stop at the
largest finite one (.satfinite); a NaN becomes 0x7f. From 8 bits, every number is exact in f16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import (
    FLOAT,
    I16,
    I32,
    NAN16,
    Value,
    bits,
    f16_to_f32,
    f32_to_f16,
    from_bits,
    intrinsic,
    splat,
    vec,
)

WORD = vec(I32)
NAN = 0x7F


@dataclass(frozen=True)
class Float8:
    """A format: bits of its mantissa, bias of its exponent, pattern of its largest number, least pattern of a NaN."""

    name: str
    mantissa: int
    bias: int
    largest: int
    nan: int

    @property
    def least(self) -> float:
        """The smallest number above zero."""
        return 2.0 ** (1 - self.bias - self.mantissa)


FORMATS = (Float8("e4m3", 3, 7, 0x7E, 0x7F), Float8("e5m2", 2, 15, 0x7B, 0x7D))


def encode(b: ir.IRBuilder, x: Value, form: Float8, relu: bool) -> Value:
    """f32 to the 8 bits of a format, as i32."""
    raw = bits(b, x)
    size = b.and_(raw, splat(WORD, 0x7FFFFFFF))
    shift = 23 - form.mantissa
    odd = b.and_(b.lshr(size, splat(WORD, shift)), splat(WORD, 1))
    rounded = b.lshr(b.add(size, b.add(odd, splat(WORD, (1 << shift - 1) - 1))), splat(WORD, shift))
    normal = b.sub(rounded, splat(WORD, 127 - form.bias << form.mantissa))
    small = b.icmp_unsigned("<", size, splat(WORD, 128 - form.bias << 23))
    steps = b.fmul(from_bits(b, b.select(small, size, splat(WORD, 0))), splat(vec(FLOAT), 1 / form.least))
    code = b.select(small, b.fptosi(intrinsic(b, "rint", steps), WORD), normal)
    code = b.select(b.icmp_signed(">", code, splat(WORD, form.largest)), splat(WORD, form.largest), code)
    negative = b.icmp_signed("<", raw, splat(WORD, 0))
    signed = splat(WORD, 0) if relu else b.or_(code, splat(WORD, 0x80))
    code = b.select(negative, signed, code)
    return b.select(b.icmp_unsigned(">", size, splat(WORD, 0x7F800000)), splat(WORD, NAN), code)


def decode(b: ir.IRBuilder, code: Value, form: Float8, relu: bool) -> Value:
    """8 bits of a format, as i32, to the 16 bits of an f16, as i32."""
    size = b.and_(code, splat(WORD, 0x7F))
    shift = 23 - form.mantissa
    normal = from_bits(b, b.add(b.shl(size, splat(WORD, shift)), splat(WORD, 127 - form.bias << 23)))
    subnormal = b.fmul(b.uitofp(size, vec(FLOAT)), splat(vec(FLOAT), form.least))
    small = b.icmp_unsigned("<", size, splat(WORD, 1 << form.mantissa))
    half = b.zext(f32_to_f16(b, b.select(small, subnormal, normal)), WORD)
    if form.nan > form.largest + 1:  # a pattern between the two is infinity
        half = b.select(b.icmp_unsigned("==", size, splat(WORD, form.largest + 1)), splat(WORD, 0x7C00), half)
    negative = b.icmp_unsigned(">", code, splat(WORD, 0x7F))
    half = b.select(negative, splat(WORD, 0) if relu else b.or_(half, splat(WORD, 0x8000)), half)
    return b.select(b.icmp_unsigned(">=", size, splat(WORD, form.nan)), splat(WORD, NAN16), half)


def _to_pair(form: Float8, relu: bool) -> Callable[..., Value]:
    def write(b: ir.IRBuilder, high: Value, low: Value) -> Value:
        upper, lower = (encode(b, x, form, relu) for x in (high, low))
        return b.trunc(b.or_(b.shl(upper, splat(WORD, 8)), lower), vec(I16))

    return write


def _halves_to_pair(form: Float8, relu: bool) -> Callable[..., Value]:
    def write(b: ir.IRBuilder, x: Value) -> Value:
        halves = (b.trunc(b.lshr(x, splat(WORD, at)), vec(I16)) for at in (16, 0))
        return _to_pair(form, relu)(b, *(f16_to_f32(b, half) for half in halves))

    return write


def _to_halves(form: Float8, relu: bool) -> Callable[..., Value]:
    def write(b: ir.IRBuilder, x: Value) -> Value:
        wide = b.zext(x, WORD)
        upper = decode(b, b.lshr(wide, splat(WORD, 8)), form, relu)
        return b.or_(b.shl(upper, splat(WORD, 16)), decode(b, b.and_(wide, splat(WORD, 0xFF)), form, relu))

    return write


def table() -> Iterator[tuple[str, str, str, Callable[..., Value]]]:
    """(name, result, operands, what writes it) of each instruction."""
    for form in FORMATS:
        for relu in (False, True):
            end = ".relu" * relu
            yield f"cvt.rn.satfinite{end}.{form.name}x2.f32", "b16", "f32 f32", _to_pair(form, relu)
            yield f"cvt.rn.satfinite{end}.{form.name}x2.f16x2", "b16", "b32", _halves_to_pair(form, relu)
            yield f"cvt.rn{end}.f16x2.{form.name}x2", "b32", "b16", _to_halves(form, relu)
