"""Mutation operators: small changes of one line of PTX that a kernel's author, or a compiler, could have made.

An operator is a function from a `Line` to the texts that may stand in its place; what is changed keeps its lines, so
that the line numbers of a changed kernel are those of the clean one. What a change does to the kernel is not asked:
whether it can be run is found out by decoding it (`sampling.py`), whether it changes an answer by running it
(`trial.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fuzz.devices.emulator.ptx import split

_LINE = re.compile(r"\s*(?:(@!?%\w+)\s+)?([a-z][\w.:]*)\s*([^;]*);\s*$")
_NUMBER = re.compile(r"-?\d+$")
_FLOAT = re.compile(r"0f[0-9A-F]{8}$")
_ADDRESS = re.compile(r"\[([^\]+]+)(?:\+(-?\d+))?\]$")


@dataclass(frozen=True)
class Line:
    """One instruction as it stands in a PTX file, from line `number` on, on `span` lines: its guard with the @ (""
    without), name and operands."""

    number: int
    guard: str
    name: str
    operands: tuple[str, ...]
    span: int = 1

    @property
    def text(self) -> str:
        """PTX text, without the indentation."""
        return self.made()

    def made(self, *, name: str | None = None, guard: str | None = None, at: int = -1, operand: str = "") -> str:
        """Copy with another name or guard, or with another operand `at` its place."""
        operands = [operand if i == at else x for i, x in enumerate(self.operands)]
        start = self.guard if guard is None else guard
        return f"{start + ' ' if start else ''}{name or self.name} {', '.join(operands)}".strip() + ";"

    @property
    def parts(self) -> list[str]:
        """The words of the name."""
        return self.name.split(".")


Operator = Callable[[Line], Iterator[str]]
NOTHING = ";"  # an instruction that was left out


def lines(text: str) -> list[Line]:
    """The instructions of a PTX file that begin a line of their own; the others are not touched."""
    found, rows = [], [row.partition("//")[0] for row in text.splitlines()]
    for number, row in enumerate(rows, 1):
        if not re.match(r"\s*[a-z@]", row):
            continue
        span = next((n for n, one in enumerate(rows[number - 1 :], 1) if one.rstrip().endswith(";")), 0)
        m = _LINE.match(" ".join(" ".join(rows[number - 1 : number - 1 + span]).split()))
        if m:
            found.append(Line(number, m.group(1) or "", m.group(2), tuple(split(m.group(3))), span))
    return found


def changed(text: str, number: int, span: int, after: str) -> str:
    """The PTX with another instruction on the `span` lines from `number` on."""
    rows = text.splitlines(keepends=True)
    rows[number - 1 : number - 1 + span] = [f"\t{after}\n", *["\n"] * (span - 1)]
    return "".join(rows)


# ---- order: barriers, waits, fences, atomics ------------------------------------------------------------------------
def barrier_dropped(x: Line) -> Iterator[str]:
    """bar.sync is left out."""
    if x.parts[0] in ("bar", "barrier", "fence", "membar"):
        yield NOTHING


def wait_weakened(x: Line) -> Iterator[str]:
    """cp.async.wait_group lets one more group stay pending."""
    if x.name == "cp.async.wait_group":
        yield x.made(at=0, operand=str(int(x.operands[0]) + 1))


def wait_dropped(x: Line) -> Iterator[str]:
    """cp.async.wait_group is left out."""
    if x.name == "cp.async.wait_group":
        yield NOTHING


def commit_dropped(x: Line) -> Iterator[str]:
    """cp.async.commit_group is left out: the copies belong to the next group."""
    if x.name == "cp.async.commit_group":
        yield NOTHING


def order_relaxed(x: Line) -> Iterator[str]:
    """An ordered release, or an acquire, is relaxed."""
    for order in ("release", "acquire", "acq_rel"):
        if order in x.parts:
            yield x.made(name=".".join("relaxed" if part == order else part for part in x.parts))


def acquire_plain(x: Line) -> Iterator[str]:
    """A load that acquires is a plain one."""
    if x.name.startswith("ld.acquire."):
        yield x.made(name="ld." + ".".join(x.parts[3:]))


def atomic_plain(x: Line) -> Iterator[str]:
    """An atomic add is a load, an add and a store."""
    if x.parts[0] not in ("atom", "red") or "add" not in x.parts or x.guard:
        return
    kind = x.parts[-1]
    wide = "v4" in x.parts
    result, at, value = ("", *x.operands) if x.parts[0] == "red" else x.operands
    values = split(value.strip("{}")) if wide else [value]
    base, offset = address(at)
    steps = [f"{{ .reg .{'f32' if kind == 'f32' else 'b32'} %plain;"]
    for i, v in enumerate(values):
        place = f"[{base}+{offset + 4 * i}]"
        steps.append(f"ld.global.{kind} %plain, {place};")
        if result:
            steps.append(f"mov.b32 {result}, %plain;")
        steps.append(f"add.{'s32' if kind == 'u32' else kind} %plain, %plain, {v}; st.global.{kind} {place}, %plain;")
    yield " ".join([*steps, "}"])


# ---- memory ---------------------------------------------------------------------------------------------------------
def store_dropped(x: Line) -> Iterator[str]:
    """A store, or an atomic add without a result, is left out."""
    if x.parts[0] in ("st", "stmatrix", "red"):
        yield NOTHING


def copy_dropped(x: Line) -> Iterator[str]:
    """An asynchronous copy is left out."""
    if x.name.startswith("cp.async.c") and len(x.operands) >= 3:
        yield NOTHING


def copy_unguarded(x: Line) -> Iterator[str]:
    """An asynchronous copy copies all its bytes where it would fill up with zeros."""
    if x.name.startswith("cp.async.c") and len(x.operands) == 4 and not _NUMBER.match(x.operands[3]):
        yield x.made(at=3, operand=x.operands[2])


def offset_shifted(x: Line) -> Iterator[str]:
    """An address is one access too far, or too near."""
    if x.parts[0] not in ("ld", "st", "cp", "ldmatrix", "stmatrix", "red", "atom") or "param" in x.parts:
        return
    for i, one in enumerate(x.operands):
        if _ADDRESS.match(one):
            base, offset = address(one)
            size = 16 if x.parts[0] in ("cp", "ldmatrix", "stmatrix") else width(x)
            for by in (size, -size):
                yield x.made(at=i, operand=f"[{base}+{offset + by}]")


def transposed(x: Line) -> Iterator[str]:
    """A matrix is loaded or stored transposed, or not transposed."""
    if x.parts[0] in ("ldmatrix", "stmatrix"):
        parts = [part for part in x.parts if part != "trans"]
        if len(parts) == len(x.parts):
            parts.insert(parts.index("shared"), "trans")
        yield x.made(name=".".join(parts))


def parameter_wrong(x: Line) -> Iterator[str]:
    """A neighbour of the parameter is read in its place."""
    m = re.fullmatch(r"\[(.*_param_)(\d+)\]", x.operands[-1]) if x.name.startswith("ld.param.") else None
    if m:
        for by in (1, -1):
            yield x.made(at=len(x.operands) - 1, operand=f"[{m.group(1)}{int(m.group(2)) + by}]")


# ---- guards and comparisons -----------------------------------------------------------------------------------------
def guard_dropped(x: Line) -> Iterator[str]:
    """A predicated instruction is always executed."""
    if x.guard:
        yield x.made(guard="")


def guarded_dropped(x: Line) -> Iterator[str]:
    """A predicated instruction is never executed."""
    if x.guard:
        yield NOTHING


def guard_negated(x: Line) -> Iterator[str]:
    """A predicated instruction is executed where it must not be."""
    if x.guard:
        yield x.made(guard="@" + x.guard[2:] if x.guard.startswith("@!") else "@!" + x.guard[1:])


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_SHIFTED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}


def compare_flipped(x: Line) -> Iterator[str]:
    """A comparison is negated."""
    if x.parts[0] == "setp" and x.parts[1] in _OPPOSITE:
        yield x.made(name=".".join(["setp", _OPPOSITE[x.parts[1]], *x.parts[2:]]))


def compare_shifted(x: Line) -> Iterator[str]:
    """A comparison takes in the equal, or leaves it out."""
    if x.parts[0] == "setp" and x.parts[1] in _SHIFTED:
        yield x.made(name=".".join(["setp", _SHIFTED[x.parts[1]], *x.parts[2:]]))


def bound_shifted(x: Line) -> Iterator[str]:
    """A comparison's immediate is one more, or one less."""
    if x.parts[0] == "setp":
        yield from _off_by_one(x)


