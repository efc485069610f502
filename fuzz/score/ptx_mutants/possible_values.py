"""Proofs from a kernel's text that a register never has the values at which a change shows.

Two things are known of an integer register. Its bits: every line that gives it a value is followed, and a bit that no
such line can set is 0 (of an address of shared memory those below its alignment, of a number that is shifted to the
left the lowest ones, of a masked one those outside the mask). And its comparisons: going back from a line on every way,
a way on which a branch has found that the register is not some number, with no new value since, does not have it.

A mask gives the same with the change where it differs in bits that are 0, and an `or` is an exclusive one where no bit
may be 1 in both. A comparison with a
constant gives the same where the numbers whose answer changes are none that the register may have; a branch by such a
comparison is always taken, or never, where all that it may have agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fuzz.score.ptx_mutants.register_flow import Flow, whole_flow
from fuzz.score.ptx_mutants.thread_values import Registers, registers_of

_ALL = {"r": (1 << 32) - 1, "rd": (1 << 64) - 1}
_PURE = re.compile(r"\s*([\w.]+)\s+(%\w+), ([^\[\]{}|;]+);\s*$")
_FROM_LANE = re.compile(r"\s*shfl\.sync\.idx\.b32\s+(%r\d+), (%r\d+), \w+, 31, -1;\s*$")
_SHARED = re.compile(r"^\s*\.extern \.shared \.align (\d+) \.b8 (\w+)\[\];", re.M)
_THREADS = re.compile(r"^\.reqntid (\d+), 1, 1$", re.M)
_COMPARED = re.compile(r"\s*setp\.(lt|le|gt|ge|eq|ne)\.([sub])32\s+(%p\d+), (%r\d+), (-?\d+);\s*$")
_GUARD = re.compile(r"\s*@(!?)(%p\d+)\s+bra\b")
_MOST = 256  # numbers that are tried one by one
_DEEP = 4
_TOP = 1 << 31


@dataclass(frozen=True)
class Comparison:
    """A comparison of a 32-bit register with a constant, of `kind` s, u or b (bits)."""

    way: str
    kind: str
    predicate: str
    register: str
    constant: int

    def holds(self, value: int) -> bool:
        """Its answer for a register's bits, as an unsigned number."""
        x, y = (_signed(one) if self.kind == "s" else one % (1 << 32) for one in (value, self.constant))
        return {"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[self.way]


def comparison(line: str) -> Comparison | None:
    """The comparison of a line, if it is one of a register with a constant."""
    found = _COMPARED.match(line)
    return None if found is None else Comparison(found[1], found[2], found[3], found[4], int(found[5]))


def _signed(value: int) -> int:
    value %= 1 << 32
    return value - (1 << 32) if value & _TOP else value


class Bits:
    """Bits of registers of a kernel's text that may be 1."""

    def __init__(self, text: str) -> None:
        self.registers: Registers = registers_of(text)
        self._aligned = {name: int(bytes_) for bytes_, name in _SHARED.findall(text)}
        threads = _THREADS.search(text)
        self._threads = int(threads[1]) if threads is not None else 1 << 10
        self._known: dict[str, int] = {}

    def of(self, operand: str, width: int = 32) -> int:
        """Bits that may be 1 of a register, or of a constant of that width."""
        if re.fullmatch(r"-?\d+", operand):
            return int(operand) % (1 << width)
        if operand in self._known:
            return self._known[operand]
        most = _all(operand)
        self._known[operand] = most  # of a register that is made of itself
        given = self.registers.given.get(operand, [])
        found = 0 if given else most
        for line in dict.fromkeys(given):
            found |= self.given(line, operand)
        self._known[operand] = found
        return found

    def given(self, line: int, register: str) -> int:
        """Bits that may be 1 of the value that a line, from 0, gives a register."""
        text, most = self.registers.lines[line], _all(register)
        if (shuffle := _FROM_LANE.match(text)) is not None and shuffle[1] == register:
            return self.of(shuffle[2])
        pure = _PURE.match(text)
        if pure is None or pure[2] != register:
            return most
        name, operands = pure[1], pure[3].split(", ")
        if name.startswith("mov.") and len(operands) == 1 and not operands[0].startswith(("%r", "%f", "-")):
            return self._special(operands[0], most)
        return self._result(name, operands, most)

    def copied(self, line: int, register: str) -> str | None:
        """The 32-bit register whose value a line gives this one: by a move, or by a mask that has all bits of it."""
        pure = _PURE.match(self.registers.lines[line])
        if pure is None or pure[2] != register or pure[1] not in ("mov.b32", "and.b32"):
            return None
        source, *mask = pure[3].split(", ")
        if not re.fullmatch(r"%r\d+", source) or (mask and not mask[0].isdigit()):
            return None
        return source if not mask or not self.of(source) & ~int(mask[0]) else None

    def _special(self, operand: str, most: int) -> int:
        """Bits of what a move reads that is no register: a constant, an address, a number of a thread."""
        if operand.isdigit():
            return int(operand) & most
        if operand in self._aligned:
            return most & -self._aligned[operand]
        return {"%tid.x": _up_to(self._threads - 1), "%laneid": 31}.get(operand, most)

    def _result(self, name: str, operands: list[str], most: int) -> int:
        operation, *rest = name.split(".")
        kind = rest[-1] if rest else ""
        width = int(kind[1:]) if re.fullmatch(r"[sub](32|64)", kind) else 0
        if not width or (most != (1 << width) - 1 and operation not in ("mul", "cvt")):
            return most
        if operation == "selp" and len(operands) == 3:
            return self.of(operands[0], width) | self.of(operands[1], width)
        if operation == "cvt" and len(operands) == 1 and operands[0].startswith("%r"):
            return self._converted(rest, operands[0], most)
        x = [self.of(one, width) for one in operands]
        if operation == "mov" and len(x) == 1:
            return x[0]
        if operation == "mad" and rest[0] == "lo" and len(x) == 3:
            return _sum(_product(x[0], x[1], most), x[2], most)
        if len(x) != 2:
            return most
        if operation in ("shl", "shr"):
            return _shifted(operation + kind[0], x[0], operands[1], width)
        if operation == "mul":
            wide = rest[0] == "wide" and (kind[0] == "u" or not (x[0] | x[1]) & _TOP) and most == _ALL["rd"]
            return _product(x[0], x[1], most) if wide or (rest[0] == "lo" and most == (1 << width) - 1) else most
        either = x[0] | x[1]
        results = {"and": x[0] & x[1], "or": either, "xor": either, "min": either, "max": either,
                   "add": _sum(x[0], x[1], most), "sub": most & -_lowest(either)}  # fmt: skip
        return results.get(operation, most) if len(rest) == 1 else most

    def _converted(self, kinds: list[str], operand: str, most: int) -> int:
        x = self.of(operand)
        if kinds == ["u64", "u32"] or (kinds == ["s64", "s32"] and not x & _TOP):
            return x
        return x & most if kinds == ["u32", "u64"] else most


def _all(register: str) -> int:
    """All bits of a register by its name; of other kinds than these, more than there are."""
    return _ALL.get(re.sub(r"[%\d]", "", register), (1 << 64) - 1)


def _up_to(most: int) -> int:
    """Bits that numbers from 0 up to this one have."""
    return (1 << most.bit_length()) - 1


def _lowest(bits: int) -> int:
    """The lowest of some bits; 0 for none."""
    return bits & -bits


def _sum(x: int, y: int, most: int) -> int:
    """Bits of a sum of numbers with these bits: both at once nowhere, so none is carried, or from the lowest on, up to
    the sum of the largest."""
    if not x & y:
        return x | y
    up = _up_to(x + y) if x + y <= most else most
    return up & -_lowest(x | y)


def _product(x: int, y: int, most: int) -> int:
    """Bits of a product of numbers with these bits."""
    up = _up_to(x * y) if x * y <= most else most
    return up & -(_lowest(x) * _lowest(y))


def _shifted(way: str, x: int, by: str, width: int) -> int:
    """Bits of a number that is shifted by a constant."""
    most = (1 << width) - 1
    if not by.isdigit() or int(by) >= width:
        return most
    if way.startswith("shl"):
        return x << int(by) & most
    sign = way == "shrs" and x >> (width - 1)
    return x >> int(by) | (most & ~(most >> int(by)) if sign else 0)


def value_is_the_same(text: str, changed: str, number: int) -> bool:
    """True where the integer instruction in line `number` (counted from 1) of a kernel's PTX gives the value that it
    gives in the changed text, as they differ in bits that are 0 alone, see above; False where that is not known."""
    here, there = (_PURE.match(one.splitlines()[number - 1]) for one in (text, changed))
    if here is None or there is None or here[2] != there[2]:
        return False
    ours, theirs, bits = here[3].split(", "), there[3].split(", "), Bits(text)
    width = 64 if _all(here[2]) == _ALL["rd"] else 32
    if here[1] == there[1] and here[1] in ("and.b32", "and.b64") and ours[0] == theirs[0]:
        masks = [int(one[1]) for one in (ours, theirs) if re.fullmatch(r"-?\d+", one[1])]
        return len(masks) == 2 and not bits.of(ours[0], width) & (masks[0] ^ masks[1])
    if ours != theirs:
        return False
    return {here[1], there[1]} == {"xor.b32", "or.b32"} and not bits.of(ours[0]) & bits.of(ours[1])


def answer_is_the_same(text: str, changed: str, number: int) -> bool:
    """True where the comparison with a constant in line `number` (counted from 1) of a kernel's PTX has the answer that
    it has in the changed text, for all numbers that its register may have there, see above; False where that is not
    known."""
    here, there = (comparison(one.splitlines()[number - 1]) for one in (text, changed))
    if here is None or there is None or (here.register, here.predicate) != (there.register, there.predicate):
        return False
    flow = whole_flow(text)
    if flow is None:
        return False
    bits = Bits(text)
    tried = _tried((here, there), bits.of(here.register))
    return tried is not None and not any(
        _may_have(flow, bits, here.register, value, number - 1)
        for value in tried
        if here.holds(value) != there.holds(value)
    )


def branch_is_decided(text: str, changed: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX is a branch that is always taken, and is taken in the
    changed text, or never, and is left out there: by a comparison with a constant, see above; False where that is not
    known."""
    guard, instead = _GUARD.match(text.splitlines()[number - 1]), changed.splitlines()[number - 1].strip()
    if guard is None or not (instead in ("", ";") or instead.startswith("bra")):
        return False
    registers, flow = registers_of(text), whole_flow(text)
    given = registers.giving(guard[2])
    asked = None if given is None else comparison(registers.lines[given])
    if asked is None or given is None or flow is None:
        return False
    bits = Bits(text)
    other = instead.startswith("bra") == (guard[1] == "!")  # the answer by which it goes another way than the change
    tried = _tried((asked,), bits.of(asked.register))
    return tried is not None and not any(
        _may_have(flow, bits, asked.register, value, given) for value in tried if asked.holds(value) == other
    )


def _tried(compared: tuple[Comparison, ...], bits: int) -> list[int] | None:
    """Numbers of a register with these bits: all of them, or of two comparisons those for which their answers may
    differ; None for too many."""
    if bits.bit_count() <= _MOST.bit_length() - 1:
        return list(_of_bits(bits))
    one, other = compared[0], compared[-1]
    constants = (one.constant, other.constant)
    if one == other or one.kind != other.kind or max(constants) - min(constants) > 1:
        return None
    if one.way != other.way and {one.way, other.way} not in ({"lt", "le"}, {"gt", "ge"}):
        return None
    if one.kind == "u" and min(constants) < 0:
        return None
    return [value % (1 << 32) for value in range(min(constants), max(constants) + 1) if not value % (1 << 32) & ~bits]


def _of_bits(bits: int) -> Iterator[int]:
    """All numbers that have no other bits."""
    value = bits
    while True:
        yield value
        if not value:
            return
        value = (value - 1) & bits


def _may_have(flow: Flow, bits: Bits, register: str, value: int, line: int, deep: int = _DEEP) -> bool:
    """True if a register may have a number when a line, from 0, is come to: there is a way back to what may give it, on
    which no branch has found otherwise. deep: how many copies are followed."""
    registers = bits.registers
    given = set(registers.given.get(register, []))
    seen, todo = {line}, [line]
    while todo:
        at = todo.pop()
        for before in flow.before(at):
            if before < 0:
                return True
            if before in given:
                if _may_give(flow, bits, register, value, before, deep):
                    return True
                continue
            if before not in seen and not _excludes(flow, registers, before, at, register, value):
                seen.add(before)
                todo.append(before)
    return False


def _may_give(flow: Flow, bits: Bits, register: str, value: int, line: int, deep: int) -> bool:
    """True if a line may give a register a number: what it copies from another one may be that there."""
    if value & ~bits.given(line, register):
        return False
    copied = bits.copied(line, register) if deep else None
    return copied is None or _may_have(flow, bits, copied, value, line, deep - 1)


def _excludes(flow: Flow, registers: Registers, branch: int, line: int, register: str, value: int) -> bool:
    """True if a branch goes to a line where a register has another number than this, as the branch's basic block
    compares it."""
    guard, ways = _GUARD.match(flow.lines[branch]), flow.after(branch)
    given = None if guard is None else registers.giving(guard[2])
    if guard is None or given is None or len(ways) != 2 or ways[0] == ways[1]:
        return False
    asked = comparison(flow.lines[given])
    if asked is None or asked.register != register or not given < branch:
        return False
    block = range(given, branch)
    straight = all(flow.before(i + 1) == [i] and flow.after(i) == [i + 1] for i in block)
    if not straight or set(block) & set(registers.given.get(register, [])):
        return False
    taken = line == ways[0]
    return asked.holds(value) != (taken == (guard[1] == ""))
