"""PTX instructions → micro-operations: names become numbers, registers become places, immediates become constants.

An instruction that nothing here knows raises Unimplemented with its text, line and kernel; it is never skipped. One
instruction may become several micro-operations (vector moves, setp with two results); `lines` leads back to the PTX.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.dispatch import NUMBERS, WIDTH
from fuzz.devices.emulator.forms import FORMS
from fuzz.devices.emulator.mma import MATRIX
from fuzz.devices.emulator.ptx import Address, Instruction, Kernel, Module, Variable


class Unimplemented(NotImplementedError):
    """An instruction, or a form of one, that the emulator does not have."""


@dataclass(frozen=True)
class Program:
    """A kernel ready to run.

    code       int32 (n, 16), see `opcodes.py`; `source[i]` is the Instruction that micro-operation i came from
    constants  uint8, operands given as immediates, spread over 32 lanes
    registers  bytes of one warp's registers
    specials   special register → place, filled in when a CTA starts
    shared     bytes of static shared memory; the dynamic part begins at `dynamic`
    local      bytes of local memory per thread
    granule    bytes of the smallest access to shared memory, at most 4
    smallest   the same for global memory
    """

    kernel: Kernel
    code: np.ndarray
    constants: np.ndarray
    registers: int
    specials: dict[str, int]
    places: dict[str, int]
    source: list[Instruction]
    shared: int
    dynamic: int
    local: int
    params: int
    granule: int
    smallest: int
    globals: list[Variable]


SPECIALS = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyzw]$|%(laneid|warpid|nwarpid|smid|nsmid"
    r"|gridid|lanemask_(eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size|aggr_smem_size|cluster_ctarank"
    r"|cluster_nctarank)$"
)
WIDE_SPECIALS = ("%gridid",)
BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32,
        "s32": 32, "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f16x2": 32, "bf16x2": 32}  # fmt: skip
SPACES = {"global": op.GLOBAL, "shared": op.SHARED, "shared::cta": op.SHARED, "local": op.LOCAL, "param": op.PARAM,
          "const": op.CONST, "param::entry": op.PARAM}  # fmt: skip
CACHE = re.compile(r"(ca|cg|cs|lu|cv|wb|wt|nc|weak|evict_\w+|no_allocate|L1::.*|L2::.*|unified)$")
OPERAND_BITS = {"b16": 16, "f16": 16, "bf16": 16, "b64": 64, "f64": 64, "f32x2": 64}


class Decoder:
    """Decodes one kernel; the methods named `op_…` handle one family each."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module, self.kernel = module, kernel
        self.words: list[list[int]] = []
        self.source: list[Instruction] = []
        self.constant_places: dict[tuple[int, int], int] = {}
        self.constant_data = bytearray()
        self.specials: dict[str, int] = {}
        self.places: dict[str, int] = {}
        self.granule = self.smallest = 4
        self.lay_out_variables()
        predicates = sum(t == "pred" for t in kernel.registers.values())
        self.next_predicate = 0
        self.size = -(-4 * (predicates + 8) // 128) * 128
        self.predicate_limit = self.size

    def lay_out_variables(self) -> None:
        self.variables: dict[str, tuple[int, int]] = {}  # name → (space, address)
        at = {"shared": 0, "local": 0}
        dynamic = []
        for v in [*self.module.variables, *self.kernel.variables]:
            if v.space == "shared" and v.size == 0:
                dynamic.append(v)
            elif v.space in at:
                at[v.space] = -(-at[v.space] // v.align) * v.align
                self.variables[v.name] = (SPACES[v.space], at[v.space])
                at[v.space] += v.size
        boundary = max((v.align for v in dynamic), default=16)
        self.shared, self.local = at["shared"], at["local"]
        self.dynamic = -(-self.shared // boundary) * boundary
        for v in dynamic:
            self.variables[v.name] = (op.SHARED, self.dynamic)
        self.globals = [v for v in [*self.module.variables, *self.kernel.variables] if v.space in ("global", "const")]
        for i, v in enumerate(self.globals):
            self.variables[v.name] = (SPACES[v.space], ((op.FIRST_SEGMENT + i) << op.SHIFT) + op.MIDDLE)
        self.param_places = {p.name: p for p in self.kernel.params}

    # ---- operands -------------------------------------------------------------------------------------------------
    def fail(self, why: str = "is not implemented") -> Unimplemented:
        i = self.now
        return Unimplemented(f"instruction {i.name!r} {why}: {i.text!r} (PTX line {i.line}, kernel {self.kernel.name})")

    def constant(self, value: int, width: int) -> int:
        value %= 1 << width
        key = (value, 64 if width == 64 else 32)
        if key not in self.constant_places:
            self.constant_places[key] = len(self.constant_data)
            self.constant_data += value.to_bytes(key[1] // 8, "little") * 32
        return ~self.constant_places[key]

    def width_of(self, name: str) -> int:
        kind = self.kernel.registers.get(name)
        if kind is None:
            if SPECIALS.match(name):
                return 64 if name in WIDE_SPECIALS else 32
            raise self.fail(f"names an unknown operand {name!r}")
        if kind == "pred":
            return 1
        if kind not in BITS:
            raise self.fail(f"has a register of type {kind}")
        return BITS[kind]

    def register(self, name: str, width: int) -> int:
        """The place of a register; `width` (1, 16, 32, 64) must fit its declaration."""
        own = self.width_of(name)
        if own != width and not ({own, width} <= {16, 32} or (own == 8 and width == 16)):
            raise self.fail(f"wants {width} bits of {name} ({own} bits)")
        if name in self.places:
            return self.places[name]
        if own == 1:
            place = 4 * self.next_predicate
            self.next_predicate += 1
            assert place < self.predicate_limit
        else:
            place = self.size
            self.size += 256 if own == 64 else 128
        self.places[name] = place
        if name not in self.kernel.registers:
            self.specials[name] = place
        return place

    def temporary(self, kind: str) -> str:
        name = f"%temporary_{kind}"
        self.kernel.registers.setdefault(name, kind)
        return name

    def value(self, x: object, width: int) -> int:
        """An operand to read: a register, an immediate, or the address of a variable."""
        if isinstance(x, tuple) and len(x) == 2 and x[0] in ("f32", "f64"):
            bits = int(x[1])
            if (x[0] == "f64") != (width == 64):
                raise self.fail("has an immediate of another width")
            return self.constant(bits, width)
        if isinstance(x, int):
            return self.constant(x, width)
        if not isinstance(x, str):
            raise self.fail(f"has an operand {x!r}")
        if x in self.variables:
            _space, address = self.variables[x]
            return self.constant(address, width)
        if x in self.param_places:
            return self.constant(op.PARAM_WINDOW + self.param_places[x].offset, width)
        return self.register(x, width)

    def emit(self, number: int, *words: int) -> None:
        i = self.now
        guard = -1
        if i.guard is not None:
            guard = 2 * self.register(i.guard, 1) + i.negated
        row = [number, guard, *words]
        assert len(row) <= WIDTH
        self.words.append(row + [0] * (WIDTH - len(row)))
        self.source.append(i)

    def form(self, name: str, *operands: object) -> None:
        """A row of the form table."""
        form = FORMS[name]
        if len(operands) != 1 + len(form.operands):
            raise self.fail("has another number of operands than the form table")
        kinds = (form.result, *form.operands)
        words = []
        for kind, x in zip(kinds, operands, strict=True):
            if kind == "p":
                if isinstance(x, int):
                    words.append(self.constant(-bool(x), 32))
                    continue
                if not isinstance(x, str):
                    raise self.fail(f"has a predicate {x!r}")
                if x.startswith("!"):
                    flipped = self.temporary("pred")
                    self.form("not.pred", flipped, x[1:])
                    x = flipped
                words.append(self.register(x, 1))
            else:
                words.append(self.value(x, OPERAND_BITS.get(kind, 32)))
        self.emit(NUMBERS[name], *words)

    def address(self, x: object) -> tuple[int, int, int]:
        """(place, immediate, flags) of an address operand."""
        if not isinstance(x, Address):
            raise self.fail(f"has no address in {x!r}")
        if x.base is None:
            return self.constant(x.offset, 64), 0, 1 << op.ADDRESS64
        if x.base in self.kernel.registers and self.width_of(x.base) == 32:
            return self.register(x.base, 32), x.offset, 0
        if x.base in self.param_places:
            return self.constant(self.param_places[x.base].offset, 64), x.offset, 1 << op.ADDRESS64
        return self.value(x.base, 64), x.offset, 1 << op.ADDRESS64

    # ---- program --------------------------------------------------------------------------------------------------
    def program(self) -> Program:
        starts = []
        for i in self.kernel.instructions:
            self.now = i
            starts.append(len(self.words))
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
        params = self.kernel.params[-1].offset + self.kernel.params[-1].size if self.kernel.params else 0
        constants = np.frombuffer(bytes(self.constant_data) or bytes(128), dtype=np.uint8)
        return Program(
            self.kernel, code, constants, self.size, self.specials, self.places, self.source,
            self.shared, self.dynamic, self.local, params, self.granule, self.smallest, self.globals,
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

    def set_predicates(self, i: Instruction) -> None:
        """setp with a second result, the complement."""
        p, q = i.operands[0]  # type: ignore[misc]
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
        p, q = d if isinstance(d, tuple) else (d, "_")
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

    # ---- control flow ---------------------------------------------------------------------------------------------
    def op_bra(self, i: Instruction) -> None:
        self.emit(op.BRANCH, 0)

    def op_ret(self, i: Instruction) -> None:
        self.emit(op.EXIT)

    op_exit = op_ret

    def op_trap(self, i: Instruction) -> None:
        self.emit(op.TRAP)

    def op_nanosleep(self, i: Instruction) -> None:
        self.emit(op.SLEEP)

    def op_cvta(self, i: Instruction) -> None:
        """Address spaces as windows of the generic one; global addresses are generic already."""
        d, x = i.operands
        width = int(i.name[-2:])
        window = {"shared": op.SHARED_WINDOW, "shared::cta": op.SHARED_WINDOW, "local": op.LOCAL_WINDOW}
        space = i.name.split(".")[2 if ".to." in i.name else 1]
        if space in window and width == 64:
            sign = "sub" if ".to." in i.name else "add"
            self.form(f"{sign}.s64", d, x, window[space])
        elif space in ("global", "const", "param") and width == 64:
            self.form("mov.b64", d, x)
        else:
            raise self.fail()

    def op_isspacep(self, i: Instruction) -> None:
        """isspacep.shared / .local: is a generic address in the window?"""
        window = {"shared": op.SHARED_WINDOW, "shared::cta": op.SHARED_WINDOW, "local": op.LOCAL_WINDOW}.get(i.name[9:])
        if window is None:
            raise self.fail()
        high = self.temporary("b64")
        self.form("shr.u64", high, i.operands[1], op.SHIFT)
        self.form("setp.eq.b64", i.operands[0], high, window >> op.SHIFT)

    # ---- memory ---------------------------------------------------------------------------------------------------
    def memory_flags(self, i: Instruction, parts: list[str]) -> tuple[int, int, str]:
        """(flags, vector length, type) from the words of ld, st, atom and red."""
        flags, count, kind, space = 0, 1, "", op.GENERIC
        for part in parts:
            if part in SPACES:
                space = SPACES[part]
            elif part in BITS:
                kind = part
            elif part in ("v2", "v4", "v8"):
                count = int(part[1])
            elif part in ("volatile", "relaxed", "mmio"):
                flags |= 1 << op.STRONG
            elif part == "acquire":
                flags |= (1 << op.STRONG) | (1 << op.ACQUIRE)
            elif part == "release":
                flags |= (1 << op.STRONG) | (1 << op.RELEASE)
            elif part == "acq_rel":
                flags |= (1 << op.STRONG) | (1 << op.RELEASE) | (1 << op.ACQUIRE)
            elif part in ("cta", "gpu", "sys", "cluster") or CACHE.match(part):
                continue
            else:
                raise self.fail(f"has the unknown part {part!r}")
        if not kind:
            raise self.fail()
        size = BITS[kind] // 8
        if space in (op.SHARED, op.GENERIC):
            self.granule = min(self.granule, size)
        if space in (op.GLOBAL, op.GENERIC):
            self.smallest = min(self.smallest, size)
        flags |= count << op.COUNT | size << op.SIZE | space << op.SPACE | (kind[0] == "s") << op.SIGNED
        return flags, count, kind

    def op_ld(self, i: Instruction) -> None:
        flags, count, _ = self.memory_flags(i, i.name.split(".")[1:])
        targets = i.operands[0] if isinstance(i.operands[0], tuple) else (i.operands[0],)
        self.transfer(op.LOAD, i, flags, count, targets, i.operands[1])

    op_ldu = op_ld

    def op_st(self, i: Instruction) -> None:
        flags, count, _kind = self.memory_flags(i, i.name.split(".")[1:])
        x = i.operands[1]
        vector = isinstance(x, tuple) and x[0] not in ("f32", "f64")
        self.transfer(op.STORE, i, flags, count, x if vector else (x,), i.operands[0])  # type: ignore[arg-type]

    def transfer(
        self, number: int, i: Instruction, flags: int, count: int, registers: tuple[object, ...], at: object
    ) -> None:
        if len(registers) != count:
            raise self.fail("has another number of registers than elements")
        place, immediate, wide = self.address(at)
        size = flags >> op.SIZE & 255
        widths = {self.width_of(r) for r in registers if isinstance(r, str) and r != "_" and r not in self.variables}
        width = widths.pop() if widths else max(16, 8 * size)
        if widths or 8 * size > width:
            raise self.fail("has registers of different or too small widths")
        if width == 64:
            flags |= 1 << op.WIDE
        elif width == 16:
            flags |= 1 << op.HALF
        words = [op.ABSENT if r == "_" else self.value(r, width) for r in registers]
        self.emit(number, flags | wide, place, immediate, *words)

    def op_atom(self, i: Instruction) -> None:
        self.atomic(i, i.operands[0], i.operands[1], i.operands[2:])

    def op_red(self, i: Instruction) -> None:
        self.atomic(i, None, i.operands[0], i.operands[1:])

    def atomic(self, i: Instruction, d: object, at: object, values: tuple[object, ...]) -> None:
        operations = {"add": op.ADD, "min": op.MIN, "max": op.MAX, "inc": op.INC, "dec": op.DEC, "and": op.AND, "or": op.OR,
                      "xor": op.XOR, "exch": op.EXCH, "cas": op.CAS}  # fmt: skip
        types = {"u32": op.T_U32, "b32": op.T_U32, "s32": op.T_S32, "u64": op.T_U64, "b64": op.T_U64, "s64": op.T_S64,
                 "f32": op.T_F32, "f64": op.T_F64, "f16": op.T_F16, "bf16": op.T_BF16, "f16x2": op.T_F16X2,
                 "bf16x2": op.T_BF16X2}  # fmt: skip
        parts = [p for p in i.name.split(".")[1:] if p != "noftz"]
        operation = [p for p in parts if p in operations]
        if len(operation) != 1:
            raise self.fail()
        rest = [p for p in parts if p not in operations]
        flags, count, kind = self.memory_flags(i, rest)
        flags |= 1 << op.STRONG
        if kind not in types or (types[kind] > op.T_F64 and operation != ["add"]):
            raise self.fail()
        place, immediate, wide = self.address(at)
        width = max(BITS[kind], 16)
        flags |= (width == 64) << op.WIDE
        if count > 1:
            self.atomic_vector(
                i, d, values, flags | wide, place, immediate, count, kind, width, operations[operation[0]]
            )
            return
        target = op.ABSENT if d in (None, "_") else self.register(str(d), width)
        words = [self.value(v, width) for v in values] + [op.ABSENT]
        self.emit(op.ATOMIC, flags | wide, place, immediate, target, words[0], words[1],
                  operations[operation[0]] << 8 | types[kind])  # fmt: skip

    def atomic_vector(self, i: Instruction, d: object, values: tuple[object, ...], flags: int, place: int, immediate: int,
                      count: int, kind: str, width: int, operation: int) -> None:  # fmt: skip
        """A vector atomic is one atomic per element (PTX promises no more), the first carrying the vector's order."""
        types = {"f32": op.T_F32, "f16": op.T_F16, "bf16": op.T_BF16, "f16x2": op.T_F16X2, "bf16x2": op.T_BF16X2}
        if kind not in types or not isinstance(values[0], tuple):
            raise self.fail()
        for n, v in enumerate(values[0]):
            target = op.ABSENT if d is None else self.register(str(d[n]), width)  # type: ignore[index]
            single = flags & ~(255 << op.COUNT) | 1 << op.COUNT
            self.emit(op.ATOMIC, single, place, immediate + n * BITS[kind] // 8, target, self.value(v, width), op.ABSENT,
                      operation << 8 | types[kind])  # fmt: skip

    def op_ldmatrix(self, i: Instruction) -> None:
        m = re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", i.name)
        self.matrix(op.LDMATRIX, i, m, i.operands[0], i.operands[1])

    def op_stmatrix(self, i: Instruction) -> None:
        m = re.fullmatch(r"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", i.name)
        self.matrix(op.STMATRIX, i, m, i.operands[1], i.operands[0])

    def matrix(self, number: int, i: Instruction, m: re.Match[str] | None, registers: object, at: object) -> None:
        if m is None or i.guard:
            raise self.fail()
        count = int(m.group(1))
        names = registers if isinstance(registers, tuple) else (registers,)
        if len(names) != count:
            raise self.fail("has another number of registers than matrices")
        place, immediate, wide = self.address(at)
        words = [self.value(r, 32) for r in names] + [op.ABSENT] * (4 - count)
        self.emit(number, op.SHARED << op.SPACE | wide, place, immediate, *words, count, int(m.group(2) is not None))

    def op_cp(self, i: Instruction) -> None:
        name = i.name
        if name == "cp.async.commit_group":
            return self.emit(op.CP_COMMIT)
        if name == "cp.async.wait_group":
            return self.emit(op.CP_WAIT, int(i.operands[0]))  # type: ignore[call-overload]
        if name == "cp.async.wait_all":
            return self.emit(op.CP_WAIT, -1)
        m = re.fullmatch(r"cp\.async\.(ca|cg)\.shared(?:::cta)?\.global((?:\.L2::\w+)*)", name)
        if not m:
            raise self.fail()
        size = int(i.operands[2])  # type: ignore[call-overload]
        if size not in (4, 8, 16):
            raise self.fail(f"copies {size} bytes")
        to, to_immediate, to_wide = self.address(i.operands[0])
        at, at_immediate, at_wide = self.address(i.operands[1])
        rest = list(i.operands[3:])
        if ".L2::cache_hint" in m.group(2):
            rest = rest[:-1]
        source = self.value(rest[0], 32) if rest else op.ABSENT
        if not at_wide:
            raise self.fail("has a global address of 32 bits")
        return self.emit(op.CP_ASYNC, to_wide, to, to_immediate, at, at_immediate, size, source)

    def op_prefetch(self, i: Instruction) -> None:
        self.emit(op.NOTHING)

    op_prefetchu = op_prefetch
    op_applypriority = op_prefetch
    op_discard = op_prefetch

    def op_createpolicy(self, i: Instruction) -> None:
        """A cache policy changes no result."""
        self.form("mov.b64", i.operands[0], 0)

    def op_fence(self, i: Instruction) -> None:
        parts = i.name.split(".")[1:]
        if "proxy" in parts or not set(parts) <= {
            "acq_rel",
            "sc",
            "acquire",
            "release",
            "cta",
            "gpu",
            "sys",
            "cluster",
            "fence",
        }:
            raise self.fail()
        self.emit(op.FENCE, 0 if "cta" in parts else (2 if "sys" in parts else 1))

    def op_membar(self, i: Instruction) -> None:
        self.emit(op.FENCE, {"cta": 0, "gl": 1, "sys": 2}[i.name.split(".")[-1]])

    # ---- barriers and exchanges -----------------------------------------------------------------------------------
    def op_bar(self, i: Instruction) -> None:
        parts = [p for p in i.name.split(".")[1:] if p not in ("cta", "aligned")]
        if parts[:2] == ["warp", "sync"]:
            return self.emit(op.WARP_BARRIER, self.value(i.operands[0], 32))
        kinds = {"sync": op.SYNC, "arrive": op.ARRIVE}
        reductions = {"and": op.RED_AND, "or": op.RED_OR, "popc": op.RED_POPC}
        x = list(i.operands)
        if parts[0] in kinds:
            count = self.value(x[1], 32) if len(x) > 1 else op.ABSENT
            return self.emit(op.BARRIER, kinds[parts[0]], self.value(x[0], 32), count, op.ABSENT, 0, op.ABSENT)
        if parts[0] == "red" and parts[1] in reductions:
            predicate = str(x[-1])
            negated = predicate.startswith("!")
            width = 1 if parts[2] == "pred" else 32
            count = self.value(x[2], 32) if len(x) == 4 else op.ABSENT
            return self.emit(op.BARRIER, reductions[parts[1]], self.value(x[1], 32), count,
                             self.register(predicate.lstrip("!"), 1), int(negated), self.register(str(x[0]), width))  # fmt: skip
        raise self.fail()

    op_barrier = op_bar

    def op_shfl(self, i: Instruction) -> None:
        m = re.fullmatch(r"shfl\.sync\.(up|down|bfly|idx)\.b32", i.name)
        if not m:
            raise self.fail()
        d = i.operands[0]
        target, predicate = d if isinstance(d, tuple) else (d, None)
        mode = {"up": op.UP, "down": op.DOWN, "bfly": op.BFLY, "idx": op.IDX}[m.group(1)]
        self.emit(op.SHUFFLE, mode, self.register(str(target), 32),
                  op.ABSENT if predicate in (None, "_") else self.register(str(predicate), 1),
                  *(self.value(x, 32) for x in i.operands[1:5]))  # fmt: skip

    def op_vote(self, i: Instruction) -> None:
        m = re.fullmatch(r"vote\.sync\.(all|any|uni|ballot)\.(pred|b32)", i.name)
        if not m:
            raise self.fail()
        mode = {"all": op.ALL, "any": op.ANY, "uni": op.UNI, "ballot": op.BALLOT}[m.group(1)]
        p = str(i.operands[1])
        self.emit(op.VOTE, mode, self.register(str(i.operands[0]), 32 if mode == op.BALLOT else 1),
                  self.register(p.lstrip("!"), 1), int(p.startswith("!")), self.value(i.operands[2], 32))  # fmt: skip

    def op_redux(self, i: Instruction) -> None:
        m = re.fullmatch(r"redux\.sync\.(add|min|max|and|or|xor)\.([usb])32", i.name)
        if not m:
            raise self.fail()
        code = ["add", "min", "max", "and", "or", "xor"].index(m.group(1)) * 2 + (m.group(2) == "s")
        self.emit(op.REDUX, code, self.register(str(i.operands[0]), 32), self.value(i.operands[1], 32),
                  self.value(i.operands[2], 32))  # fmt: skip

    def op_match(self, i: Instruction) -> None:
        m = re.fullmatch(r"match\.(any|all)\.sync\.b(32|64)", i.name)
        if not m:
            raise self.fail()
        d = i.operands[0]
        target, predicate = d if isinstance(d, tuple) else (d, None)
        width = int(m.group(2))
        self.emit(op.MATCH, int(m.group(1) == "all"), self.register(str(target), 32),
                  op.ABSENT if predicate in (None, "_") else self.register(str(predicate), 1),
                  self.value(i.operands[1], width), int(width == 64), self.value(i.operands[2], 32))  # fmt: skip

    def op_activemask(self, i: Instruction) -> None:
        self.emit(op.ACTIVE_MASK, self.register(str(i.operands[0]), 32))

    def op_elect(self, i: Instruction) -> None:
        d = i.operands[0]
        if not isinstance(d, tuple):
            raise self.fail()
        target = op.ABSENT if d[0] == "_" else self.register(str(d[0]), 32)
        self.emit(op.ELECT, target, self.register(str(d[1]), 1), self.value(i.operands[1], 32))


def decode(module: Module, kernel: Kernel) -> Program:
    """The micro-operations of `kernel`. Raises Unimplemented for an instruction that the emulator does not have."""
    return Decoder(module, kernel).program()