def sign_changed(x: Line) -> Iterator[str]:
    """Signed where it was unsigned, or the reverse, where that matters."""
    other = {"s32": "u32", "u32": "s32"}
    signed = x.parts[0] in ("shr", "max", "min", "div") or x.name.startswith(("mul.wide", "setp.l", "setp.g"))
    if signed and x.parts[-1] in other:
        yield x.made(name=".".join([*x.parts[:-1], other[x.parts[-1]]]))
    if x.name in ("cvt.s64.s32", "cvt.u64.u32"):
        yield x.made(name={"cvt.s64.s32": "cvt.u64.u32", "cvt.u64.u32": "cvt.s64.s32"}[x.name])


# ---- arithmetic -----------------------------------------------------------------------------------------------------
_INTEGER = ("add", "sub", "mul", "mad", "and", "or", "xor", "shl", "shr", "div", "min", "max", "selp", "mov")


def immediate_off_by_one(x: Line) -> Iterator[str]:
    """An immediate of integer arithmetic, a selection or a move is one more, or one less."""
    if x.parts[0] in _INTEGER:
        yield from _off_by_one(x)


def constant_wrong(x: Line) -> Iterator[str]:
    """A floating-point constant is twice as much, or has the other sign."""
    for i, one in enumerate(x.operands):
        if _FLOAT.match(one) and int(one[2:], 16) & 0x7FFFFFFF:
            bits = int(one[2:], 16)
            yield x.made(at=i, operand=f"0f{bits ^ 0x80000000:08X}")
            if 0 < bits & 0x7F800000 < 0x7F000000:
                yield x.made(at=i, operand=f"0f{bits + 0x800000:08X}")


