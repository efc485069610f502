"""The straight-line part of the emulator, written in LLVM IR: a loop that runs micro-operations of the form table and
the matrix products until it meets one that it does not know, and hands that one to `interpreter.py`.

    int64 straight_line(int64 code, int64 pc, int64 stop, int64 registers, int64 constants, int32 lanes)

`code` is the address of the micro-operations, 16 int32 each: number, guard, operands. An operand is a byte offset into
the warp's registers, or the complement of one into the constants. A guard is -1, or twice the offset of a predicate
plus 1 when negated. Returns the index of the first micro-operation not run, or `stop`.

`straight_line_tainted` has one more argument, the address of the warp's taints: a mask of lanes for every 128 bytes of
its registers, set where 32-bit arithmetic overflowed on the way to the register's value.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from fuzz.devices.emulator.isa.all_forms import FORMS, Form
from fuzz.devices.emulator.isa.matrix_load import write_ldmatrix
from fuzz.devices.emulator.isa.mma import MATRIX, write_mma
from fuzz.devices.emulator.isa.tensor_core import write_tensor_product
from fuzz.devices.emulator.isa.vectors import DOUBLE, FLOAT, I1, I16, I32, I64, LANES, Value, splat, vec

WIDTH = 16  # int32 words of a micro-operation
NUMBERS = {name: i for i, name in enumerate([*FORMS, *MATRIX])}
WARPGROUP_MMA = {  # what wgmma is made of, see execute/wgmma.py
    f"mma_{name}": f"mma.sync.aligned.m16n8k16.row.col.{sums}.{kind}.{kind}.{sums}"
    for name, kind, sums in (("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("f16_f16", "f16", "f16"))
}
STRAIGHT = len(NUMBERS)  # numbers from here on belong to the interpreter
VIEWS = {
    "p": vec(I1), "f32": vec(FLOAT), "f64": vec(DOUBLE), "f32x2": vec(FLOAT, 2 * LANES),
    "f16x2": vec(I16, 2 * LANES), "bf16x2": vec(I16, 2 * LANES),
}  # fmt: skip


def stored(kind: str) -> ir.Type:
    """The type in which a register of this kind is kept: i32 mask, 32 x i32 or 32 x i64."""
    return I32 if kind == "p" else vec(I64) if kind in ("b64", "f64", "f32x2") else vec(I32)


def view(b: ir.IRBuilder, kind: str, value: Value) -> Value:
    """A register as it is kept, as the vector type that `kind` names."""
    if kind in ("b32", "b64"):
        return value
    if kind in ("b16", "f16", "bf16"):
        return b.trunc(value, vec(I16))
    return b.bitcast(value, VIEWS[kind])


def load(b: ir.IRBuilder, kind: str, address: Value) -> Value:
    """The register at `address`, as the vector type that `kind` names."""
    t = stored(kind)
    return view(b, kind, b.load(b.inttoptr(address, t.as_pointer()), align=4 if t is I32 else 64))


def raw(b: ir.IRBuilder, kind: str, value: Value) -> Value:
    """A result as it is kept, see `stored`."""
    return b.zext(value, vec(I32)) if kind in ("b16", "f16", "bf16") else b.bitcast(value, stored(kind))


class _Loop:
    """Builds `straight_line`; one method per part of it."""

    def __init__(self, module: ir.Module, tainted: bool) -> None:
        self.module, self.tainted = module, tainted
        kind = ir.FunctionType(I64, [I64, I64, I64, I64, I64, I32] + [I64] * tainted)
        self.function = ir.Function(self.module, kind, "straight_line_tainted" if tainted else "straight_line")
        self.code, self.first, self.stop, self.registers, self.constants, self.lanes = self.function.args[:6]
        block = self.function.append_basic_block
        self.entry, self.head, self.fetch, self.guard = (block(n) for n in ("entry", "head", "fetch", "guard"))
        self.run, self.next, self.done = (block(n) for n in ("run", "next", "done"))
        self.b = ir.IRBuilder(self.entry)

    def word(self, index: int) -> Value:
        return self.b.load(self.b.gep(self.at, [ir.Constant(I64, index)]), align=4)

    def address(self, index: int) -> Value:
        """Address of operand `index` of the micro-operation."""
        b = self.b
        offset = self.word(2 + index)
        outside = b.icmp_signed("<", offset, ir.Constant(I32, 0))
        own = b.add(self.registers, b.sext(offset, I64))
        constant = b.add(self.constants, b.sext(b.not_(offset), I64))
        return b.select(outside, constant, own)

    def build(self) -> None:
        b = self.b
        b.branch(self.head)
        b.position_at_end(self.head)
        pc = self.pc = b.phi(I64, "pc")
        pc.add_incoming(self.first, self.entry)
        b.cbranch(b.icmp_unsigned("<", pc, self.stop), self.fetch, self.done)

        b.position_at_end(self.fetch)
        start = b.add(self.code, b.shl(pc, ir.Constant(I64, 6)))
        self.at = b.inttoptr(start, I32.as_pointer())
        number = self.word(0)
        guard = self.word(1)
        known = b.icmp_unsigned("<", number, ir.Constant(I32, STRAIGHT))
        b.cbranch(known, self.guard, self.done)

        b.position_at_end(self.guard)
        guarded = b.icmp_signed(">=", guard, ir.Constant(I32, 0))
        place = b.select(guarded, b.ashr(guard, ir.Constant(I32, 1)), ir.Constant(I32, 0))
        predicate = b.load(b.inttoptr(b.add(self.registers, b.sext(place, I64)), I32.as_pointer()), align=4)
        flipped = b.xor(predicate, b.neg(b.and_(guard, ir.Constant(I32, 1))))
        self.active = b.and_(self.lanes, b.select(guarded, flipped, ir.Constant(I32, -1)))
        b.cbranch(b.icmp_unsigned("==", self.active, ir.Constant(I32, 0)), self.next, self.run)

        b.position_at_end(self.run)
        self.full = b.icmp_signed("==", self.active, ir.Constant(I32, -1))
        bad = self.function.append_basic_block("bad")
        choose = b.switch(number, bad)
        self.stores()
        for name, form in FORMS.items():
            choose.add_case(ir.Constant(I32, NUMBERS[name]), self.case(form))
        for name in MATRIX:
            block = self.function.append_basic_block()
            choose.add_case(ir.Constant(I32, NUMBERS[name]), block)
            b.position_at_end(block)
            together = self.function.append_basic_block()
            b.cbranch(self.full, together, self.done)  # the interpreter brings the lanes together first
            b.position_at_end(together)
            write_mma(b, name, self.address)
            b.branch(self.next)
        b.position_at_end(bad)
        b.unreachable()

        b.position_at_end(self.next)
        following = b.add(pc, ir.Constant(I64, 1))
        pc.add_incoming(following, self.next)
        b.branch(self.head)
        b.position_at_end(self.done)
        b.ret(pc)

    def stores(self) -> None:
        """Blocks that write a result, one per stored type, blending it in when some lanes are off."""
        self.store: dict[str, tuple[ir.Block, Value]] = {}
        b = self.b
        for key, t in (("mask", I32), ("b32", vec(I32)), ("b64", vec(I64))):
            block = self.function.append_basic_block(f"store_{key}")
            b.position_at_end(block)
            value = b.phi(t)
            self.store[key] = block, value
            target = b.inttoptr(self.address(0), t.as_pointer())
            align = 4 if key == "mask" else 64
            if key == "mask":
                old = b.load(target, align=align)
                kept = b.and_(old, b.not_(self.active))
                b.store(b.or_(kept, b.and_(value, self.active)), target, align=align)
                b.branch(self.next)
                continue
            whole, part = (self.function.append_basic_block() for _ in range(2))
            b.cbranch(self.full, whole, part)
            b.position_at_end(whole)
            b.store(value, target, align=align)
            b.branch(self.next)
            b.position_at_end(part)
            old = b.load(target, align=align)
            b.store(b.select(b.bitcast(self.active, vec(I1)), value, old), target, align=align)
            b.branch(self.next)

    def case(self, form: Form) -> ir.Block:
        b = self.b
        block = self.function.append_basic_block()
        b.position_at_end(block)
        operands = [load(b, kind, self.address(1 + i)) for i, kind in enumerate(form.operands)]
        result = raw(b, form.result, form.write(b, *operands))
        if self.tainted and tainted(form):
            self.taint(form, operands)
        key = "mask" if result.type is I32 else ("b64" if result.type.element == I64 else "b32")
        target, phi = self.store[key]
        phi.add_incoming(result, b.block)
        b.branch(target)
        return block

    def taint(self, form: Form, operands: list[Value]) -> None:
        """Writes the result's taint where lanes are active."""
        b = self.b
        taints = self.function.args[6]

        def at(index: int) -> tuple[Value, Value]:
            """(does operand `index` lie in the constants, where its taint is)"""
            offset = self.word(2 + index)
            outside = b.icmp_signed("<", offset, ir.Constant(I32, 0))
            place = b.select(outside, ir.Constant(I32, 0), b.lshr(offset, ir.Constant(I32, 7)))
            where = b.add(taints, b.shl(b.zext(place, I64), ir.Constant(I64, 2)))
            return outside, b.inttoptr(where, I32.as_pointer())

        def of(index: int) -> Value:
            outside, pointer = at(1 + index)
            return b.select(outside, ir.Constant(I32, 0), b.load(pointer, align=4))

        total = taint_of_result(b, form, operands, of)
        _, pointer = at(0)
        old = b.load(pointer, align=4)
        b.store(b.or_(b.and_(old, b.not_(self.active)), b.and_(total, self.active)), pointer, align=4)


