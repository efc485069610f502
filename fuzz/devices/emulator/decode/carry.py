"""Decodes arithmetic with a carry (add.cc, addc, sub.cc, subc, mad.lo.cc, madc.hi, …) of 32 bits: sums in 64 bits,
whose upper half is the carry. The condition code is a predicate of the kernel's."""

from __future__ import annotations

import re

from fuzz.devices.emulator.decode.operands import Operands
from fuzz.devices.emulator.ptx import Instruction

CARRY = "%condition_code"


class CarryFamilies(Operands):
    """The methods named `op_…` handle one family each; they get instructions that the form table does not have."""

    def op_add(self, i: Instruction) -> None:
        self.with_carry(i, r"addc?(?:\.cc)?\.[us]32", "add")

    def op_sub(self, i: Instruction) -> None:
        self.with_carry(i, r"subc?(?:\.cc)?\.[us]32", "sub")

    def op_mad(self, i: Instruction) -> None:
        self.with_carry(i, r"madc?\.(lo|hi)(?:\.cc)?\.[us]32", "add")

    op_addc, op_subc, op_madc = op_add, op_sub, op_mad

    def with_carry(self, i: Instruction, known: str, operation: str) -> None:
        if not re.fullmatch(known, i.name):
            raise self.fail()
        parts = i.name.split(".")
        d, x, *rest = i.operands
        if parts[0].startswith("mad"):
            product = self.temporary("b32")
            self.form(f"mul.{parts[1]}.{parts[-1]}", product, x, rest[0])
            x, rest = product, rest[1:]
        first, second, total = (f"%carried_{n}" for n in range(3))
        for name in (first, second, total):
            self.kernel.registers.setdefault(name, "b64")
        self.kernel.registers.setdefault(CARRY, "pred")
        self.form("cvt.u64.u32", first, x)
        self.form("cvt.u64.u32", second, rest[0])
        self.form(f"{operation}.s64", total, first, second)
        if parts[0].endswith("c"):
            self.form("selp.b64", first, 1, 0, CARRY)
            self.form(f"{operation}.s64", total, total, first)
        self.form("low.b64", d, total)
        if "cc" in parts:
            self.form("shr.u64", total, total, 32)
            self.form("setp.ne.b64", CARRY, total, 0)