def operands_swapped(x: Line) -> Iterator[str]:
    """The operands of something that does not commute, in the other order."""
    first = x.parts[0]
    orders = first in ("sub", "div", "selp") or x.name.startswith(("setp.l", "setp.g", "cvt.rn.bf16x2", "cvt.rn.f16x2"))
    if orders and len(x.operands) >= 3:
        a, b = x.operands[1:3]
        if a != b:
            yield Line(x.number, x.guard, x.name, (x.operands[0], b, a, *x.operands[3:])).text


def fragment_swapped(x: Line) -> Iterator[str]:
    """Two registers of one operand of a matrix product, a matrix load or a wide access change places."""
    if x.parts[0] in ("mma", "ldmatrix", "stmatrix", "st", "ld"):
        for i, one in enumerate(x.operands):
            registers = split(one[1:-1]) if one.startswith("{") else []
            if len(registers) > 1 and registers[0] != registers[1]:
                swapped = [registers[1], registers[0], *registers[2:]]
                yield x.made(at=i, operand="{" + ", ".join(swapped) + "}")


_REPLACED = {
    "add": "sub",
    "sub": "add",
    "max": "min",
    "min": "max",
    "and": "or",
    "or": "and",
    "xor": "or",
    "shl": "shr",
    "shr": "shl",
}