def tainted(form: Form) -> bool:
    """True if results of this form have a taint."""
    return form.result in ("b16", "b32", "b64")


def taint_of_result(b: ir.IRBuilder, form: Form, operands: list[Value], taint: Callable[[int], Value]) -> Value:
    """The result's taint: that of its integer operands, and the lanes whose 32-bit result overflowed. A mask of
    bits (and) takes what it wants on purpose and ends the taint, unless it only aligns an address. taint: that of
    operand i."""
    total: Value = ir.Constant(I32, 0)
    if not form.name.startswith("and.") or form.name == "and.b64":
        for i, kind in enumerate(form.operands):
            if kind in ("b16", "b32", "b64"):
                total = b.or_(total, taint(i))
    if form.name == "and.b64":
        total = b.and_(total, b.bitcast(aligns(b, operands), I32))
    wrapped = overflow(b, form.name, operands)
    return total if wrapped is None else b.or_(total, b.bitcast(wrapped, I32))


def aligns(b: ir.IRBuilder, operands: list[Value]) -> Value:
    """The lanes in which `and` clears the last bits of a 64-bit number and keeps all others: a mask of -1 … -4096."""
    t = vec(I64)
    found = []
    for x in operands:
        negative = b.icmp_signed("<", x, splat(t, 0))
        found.append(b.and_(negative, b.icmp_signed(">=", x, splat(t, -4096))))
    return b.or_(*found)


