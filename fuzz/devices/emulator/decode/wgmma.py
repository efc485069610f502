"""Decodes Hopper's warpgroup MMA (wgmma.*)."""

from __future__ import annotations

import re

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Operands
from fuzz.devices.emulator.decode.wgmma_hazards import Use
from fuzz.devices.emulator.ptx import Instruction

FORM = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.(f32|f16)\.(bf16|f16)\.(bf16|f16)")
KINDS = {("bf16", "f32"): 0, ("f16", "f32"): 1, ("f16", "f16"): 2}
REGISTERS_AT_ONCE = 13  # registers that fit into one micro-operation


class WgmmaFamilies(Operands):
    """`op_wgmma`, and the micro-operations beside ordinary instructions that use a wgmma's registers."""

    use: Use

    def op_wgmma(self, i: Instruction) -> None:
        if i.guard:
            raise self.fail("has a guard")
        if i.name == "wgmma.fence.sync.aligned":
            return self.emit(op.WGMMA_FENCE)
        if i.name == "wgmma.commit_group.sync.aligned":
            return self.emit(op.WGMMA_COMMIT)
        if i.name == "wgmma.wait_group.sync.aligned":
            return self.emit(op.WGMMA_WAIT, int(i.operands[0]))  # type: ignore[call-overload]
        m = FORM.fullmatch(i.name)
        if not m or m.group(3) != m.group(4) or (m.group(3), m.group(2)) not in KINDS:
            raise self.fail()
        n = int(m.group(1))
        d, a, b, scale, *rest = i.operands
        own = a if isinstance(a, tuple) else ()
        in_registers = bool(own)
        wanted = 3 if in_registers else 4
        if not isinstance(d, tuple) or len(d) != (n // 2 if m.group(2) == "f32" else n // 4) or n % 8 or n > 256:
            raise self.fail("has another number of accumulators than its shape")
        if len(rest) != wanted or not all(isinstance(x, int) for x in rest) or (in_registers and len(own) != 4):
            raise self.fail("has operands of another form")
        flags = KINDS[m.group(3), m.group(2)] << op.WGMMA_KIND
        for bit, value in ((op.A_NEGATED, rest[0]), (op.B_NEGATED, rest[1])):
            if value not in (1, -1):
                raise self.fail("negates by another number than 1 and -1")
            flags |= bit * (value == -1)
        majors = (op.B_TRANSPOSED,) if in_registers else (op.A_TRANSPOSED, op.B_TRANSPOSED)
        for bit, value in zip(majors, rest[2:], strict=True):
            flags |= bit * bool(value)
        registers = [*d, *own]
        table = self.table([self.register(str(x), 32) for x in registers])
        flags |= op.A_REGISTERS * in_registers
        tracked = [self.use.numbers[str(x)] for x in registers if str(x) in self.use.numbers]
        self.granule = min(self.granule, 4)
        if isinstance(scale, int):
            self.form("mov.pred", scale_register := self.temporary("pred"), scale)
        else:
            scale_register = str(scale)
        return self.emit(
            op.WGMMA, table, n, flags, self.register(scale_register, 1),
            op.ABSENT if in_registers else self.value(a, 64), self.value(b, 64),
            self.table(tracked) if tracked else op.ABSENT, len(tracked),
        )  # fmt: skip

    def register_uses(self, index: int) -> None:
        """Emits the notes that instruction `index` uses registers of wgmma, ahead of it."""
        move = self.use.moves.get(index)
        if move:
            both = [*move[0], *move[1]]
            self.emit(op.REGISTER_USE, len(move[0]), *both, *[-1] * (REGISTERS_AT_ONCE - len(both)))
        numbers = self.use.register_uses.get(index, ())
        for at in range(0, len(numbers), REGISTERS_AT_ONCE):
            some = list(numbers[at : at + REGISTERS_AT_ONCE])
            self.emit(op.REGISTER_USE, 0, *some, *[-1] * (REGISTERS_AT_ONCE - len(some)))
