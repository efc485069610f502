"""Operands of PTX instructions as places: registers, immediates, addresses of variables and parameters.

`Operands`, the base class of the decoder, collects the micro-operations that its subclasses emit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.allocation import Group, share
from fuzz.devices.emulator.decode.special_registers import SPECIAL_REGISTERS
from fuzz.devices.emulator.isa.all_forms import FORMS
from fuzz.devices.emulator.isa.straight_line import NUMBERS, WIDTH
from fuzz.devices.emulator.ptx import Address, Instruction, Kernel, Module, Variable


class Unimplemented(NotImplementedError):
    """An instruction, or a form of one, that the emulator does not have."""


def unimplemented(i: Instruction, kernel: Kernel, why: str) -> Unimplemented:
    """The error for an instruction that is not emulated: one line, with its place in the source and in the PTX."""
    place = kernel.place(i)
    where = f"{f'{place}, ' if place else ''}PTX line {i.line}, kernel {kernel.name}"
    return Unimplemented(f"instruction {i.name!r} {why}: {i.text!r} ({where})")


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
    asynchronous  has instructions that access shared memory through the async proxy
    tensor_memory  has instructions that use tensor memory
    tracked    registers that some instruction might use while a wgmma does, see wgmma_hazards.py
    bulk       has bulk copies
    scoped     has fences or strong accesses of scope cta
    clustered  for a launch with clusters of several CTAs
    cluster_barrier  has instructions barrier.cluster
    limited    has instructions setmaxnreg
    cancels    has instructions clusterlaunchcontrol.try_cancel
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
    asynchronous: bool = False
    tracked: int = 0
    bulk: bool = False
    tensor_memory: bool = False
    scoped: bool = False
    clustered: bool = False
    cluster_barrier: bool = False
    limited: bool = False
    cancels: bool = False


BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32,
        "s32": 32, "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f16x2": 32, "bf16x2": 32}  # fmt: skip
SPACES = {"global": op.GLOBAL, "shared": op.SHARED, "shared::cta": op.SHARED, "local": op.LOCAL, "param": op.PARAM,
          "const": op.CONST, "param::entry": op.PARAM}  # fmt: skip
CACHE = re.compile(r"(ca|cg|cs|lu|cv|wb|wt|nc|weak|evict_\w+|no_allocate|L1::.*|L2::.*|unified)$")
OPERAND_BITS = {"b16": 16, "f16": 16, "bf16": 16, "b64": 64, "f64": 64, "f32x2": 64}


class Operands:
    """One kernel's registers, constants and variables as places; where micro-operations are collected."""

    now: Instruction  # the one being decoded

    def __init__(self, module: Module, kernel: Kernel, clustered: bool = False) -> None:
        self.module, self.kernel, self.clustered = module, kernel, clustered
        self.words: list[list[int]] = []
        self.source: list[Instruction] = []
        self.constant_places: dict[tuple[int, int], int] = {}
        self.constant_data = bytearray()
        self.specials: dict[str, int] = {}
        self.places: dict[str, int] = {}
        self.granule = self.smallest = 4
        self.lay_out_variables()
        widths = {name: BITS.get(kind, 1) for name, kind in kernel.registers.items()}
        self.shared_places = share(kernel, widths)
        self.place_of: dict[tuple[Group, int], int] = {}
        predicates = sum(t == "pred" for t in kernel.registers.values())
        self.next_predicate = 0
        self.size = -(-4 * (predicates + 8) // 128) * 128
        self.predicate_limit = self.size

    def lay_out_variables(self) -> None:
        self.variables: dict[str, tuple[int, int]] = {}  # name → (space, address)
        at = {"shared": op.RESERVED_SHARED, "local": 0}
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
        own = [*(v for v in self.module.variables if v.name in self.module.used), *self.kernel.variables]
        self.globals = [v for v in own if v.space in ("global", "const")]
        if len(self.globals) > op.GLOBALS:
            raise Unimplemented(f"kernel {self.kernel.name} has {len(self.globals)} variables; at most {op.GLOBALS}")
        for i, v in enumerate(self.globals):
            self.variables[v.name] = (SPACES[v.space], ((op.FIRST_SEGMENT + i) << op.SHIFT) + op.MIDDLE)
        self.param_places = {p.name: p for p in self.kernel.params}

    def table(self, values: list[int]) -> int:
        """Adds int32 values to the constants; returns their offset in bytes."""
        at = len(self.constant_data)
        data = b"".join(v.to_bytes(4, "little", signed=True) for v in values)
        self.constant_data += data.ljust(-(-len(data) // 128) * 128, b"\0")
        return at

    def fail(self, why: str = "is not emulated") -> Unimplemented:
        return unimplemented(self.now, self.kernel, why)

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
            if name in SPECIAL_REGISTERS:
                return SPECIAL_REGISTERS[name].bits
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
        elif self.shared_places.get(name) in self.place_of:
            place = self.place_of[self.shared_places[name]]
        else:
            place = self.size
            self.size += 256 if own == 64 else 128
            if name in self.shared_places:
                self.place_of[self.shared_places[name]] = place
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
            space, address = self.variables[x]
            if self.clustered and space == op.SHARED:
                return self.shared_address(address, width)
            return self.constant(address, width)
        if x in self.param_places:
            return self.constant(op.PARAM_WINDOW + self.param_places[x].offset, width)
        return self.register(x, width)

    def shared_address(self, offset: int, width: int) -> int:
        """The address of shared memory in a launch with clusters: it has the rank of the CTA."""
        name = f"%shared_{offset}_b32"
        self.kernel.registers.setdefault(name, "b32")
        self.form("or.b32", name, "%shared_base", offset)
        if width != 64:
            return self.register(name, 32)
        self.kernel.registers.setdefault(wide := f"%shared_{offset}_b64", "b64")
        self.form("cvt.u64.u32", wide, name)
        return self.register(wide, 64)

    def shared_cluster(self) -> int:
        """The space of `.shared::cluster`; where a CTA is a cluster of its own, it is its shared memory."""
        return op.SHARED_CLUSTER if self.clustered else op.SHARED

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
        for kind, given in zip(kinds, operands, strict=True):
            x = given
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
        if x.base in self.variables:
            return self.constant(self.variables[x.base][1], 64), x.offset, 1 << op.ADDRESS64
        return self.value(x.base, 64), x.offset, 1 << op.ADDRESS64