def overflow(b: ir.IRBuilder, name: str, operands: list[Value]) -> Value | None:
    """The lanes in which a 32-bit operation lost bits, read as signed numbers; None for operations that cannot.

    Shifts count up to 24 places: longer ones are tricks with bits, not multiplications of an index.
    """
    operation, _, kind = name.rpartition(".")
    if kind not in ("s32", "u32", "b32") or operation not in ("add", "sub", "mul.lo", "mad.lo", "shl"):
        return None
    t = vec(I64)
    x, y = (b.sext(v, t) for v in operands[:2])
    if operation == "shl":
        amount = b.and_(y, splat(t, 31))
        small = b.icmp_unsigned("<=", b.zext(operands[1], t), splat(t, 24))
        exact = b.shl(x, amount)
    else:
        exact = {"add": b.add, "sub": b.sub, "mul.lo": b.mul, "mad.lo": b.mul}[operation](x, y)
        if operation == "mad.lo":
            exact = b.add(exact, b.sext(operands[2], t))
    lost = b.icmp_signed("!=", exact, b.sext(b.trunc(exact, vec(I32)), t))
    return b.and_(lost, small) if operation == "shl" else lost


def build() -> ir.Module:
    """The LLVM module: `straight_line`, `straight_line_tainted`, the products of tensor cores, ldmatrix."""
    module = ir.Module("straight_line")
    for tainted in (False, True):
        _Loop(module, tainted).build()
    for name in WARPGROUP_MMA:
        _mma_function(module, name)
    write_tensor_product(module)
    write_ldmatrix(module)
    return module


def _mma_function(module: ir.Module, name: str) -> None:
    """void mma_KIND(int64 operands): one mma m16n8k16 on the registers whose addresses lie there, D, A, B and C."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64]), name)
    entry, body = function.append_basic_block("entry"), function.append_basic_block("body")
    b = ir.IRBuilder(entry)
    b.branch(body)
    b.position_at_end(body)
    base = b.inttoptr(function.args[0], I64.as_pointer())
    write_mma(b, WARPGROUP_MMA[name], lambda i: b.load(b.gep(base, [ir.Constant(I64, i)]), align=8))
    b.ret_void()
