"""PTX instructions → micro-operations: names become numbers, registers become places, immediates become constants.

An instruction that nothing here knows raises Unimplemented with its text, line and kernel; it is never skipped. One
instruction may become several micro-operations (vector moves, setp with two results); `lines` leads back to the PTX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.carry import CarryFamilies
from fuzz.devices.emulator.decode.loops import number_loops
from fuzz.devices.emulator.decode.memory import MemoryFamilies
from fuzz.devices.emulator.decode.operands import OPERAND_BITS, Program, Unimplemented
from fuzz.devices.emulator.decode.tcgen05 import TensorMemoryFamilies
from fuzz.devices.emulator.decode.tensor_loads import first_uses
from fuzz.devices.emulator.decode.undefined_registers import undefined_reads
from fuzz.devices.emulator.decode.warp import WarpFamilies
from fuzz.devices.emulator.decode.wgmma import WgmmaFamilies
from fuzz.devices.emulator.decode.wgmma_hazards import uses
from fuzz.devices.emulator.isa.all_forms import FORMS
from fuzz.devices.emulator.isa.mma import MATRIX
from fuzz.devices.emulator.isa.straight_line import NUMBERS, WIDTH
from fuzz.devices.emulator.ptx import Instruction, Kernel, Module

__all__ = ["Program", "Unimplemented", "decode"]


class Decoder(MemoryFamilies, WarpFamilies, WgmmaFamilies, TensorMemoryFamilies, CarryFamilies):
    """Decodes one kernel; the methods named `op_…` handle one family each."""

    def program(self) -> Program:
        starts: list[int] = []  # the first micro-operation for each instruction, notes before it included
        proper: list[int] = []  # that of the instruction itself
        self.use, self.loads_used = uses(self.kernel), first_uses(self.kernel)
        undefined = undefined_reads(self.kernel)
        limited = any(i.name.startswith("setmaxnreg") for i in self.kernel.instructions)
        for index, i in enumerate(self.kernel.instructions):
            self.now = i
            starts.append(len(self.words))
            if self.use.numbers:
                self.register_uses(index)
            if index in self.loads_used:
                self.note_loads_used([proper[load] for load in self.loads_used[index]])
            if limited:
                self.registers_used(i)
            if index in undefined:
                self.note_undefined(undefined[index])
            proper.append(len(self.words))
            self.one(i)
        self.now = Instruction("ret", (), None, False, self.now.line if self.kernel.instructions else 0, "(end)")
        starts.append(len(self.words))
        self.emit(op.EXIT)
        for row, i in zip(self.words, self.source, strict=True):
            if row[0] == op.BRANCH:
                label = str(i.operands[0])
                if label not in self.kernel.labels:
                    self.now = i
                    raise self.fail("names an unknown label")
                row[2] = starts[self.kernel.labels[label]]
        code = np.array(self.words, dtype=np.int32).reshape(-1, WIDTH)
        number_loops(code)
        params = self.kernel.params[-1].offset + self.kernel.params[-1].size if self.kernel.params else 0
        constants = np.frombuffer(bytes(self.constant_data) or bytes(128), dtype=np.uint8)
        return Program(
            self.kernel, code, constants, self.size, self.specials, self.places, self.source,
            self.shared, self.dynamic, self.local, params, self.granule, self.smallest, self.globals,
            bool(np.isin(code[:, 0], (op.WGMMA, op.BULK, op.TC_MMA, op.TC_CP, op.CLC)).any()), len(self.use.numbers),
            bool(np.isin(code[:, 0], (op.BULK, op.STORE_ASYNC, op.CLC)).any()),
            bool(((code[:, 0] >= op.TC_MMA) & (code[:, 0] <= op.TC_WAIT)).any()), _scoped(code), self.clustered,
            bool(np.isin(code[:, 0], (op.CLUSTER, op.CLUSTER_ALIGNED)).any()), limited,
            bool((code[:, 0] == op.CLC).any()),
        )  # fmt: skip

    def one(self, i: Instruction) -> None:
        """Picks the family: exact names first, then the first word."""
        name = i.name
        if name in FORMS:
            vectors = name.startswith("mov.") and any(
                isinstance(x, tuple) and x[0] not in ("f32", "f64") for x in i.operands
            )
            if vectors:
                return self.move_vector(i)
            if name.startswith("setp.") and isinstance(i.operands[0], tuple):
                return self.set_predicates(i)
            if name in ("mov.u32", "mov.b32", "mov.u64", "mov.b64") and str(i.operands[1]).startswith(
                ("%clock", "%globaltimer")
            ):
                wide = name.endswith("64")
                return self.emit(op.CLOCK, self.register(str(i.operands[0]), 64 if wide else 32), int(wide),
                                 int(str(i.operands[1]).endswith("_hi")))  # fmt: skip
            if len(i.operands) == 4 and re.match(r"(max|min)\.", name):
                name = name[:3] + "3" + name[3:]
            if name.startswith("cvt."):
                return self.convert(name, i.operands)
            return self.form(name, *i.operands)
        if name in MATRIX:
            if i.guard:
                raise self.fail("has a guard")
            flat = [x for group in i.operands for x in group]  # type: ignore[attr-defined]
            return self.emit(NUMBERS[name], *(self.value(x, 32) for x in flat))
        family = getattr(self, "op_" + re.split(r"[.:]", name)[0], None)
        if family is None:
            raise self.fail()
        return family(i)

    def move_vector(self, i: Instruction) -> None:
        d, x = i.operands
        kind = "b" + i.name[-2:]
        if isinstance(d, tuple) and len(d) == 2 and kind in ("b32", "b64"):
            for part, register in zip(("low", "high"), d, strict=True):
                if register != "_":
                    self.form(f"{part}.{kind}", register, x)
        elif isinstance(x, tuple) and len(x) == 2 and kind in ("b32", "b64"):
            self.form(f"join.{kind}", d, *x)
        elif isinstance(d, tuple) and len(d) == 4 and kind == "b64":
            half = self.temporary("b32")
            for part, pair in (("low", d[:2]), ("high", d[2:])):
                self.form(f"{part}.b64", half, x)
                for piece, register in zip(("low", "high"), pair, strict=True):
                    if register != "_":
                        self.form(f"{piece}.b32", register, half)
        else:
            raise self.fail()

    def convert(self, name: str, operands: Sequence[object]) -> None:
        """cvt. Its source may be a register that is wider than its type, of which it takes the low bits (PTX ISA,
        "Operand Size Exceeding Instruction-Type Size")."""
        d, *sources = operands
        x, bits = sources[0], OPERAND_BITS.get(FORMS[name].operands[0], 32)
        if isinstance(x, str) and x in self.kernel.registers and bits < self.width_of(x) == 64:
            sources[0] = self.temporary("b32")
            self.form("low.b64", sources[0], x)
        self.form(name, d, *sources)

    def set_predicates(self, i: Instruction) -> None:
        """setp with a second result, the complement."""
        p, q = pair(i.operands[0])
        result = self.temporary("pred") if p == "_" else p
        self.form(i.name, result, *i.operands[1:])
        if q != "_":
            self.form("not.pred", q, result)

    def op_setp(self, i: Instruction) -> None:
        """setp.cmp.bool.type p|q, a, b, c."""
        m = re.fullmatch(r"setp\.(\w+)\.(and|or|xor)((?:\.ftz)?\.\w+)", i.name)
        if not m or len(i.operands) != 4:
            raise self.fail()
        d, x, y, c = i.operands
        p, q = pair(d)
        form = f"setp.{m.group(1)}{m.group(3)}"
        if form not in FORMS:
            raise self.fail()
        first = self.temporary("pred") + "_c"
        self.kernel.registers.setdefault(first, "pred")
        self.form(form, first, x, y)
        if q != "_":
            second = self.temporary("pred") + "_d"
            self.kernel.registers.setdefault(second, "pred")
            self.form("not.pred", second, first)
            keep = self.temporary("pred") + "_e"
            self.kernel.registers.setdefault(keep, "pred")
            self.form(f"{m.group(2)}.pred", keep, second, c)
        if p != "_":
            self.form(f"{m.group(2)}.pred", p, first, c)
        if q != "_":
            self.form("mov.pred", q, keep)

    def op_bra(self, i: Instruction) -> None:
        self.emit(op.BRANCH, 0)

    def op_ret(self, i: Instruction) -> None:
        self.emit(op.EXIT)

    op_exit = op_ret

    def op_trap(self, i: Instruction) -> None:
        self.emit(op.TRAP)

    def op_call(self, i: Instruction) -> None:
        """A call of a function that the PTX has no body of: printf and assert. Others are not known."""
        callee, arguments = i.operands[0], i.operands[1]
        if callee == "__assertfail":
            return self.emit(op.TRAP)
        if callee == "vprintf" and isinstance(arguments, tuple) and len(arguments) == 2 and i.guard is None:
            return self.emit(op.PRINT, *(self.variables[str(name)][1] for name in arguments))
        raise self.fail(
            "calls a function that cannot be put in place of the call" if callee else "calls through a pointer"
        )

    def op_nanosleep(self, i: Instruction) -> None:
        self.emit(op.SLEEP)

    def op_cvta(self, i: Instruction) -> None:
        """Address spaces as windows of the generic one; global addresses are generic already."""
        d, x = i.operands
        width = int(i.name[-2:])
        window = dict.fromkeys(("shared", "shared::cta", "shared::cluster"), op.SHARED_WINDOW) | {
            "local": op.LOCAL_WINDOW
        }
        space = i.name.split(".")[2 if ".to." in i.name else 1]
        if space in window and width == 64:
            sign = "sub" if ".to." in i.name else "add"
            self.form(f"{sign}.s64", d, x, window[space])
        elif space == "param" and width == 64 and ".to." not in i.name:  # the window may be there already
            self.form("or.b64", d, x, op.PARAM_WINDOW)
        elif space in ("global", "const", "param") and width == 64:
            self.form("mov.b64", d, x)
        else:
            raise self.fail()

    def op_isspacep(self, i: Instruction) -> None:
        """isspacep.shared / .local: is a generic address in the window?"""
        shared = ("shared", "shared::cta", "shared::cluster")
        window = (dict.fromkeys(shared, op.SHARED_WINDOW) | {"local": op.LOCAL_WINDOW}).get(i.name[9:])
        if window is None:
            raise self.fail()
        if self.clustered and i.name[9:] in shared[:2]:
            return self.is_own_shared(i)
        high = self.temporary("b64")
        self.form("shr.u64", high, i.operands[1], op.SHIFT)
        return self.form("setp.eq.b64", i.operands[0], high, window >> op.SHIFT)


def _scoped(code: np.ndarray) -> bool:
    """True for a program with fences or strong accesses of scope cta."""
    number, flags = code[:, 0], code[:, 2]
    narrow = (flags >> op.CTA_SCOPE & flags >> op.STRONG & 1).astype(bool)
    accesses = np.isin(number, (op.LOAD, op.STORE, op.ATOMIC)) & narrow
    return bool((accesses | (number == op.FENCE) & (flags == 0)).any())


def pair(d: object) -> tuple[object, object]:
    """The two destinations of an instruction, the second "_" where it has one."""
    return (d[0], d[1]) if isinstance(d, tuple) else (d, "_")


def decode(module: Module, kernel: Kernel, clustered: bool = False) -> Program:
    """The micro-operations of `kernel`. clustered: for a launch with clusters of several CTAs. Raises Unimplemented for
    an instruction that the emulator does not have."""
    return Decoder(module, kernel, clustered).program()
