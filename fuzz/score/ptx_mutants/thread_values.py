"""Proofs from a kernel's text about values that the number of a thread alone decides.

Such a value is made of %tid.x and %laneid by instructions on integers and predicates, each of registers that one line
gives a value, and by shuffles that give all lanes what the first one has. A CTA has few threads, in a row, so the value
is computed for each: all numbers of threads, and all of lanes, that there may be. A change of such an instruction
changes nothing where, for each of them, every register that is made of it has the value that it had before an
instruction of another kind reads it: a branch, a store, one that looks at other registers.

The sign of a number that is shifted to the right is not read where the result is masked by every instruction that reads
it, and no mask has one of the bits that it fills: as many as the most that any thread shifts by that comes there.
Which threads come to a line is found by the branches that their numbers decide; at any other they go both ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from fuzz.score.ptx_mutants.register_flow import Flow

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]  # unsigned, of every thread and lane
LANES = 32
_THREADS = re.compile(r"^\.reqntid (\d+), 1, 1$", re.M)
_REGISTER = re.compile(r"%\w+")
_GIVEN = re.compile(r"\s*(?:@!?%\w+\s+)?[\w.:]+\s+(\{[^}]*\}|%\w+(?:\|%\w+)?)\s*[,;]")
_PURE = re.compile(r"\s*([\w.]+)\s+(%\w+), ([^\[\]{}|]+);\s*$")
_TYPED = re.compile(r"([a-z]+(?:\.(?:lo|wide|eq|ne|lt|le|gt|ge))?)((?:\.(?:[sub](?:8|16|32)|pred))+)")
_FROM_FIRST = re.compile(r"\s*shfl\.sync\.idx\.b32\s+(%\w+), (%\w+), 0, 31, -1;\s*$")
_DECIDED = re.compile(r"\s*@(!?)(%\w+)\s+bra\b")
_SHIFT = re.compile(r"\s*shr\.[us]32\s+(%\w+), %\w+, (%\w+);\s*$")
_COMPARED = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
             "ge": np.greater_equal}  # fmt: skip


class Registers:
    """Registers of a kernel's text: which lines, from 0, give each a value, and which name it."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.given: dict[str, list[int]] = {}
        self.named: dict[str, list[int]] = {}
        for i, line in enumerate(lines):
            words = _REGISTER.findall(line)
            for register in dict.fromkeys(words):
                self.named.setdefault(register, []).append(i)
            found = _GIVEN.match(line)
            several = line.count(";") > 1  # instructions: each register may be given a value, twice
            for register in words * 2 if several else _REGISTER.findall(found[1]) if found is not None else ():
                self.given.setdefault(register, []).append(i)

    def giving(self, register: str) -> int | None:
        """The line that gives a register its value; None where several do, or none."""
        found = self.given.get(register, [])
        return found[0] if len(found) == 1 else None


@lru_cache(maxsize=8)
def registers_of(text: str) -> Registers:
    """The registers of a kernel's text."""
    return Registers(text.splitlines())


