"""Decodes clusterlaunchcontrol.*, and the registers of 128 bits that its responses are loaded into.

A register of 128 bits is a pair of 64 bits here; only moves, loads, stores and query_cancel take one.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Operands
from fuzz.devices.emulator.ptx import Instruction

TRY = re.compile(
    r"clusterlaunchcontrol\.try_cancel\.async(?:\.shared::cta)?\.mbarrier::complete_tx::bytes"
    r"(\.multicast::cluster::all)?\.b128"
)
QUERY = "clusterlaunchcontrol.query_cancel."
FIRST = re.compile(re.escape(QUERY) + r"get_first_ctaid(?:::([xyz])|\.v4)\.b32\.b128")


class ClusterLaunchFamilies(Operands):
    """`op_clusterlaunchcontrol`, moves of 128 bits, and `wide_access` for loads and stores of them."""

    def op_clusterlaunchcontrol(self, i: Instruction) -> None:
        tries = TRY.fullmatch(i.name)
        if tries:
            to, to_immediate, to_wide = self.address(i.operands[0])
            told, told_immediate, told_wide = self.address(i.operands[1])
            self.granule = min(self.granule, 4)
            flags = (op.CLC_WIDE if to_wide else 0) | (op.CLC_WIDE_BARRIER if told_wide else 0)
            flags |= op.CLC_ALL if tries[1] else 0
            return self.emit(op.CLC, flags, to, to_immediate, told, told_immediate)
        first = FIRST.fullmatch(i.name)
        if not first and i.name != QUERY + "is_canceled.pred.b128":
            raise self.fail()
        low, high = self.halves(i.operands[1])
        if not first:
            self.form("high.b64", word := self.temporary("b32"), high)
            return self.form("setp.eq.u32", i.operands[0], word, 1)
        d = i.operands[0]
        given = d if isinstance(d, tuple) else tuple(d if axis == first[1] else "_" for axis in "xyz")
        if len(given) not in (3, 4) or (isinstance(d, tuple)) != (first[1] is None):
            raise self.fail("has another number of results than its form")
        for register, part, source in zip(given, ("low", "high", "low"), (low, low, high), strict=False):
            if register != "_":
                self.form(f"{part}.b64", register, source)
        return None

    def halves(self, x: object) -> tuple[str, str]:
        """The two registers that a register of 128 bits is made of."""
        if not isinstance(x, str) or self.kernel.registers.get(x) != "b128":
            raise self.fail(f"has {x!r} where it needs a register of 128 bits")
        for half in (low := f"{x}@low", high := f"{x}@high"):
            self.kernel.registers.setdefault(half, "b64")
        return low, high

    def op_mov(self, i: Instruction) -> None:
        """mov.b128: between registers of 128 bits, and from and to pairs of 64."""
        if i.name != "mov.b128" or len(i.operands) != 2:
            raise self.fail()
        to, source = (x if isinstance(x, tuple) else self.halves(x) for x in i.operands)
        if len(to) != 2 or len(source) != 2:
            raise self.fail("moves another number of registers than two")
        kept = self.temporary("b64")
        self.form("mov.b64", kept, source[0])  # the pairs may overlap
        if to[1] != "_":
            self.form("mov.b64", to[1], source[1])
        if to[0] != "_":
            self.form("mov.b64", to[0], kept)

    def wide_access(self, i: Instruction, which: int) -> Instruction:
        """A load or store of 128 bits as one of two times 64. which: the operand that is the register."""
        operands = list(i.operands)
        operands[which] = self.halves(operands[which])
        return replace(i, name=i.name.removesuffix("b128") + "v2.b64", operands=tuple(operands))
