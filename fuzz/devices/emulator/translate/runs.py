"""LLVM IR of a kernel's straight runs, for warps all of whose 32 lanes run.

    int64 run_N(int64 registers, int64 constants, int64 taints, int64 shared, int64 size, int64 last)

`run_N` runs micro-operations from number N on and returns the first that it has not run: one for the interpreter, or
one that no run begins with. A run ends before a branch's target and before each operation for the interpreter; where
the next one is translated too, it goes on there (a tail call). Operands and constants are fixed; what an operation
does is written by the same functions as in `isa/straight_line.py`, so that it cannot mean anything else. Every result
is written to the warp's registers at once: the state is that of the loop there whenever a run ends.

ldmatrix of unchecked memory is a run of its own, if `size`, the bytes of the CTA's shared memory at `shared`, is not 0
and its number is below `last`, which is where the random schedule may take the warp away. `taints` is 0, or the
address of the warp's taints, then for functions of `build(tainted=True)` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
from llvmlite import ir

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Program
from fuzz.devices.emulator.isa import matrix_load
from fuzz.devices.emulator.isa.all_forms import FORMS, Form
from fuzz.devices.emulator.isa.mma import MATRIX, write_mma
from fuzz.devices.emulator.isa.straight_line import NUMBERS, raw, stored, taint_of_result, tainted, view
from fuzz.devices.emulator.isa.vectors import I1, I8, I32, I64, Value, vec

NAMES = {number: name for name, number in NUMBERS.items()}
LONGEST = 256  # micro-operations of a run: a longer one is cut, because compiling takes longer than in proportion
KEPT = 10  # registers that a run keeps in registers of the processor; others are read again
LONG_FORM = 40  # instructions of a form, from which on it is a function of its own
NUMBER, GUARD, FIRST = 0, 1, 2  # words of a micro-operation


def crossed(row: np.ndarray) -> bool:
    """True for an operation of the interpreter that translated code can do itself."""
    return bool(row[NUMBER] == op.LDMATRIX and row[GUARD] == -1 and not row[FIRST] >> op.ADDRESS64 & 1)


def translatable(row: np.ndarray, with_taints: bool) -> bool:
    return bool(row[NUMBER] < op.BASE) or (not with_taints and crossed(row))


def starts(program: Program, with_taints: bool) -> dict[int, int]:
    """First micro-operation of each run → the one behind its last."""
    code = program.code
    cuts = {0, len(code)}
    for i, row in enumerate(code):
        if row[NUMBER] == op.BRANCH:
            cuts.add(int(row[FIRST]))
        if row[NUMBER] >= op.BASE:
            cuts |= {i, i + 1}
    found = {}
    edges = sorted(cuts)
    for low, high in pairwise(edges):
        if low < len(code) and translatable(code[low], with_taints):
            for start in range(low, high, LONGEST):
                found[start] = min(start + LONGEST, high)
    return found


def build(program: Program, chosen: Iterable[int], with_taints: bool) -> ir.Module:
    """A module with the runs that begin at `chosen`, all of them in `starts(program, with_taints)`."""
    ends = starts(program, with_taints)
    module = ir.Module("translated")
    module.triple = ""
    functions = {start: ir.Function(module, _KIND, f"run_{start}") for start in sorted(chosen)}
    for start, function in functions.items():
        _Run(program, function, with_taints).build(start, ends[start], functions.get(ends[start]))
    return module


_KIND = ir.FunctionType(I64, [I64] * 6)


class _Run:
    """Builds one function."""

    def __init__(self, program: Program, function: ir.Function, with_taints: bool) -> None:
        self.program, self.function, self.with_taints = program, function, with_taints
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        bytes_ = I8.as_pointer()
        self.registers, self.constants, self.taints = (self.b.inttoptr(x, bytes_) for x in function.args[:3])
        self.known: dict[int, Value] = {}  # place of a register → its value, the one used last at the end
        self.known_taints: dict[int, Value] = {}

    def build(self, start: int, end: int, following: ir.Function | None) -> None:
        b, code = self.b, self.program.code
        if code[start][NUMBER] == op.LDMATRIX:
            self.ldmatrix(start, code[start])
        for row in code[start:end]:
            if row[NUMBER] >= op.BASE:
                continue
            name = NAMES[int(row[NUMBER])]
            if name in MATRIX:
                self.mma(name, row)
            else:
                self.operation(FORMS[name], row)
        if following is None:
            b.ret(ir.Constant(I64, end))
        else:
            b.ret(b.call(following, self.function.args, tail="musttail"))

    def pointer(self, place: int, t: ir.Type) -> Value:
        """A register, or a constant (`place` negative)."""
        base, offset = (self.registers, place) if place >= 0 else (self.constants, ~place)
        return self.b.bitcast(self.b.gep(base, [ir.Constant(I64, offset)]), t.as_pointer())

    def address(self, place: int) -> Value:
        """The same as an int64."""
        base, offset = (self.function.args[0], place) if place >= 0 else (self.function.args[1], ~place)
        return self.b.add(base, ir.Constant(I64, offset))

    def read(self, kind: str, place: int) -> Value:
        """An operand as it is kept."""
        t = stored(kind)
        if place < 0:
            return self.constant(t, ~place)
        value = self.known.pop(place, None)
        if value is None or value.type != t:
            value = self.b.load(self.pointer(place, t), align=4 if t is I32 else 64)
        self.keep(place, value)
        return value

    def keep(self, place: int, value: Value) -> None:
        self.known.pop(place, None)
        self.known[place] = value
        if len(self.known) > KEPT:
            del self.known[next(iter(self.known))]

    def constant(self, t: ir.Type, offset: int) -> Value:
        data = self.program.constants
        if t is I32:
            return ir.Constant(I32, int(data[offset : offset + 4].view(np.uint32)[0]))
        size = 8 if t.element == I64 else 4
        values = np.frombuffer(data[offset : offset + 32 * size].tobytes(), dtype=f"<u{size}")
        return ir.Constant(t, [ir.Constant(t.element, int(x)) for x in values])

    def operation(self, form: Form, row: np.ndarray) -> None:
        b = self.b
        words = [int(x) for x in row[FIRST : FIRST + 1 + len(form.operands)]]
        place = words[0]
        operands = [view(b, kind, self.read(kind, x)) for kind, x in zip(form.operands, words[1:], strict=True)]
        active = self.active(int(row[GUARD]))
        outlined = function_of(self.function.module, form, operands)
        value = form.write(b, *operands) if outlined is None else b.call(outlined, operands)
        result = raw(b, form.result, value)
        if outlined is not None:
            self.known.clear()  # what would have to be kept across the call
        if self.with_taints and tainted(form):
            total = taint_of_result(b, form, operands, lambda i: self.taint(words[1 + i]))
            if active is not None:
                old = self.taint(place)
                total = b.or_(b.and_(old, b.not_(active)), b.and_(total, active))
            b.store(total, self.taint_pointer(place), align=4)
            self.known_taints[place >> 7] = total
        if active is not None:
            old = self.read(form.result, place)
            if result.type is I32:
                result = b.or_(b.and_(old, b.not_(active)), b.and_(result, active))
            else:
                result = b.select(b.bitcast(active, vec(I1)), result, old)
        b.store(result, self.pointer(place, result.type), align=4 if result.type is I32 else 64)
        self.keep(place, result)

    def active(self, guard: int) -> Value | None:
        """The lanes whose guard holds; None without one."""
        if guard < 0:
            return None
        predicate = self.read("p", guard >> 1)
        return self.b.not_(predicate) if guard & 1 else predicate

    def taint_pointer(self, place: int) -> Value:
        return self.b.bitcast(self.b.gep(self.taints, [ir.Constant(I64, 4 * (place >> 7))]), I32.as_pointer())

    def taint(self, place: int) -> Value:
        if place < 0:
            return ir.Constant(I32, 0)
        if place >> 7 not in self.known_taints:
            self.known_taints[place >> 7] = self.b.load(self.taint_pointer(place), align=4)
        return self.known_taints[place >> 7]

    def mma(self, name: str, row: np.ndarray) -> None:
        _, sums, k = MATRIX[name]
        count = (8 if sums == "f32" else 4) + 3 * (k // 8)
        function = _outlined(self.function.module, name, [I64] * count, ir.VoidType(), lambda b, args: write_mma(
            b, name, lambda i: args[i]))  # fmt: skip
        self.b.call(function, [self.address(int(x)) for x in row[FIRST : FIRST + count]])
        self.known.clear()  # what the call has written, and what would have to be kept across it

    def ldmatrix(self, number: int, row: np.ndarray) -> None:
        b, function = self.b, self.function
        _, _, _, shared, size, last = function.args
        refuse, go, done = (function.append_basic_block(n) for n in ("refuse", "go", "done"))
        b.cbranch(b.icmp_signed("<", ir.Constant(I64, number), last), go, refuse)
        b.position_at_end(refuse)
        b.ret(ir.Constant(I64, number))
        b.position_at_end(go)
        load = matrix_load.variant(function.module, int(row[9]), bool(row[10]))
        destinations = [self.address(max(int(x), 0)) for x in row[5:9]]
        loaded = b.call(
            load, [self.address(int(row[3])), ir.Constant(I32, int(row[4])), shared, size, *destinations]
        )  # fmt: skip
        b.cbranch(b.icmp_unsigned("!=", loaded, ir.Constant(I64, 0)), done, refuse)
        b.position_at_end(done)


def _outlined(
    module: ir.Module, name: str, arguments: list[ir.Type], result: ir.Type,
    write: Callable[[ir.IRBuilder, list[Value]], Value],
) -> ir.Function:  # fmt: skip
    """A function of the module, written where it is not there yet."""
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, ir.FunctionType(result, arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    value = write(b, list(function.args))
    if isinstance(result, ir.VoidType):
        b.ret_void()
    else:
        b.ret(value)
    return function


_length: dict[str, int] = {}


def function_of(module: ir.Module, form: Form, operands: list[Value]) -> ir.Function | None:
    """A function for a form of many instructions; None for one that is written where it is used."""
    if form.name not in _length:
        types = [view_type(kind) for kind in form.operands]
        function = _outlined(ir.Module(), "form", types, view_type(form.result), lambda b, x: form.write(b, *x))
        _length[form.name] = len(function.blocks[0].instructions)
    if _length[form.name] < LONG_FORM or "p" in (form.result, *form.operands):
        return None
    kinds = [x.type for x in operands]
    return _outlined(module, form.name, kinds, view_type(form.result), lambda b, x: form.write(b, *x))


def view_type(kind: str) -> ir.Type:
    """The vector type that `kind` names."""
    scratch = ir.IRBuilder(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f").append_basic_block())
    return view(scratch, kind, ir.Constant(stored(kind), ir.Undefined)).type