class _Threads:
    """The values of registers in every thread, with other instructions in some lines. threads: of a CTA, in a row."""

    def __init__(self, registers: Registers, threads: int, instead: Mapping[int, str]) -> None:
        self._registers, self._instead, self._shape = registers, instead, (threads, LANES)
        self._known: dict[str, Numbers | None] = {
            "%tid.x": np.arange(threads, dtype=np.int64)[:, None] + np.zeros((1, LANES), np.int64),
            "%laneid": np.arange(LANES, dtype=np.int64)[None, :] + np.zeros((threads, 1), np.int64),
        }

    def of(self, operand: str) -> Numbers | None:
        """The numbers of a register, or of a constant; None where the thread's number alone does not decide them."""
        if operand not in self._known:
            self._known[operand] = None  # of a register that is made of itself
            self._known[operand] = self._made(operand)
        return self._known[operand]

    def _made(self, operand: str) -> Numbers | None:
        if re.fullmatch(r"-?\d+", operand):
            return np.full((1, 1), int(operand), np.int64)
        line = self._registers.giving(operand)
        text = "" if line is None else self._instead.get(line, self._registers.lines[line])
        if (shuffle := _FROM_FIRST.match(text)) is not None and shuffle[1] == operand:
            x = self.of(shuffle[2])
            return None if x is None else self._first_of_warp(x)
        pure = _PURE.match(text)
        if pure is None or pure[2] != operand:
            return None
        given = [self.of(one) for one in pure[3].split(", ")]
        known = [one for one in given if one is not None]
        return _result(pure[1], known) if len(known) == len(given) else None

    def _first_of_warp(self, x: Numbers) -> Numbers | None:
        """The number in the first lane of each thread's warp; None for numbers that depend on %laneid."""
        every = np.broadcast_to(x, self._shape)
        return None if (every != every[:, :1]).any() else every[np.arange(len(every)) // LANES * LANES]

    def deciding(self, predicate: str) -> int | None:
        """The threads for which a predicate is true, a bit for each; None where their numbers do not decide it."""
        x = self.of(predicate)
        if x is None or (x != x[:, :1]).any():
            return None
        every = np.broadcast_to(x, self._shape)
        return sum(1 << int(i) for i in np.flatnonzero(every[:, 0]))


def _typed(x: Numbers, kind: str) -> Numbers:
    """The number that bits are in a type: s16, u32, b8, pred."""
    width = 1 if kind == "pred" else int(kind[1:])
    low = x & ((1 << width) - 1)
    return low - ((low >> (width - 1)) << width) if kind[0] == "s" else low


def _result(name: str, given: list[Numbers]) -> Numbers | None:
    """The result of an instruction for these operands; None for an instruction that is not known here."""
    typed = _TYPED.fullmatch(name)
    if typed is None:
        return None
    operation, kinds = typed[1], typed[2][1:].split(".")
    if operation == "cvt" and len(kinds) == 2 and len(given) == 1:
        return _typed(_typed(given[0], kinds[1]), "u" + kinds[0][1:])
    if len(kinds) != 1:
        return None
    kind, width = kinds[0], 1 if kinds[0] == "pred" else int(kinds[0][1:])
    if operation == "selp" and len(given) == 3:
        return np.where(_typed(given[2], "pred") != 0, *(_typed(x, f"u{width}") for x in given[:2]))
    operation, _, way = operation.partition(".")
    if operation in ("shl", "shr") and len(given) == 2:
        x, by = _typed(given[0], kind), np.minimum(_typed(given[1], "u32"), width)
        return _bits(x << by if operation == "shl" else x >> by, width)
    values = [_typed(x, kind) for x in given]
    if operation == "setp" and way and len(values) == 2:
        return _COMPARED[way](*values).astype(np.int64)
    if operation == "mul" and way == "wide" and len(values) == 2 and width < 32:
        return _bits(values[0] * values[1], 2 * width)
    of_two = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
              "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum}  # fmt: skip
    if operation in of_two and way in ("", "lo") and len(values) == 2:
        return _bits(of_two[operation](*values), width)
    if operation == "mad" and way == "lo" and len(values) == 3:
        return _bits(values[0] * values[1] + values[2], width)
    if operation in ("mov", "not") and not way and len(values) == 1:
        return _bits(values[0] if operation == "mov" else ~values[0], width)
    return None


def _bits(x: Numbers, width: int) -> Numbers:
    """The lowest bits of numbers."""
    return x & ((1 << width) - 1)


def _threads(text: str) -> int:
    """Threads of a CTA, in a row; 0 where the text does not say so."""
    found = _THREADS.search(text)
    return int(found[1]) if found is not None else 0


def is_the_same(text: str, changed: str, number: int) -> bool:
    """True where the instruction in line `number` (counted from 1) of a kernel's PTX may as well be that of the changed
    text: whatever a thread's number, what is made of its value is what it was; False where that is not known."""
    registers, after = registers_of(text), changed.splitlines()[number - 1]
    here, there = _PURE.match(registers.lines[number - 1]), _PURE.match(after)
    threads = _threads(text)
    if here is None or there is None or here[2] != there[2] or not threads:
        return False
    before, now = (_Threads(registers, threads, instead) for instead in ({}, {number - 1: after}))
    todo, seen = [here[2]], {here[2]}
    while todo:
        register = todo.pop()
        old, new = before.of(register), now.of(register)
        if old is None or new is None:
            return False
        if not (old != new).any():
            continue
        for i in registers.named[register]:
            if i == registers.giving(register):
                continue
            reader = _PURE.match(registers.lines[i])
            if reader is None or reader[2] == register:
                return False
            todo += [reader[2]] * (reader[2] not in seen)
            seen.add(reader[2])
    return True


def are_the_same(text: str, one: str, other: str) -> bool:
    """True where two registers of a kernel's PTX have the same value in every thread at any time, as its number alone
    decides both; False where that is not known."""
    threads = _threads(text)
    every = _Threads(registers_of(text), threads, {})
    x, y = every.of(one), every.of(other)
    return bool(threads) and x is not None and y is not None and not (x != y).any()


def chosen_by(text: str, changed: str, number: int) -> tuple[int, int] | None:
    """The one thread for which the predicate of line `number` (counted from 1) of a kernel's PTX is false, and the one
    for which that of the changed text is; None where it is false for none, or several, or where that is not known."""
    registers, threads, found = registers_of(text), _threads(text), list[int]()
    given = _PURE.match(registers.lines[number - 1])
    for instead in ({}, {number - 1: changed.splitlines()[number - 1]}):
        true = None if given is None else _Threads(registers, threads, instead).deciding(given[2])
        left = [] if true is None else [i for i in range(threads) if not true >> i & 1]
        if len(left) != 1:
            return None
        found += left
    return found[0], found[1]


def is_one_number(text: str, register: str, threads: tuple[int, int]) -> bool:
    """True where a register of a kernel's PTX has one value in both threads, as their numbers alone decide it."""
    count = _threads(text)
    x = _Threads(registers_of(text), count, {}).of(register) if count else None
    if x is None:
        return False
    both = np.broadcast_to(x, (count, LANES))[list(threads)]
    return not (both != both[0, 0]).any()


def _coming_to(text: str, number: int, every: _Threads, threads: int) -> int:
    """The threads that may come to a line, a bit for each; 0 where that is not known."""
    try:
        flow = Flow(text)
    except ValueError:
        return 0
    found, todo = {0: (1 << threads) - 1}, [0]
    while todo:
        i = todo.pop()
        ways, decided = flow.after(i), _DECIDED.match(flow.lines[i])
        yes = None if decided is None or len(ways) != 2 else every.deciding(decided[2])
        for way, following in enumerate(ways):  # a branch's target comes first
            these = found[i]
            if yes is not None and decided is not None:
                these &= yes if bool(decided[1]) == (way == 1) else ~yes
            if these & ~found.get(following, 0):
                found[following] = found.get(following, 0) | these
                todo.append(following)
    return found.get(number - 1, 0)


def sign_is_unread(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX shifts a word to the right, and nobody reads the bits
    that the sign may fill, see above; False where that is not known."""
    registers, threads = registers_of(text), _threads(text)
    shift = _SHIFT.match(registers.lines[number - 1])
    if shift is None or not threads or registers.giving(shift[1]) != number - 1:
        return False
    every = _Threads(registers, threads, {})
    by, there = every.of(shift[2]), _coming_to(text, number, every, threads)
    if by is None or not there:
        return False
    by = np.broadcast_to(by, (threads, LANES))[[i for i in range(threads) if there >> i & 1]]
    if int(by.max()) >= 32:
        return False
    masked = re.compile(rf"\s*and\.b32\s+%\w+, {re.escape(shift[1])}, (\d+);\s*$")
    readers = [masked.match(registers.lines[i]) for i in registers.named[shift[1]] if i != number - 1]
    return bool(readers) and all(one is not None and int(one[1]) < 1 << (32 - int(by.max())) for one in readers)