def operation_replaced(x: Line) -> Iterator[str]:
    """Another operation of the same operands."""
    first, rest = x.parts[0], x.parts[1:]
    if first in _REPLACED and not (first in ("add", "sub") and rest[-1] == "f32x2"):
        other = _REPLACED[first]
        kind = rest[-1]
        if other == "shl":
            kind = "b" + kind[1:]
        elif first == "shl":
            kind = "u" + kind[1:]
        yield x.made(name=".".join([other, *rest[:-1], kind]))
    if x.name.startswith("vote.sync.any"):
        yield x.made(name=x.name.replace(".any.", ".all."))
    if x.name.startswith("vote.sync.all"):
        yield x.made(name=x.name.replace(".all.", ".any."))
    if x.name == "add.f32x2":
        yield x.made(name="sub.f32x2")
    if x.name == "sub.f32x2":
        yield x.made(name="add.f32x2")


def function_dropped(x: Line) -> Iterator[str]:
    """A function's argument in place of its value: exp2, log2, a reciprocal, a negation, a rounding."""
    if x.parts[0] in ("ex2", "lg2", "rcp", "neg", "not", "tanh", "abs") and len(x.operands) == 2:
        kind = "pred" if x.parts[-1] == "pred" else "b" + x.parts[-1][1:]
        yield x.made(name=f"mov.{kind}")


def nan_dropped(x: Line) -> Iterator[str]:
    """A maximum forgets NaN."""
    if "NaN" in x.parts:
        yield x.made(name=".".join(part for part in x.parts if part != "NaN"))


def lane_wrong(x: Line) -> Iterator[str]:
    """A value comes from another lane, or a reduction misses a step."""
    if x.parts[0] == "shfl":
        if x.operands[2].isdigit():
            lane = int(x.operands[2])
            yield x.made(at=2, operand=str(lane * 2 if "bfly" in x.parts else lane + 1))
            if "bfly" in x.parts:
                yield x.made(at=2, operand="0")
        target = x.operands[0].partition("|")[0]
        yield f"mov.b32 {target}, {x.operands[1]};"


_VALUES = ("mma", "ex2", "fma", "mul", "add", "sub", "mad", "max", "min", "cvt", "ld", "ldmatrix", "selp", "mov", "and",
           "or", "xor", "shl", "shr", "setp", "not", "neg", "rcp", "lg2", "div")  # fmt: skip


def instruction_dropped(x: Line) -> Iterator[str]:
    """An instruction that computes or loads something is left out: what was in its register stays there."""
    if x.parts[0] in _VALUES:
        yield NOTHING


OPERATORS: dict[str, Operator] = {
    one.__name__: one
    for one in (
        barrier_dropped, wait_weakened, wait_dropped, commit_dropped, order_relaxed, acquire_plain, atomic_plain,
        store_dropped, copy_dropped, copy_unguarded, offset_shifted, transposed, parameter_wrong, guard_dropped,
        guarded_dropped, guard_negated, compare_flipped, compare_shifted, bound_shifted, sign_changed,
        immediate_off_by_one, constant_wrong, operands_swapped, fragment_swapped, operation_replaced, function_dropped,
        nan_dropped, lane_wrong, instruction_dropped,
    )
}  # fmt: skip


def address(text: str) -> tuple[str, int]:
    """Base and offset of an address operand."""
    m = _ADDRESS.match(text)
    assert m, text
    return m.group(1), int(m.group(2) or 0)


def width(x: Line) -> int:
    """Bytes of one access of a lane."""
    count = next((int(part[1]) for part in x.parts if re.fullmatch(r"v[248]", part)), 1)
    return count * int(re.sub(r"\D", "", x.parts[-1])) // 8


def _off_by_one(x: Line) -> Iterator[str]:
    for i, one in enumerate(x.operands):
        if i and _NUMBER.match(one):
            yield x.made(at=i, operand=str(int(one) + 1))
            yield x.made(at=i, operand=str(int(one) - 1))
