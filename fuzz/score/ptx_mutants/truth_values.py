"""Proofs from a kernel's text about loops that run at most once.

CuTe DSL writes some branches as loops over a count of 0 or 1 that the compiler does not see through (`one_if` of
kernels/blocksparse/common/mask_words.py): a truth value, which one `selp` gives as 1 or 0 and one `mov` hands on. The
compiler unrolls such a loop, asks whether the count is below 4, and counts up to it.

A comparison of a truth value with 2 or more has one answer.

A loop of a truth value that runs twice in place of once does the same where its body leaves all registers but its
counter as the first time left them. That is seen by symbolic execution of the body, twice: it is one basic block of
instructions on registers. Two rules are used: x & m & m is x & m, and a choice between c and (a choice between c and x
by the same predicate) is the latter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from fuzz.score.ptx_mutants.register_flow import giving

Value: TypeAlias = str | tuple[Any, ...]  # a name, or an operation and its operands
_REGISTER = re.compile(r"%\w+")
_BELOW = re.compile(r"\s*setp\.lt\.u32\s+(%p\d+), (%r\d+), (\d+);")
_GUARDED = re.compile(r"\s*@(%p\d+)\s+bra\b")
_LABEL = re.compile(r"\s*(\$\w+):")
_BACK = re.compile(r"\s*@(%p\d+)\s+bra(?:\.uni)?\s+(\$\w+);")
_UNEQUAL = re.compile(r"\s*setp\.ne\.b32\s+(%p\d+), (%r\d+), (%r\d+);")
_PURE = re.compile(r"\s*((?:setp|selp|and|or|xor|shl|shr|add|sub|mov)\.[\w.]+)\s+(%\w+), ([^\[\]{}]+);\s*$")
_COMMENT = re.compile(r"\s*(//.*)?$")


def is_below(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX is, or is a branch that is guarded by, a comparison
    of a truth value with 2 or more, which it is below."""
    lines = text.splitlines()
    line, guarded = lines[number - 1], _GUARDED.match(lines[number - 1])
    if guarded is not None:
        line = _giving(lines, guarded[1])
    below = _BELOW.match(line)
    return below is not None and int(below[3]) >= 2 and _is_truth_value(lines, below[2])


def may_run_twice(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX compares a loop's counter with a truth value, and the
    loop, run once more, changes nothing."""
    lines = text.splitlines()
    unequal, at = _UNEQUAL.match(lines[number - 1]), number - 1
    back = _BACK.match(lines[number]) if number < len(lines) else None
    if unequal is None or back is None or back[1] != unequal[1]:
        return False
    predicate, counter, count = unequal.groups()
    begin = next((i for i in range(at, -1, -1) if _LABEL.match(lines[i])), -1)
    if begin < 0 or not lines[begin].strip().startswith(f"{back[2]}:") or not _is_truth_value(lines, count):
        return False
    ways = sum(back[2] in _words(line) for line in lines)
    entered = next((i for i in range(begin - 1, -1, -1) if re.match(r"\s*(@|bra|\$)", lines[i])), -1)
    asked = _GUARDED.match(lines[entered]) if entered > 0 else None
    first = re.compile(rf"\s*setp\.lt\.s32\s+{re.escape(asked[1])}, {re.escape(count)}, 1;" if asked else r"$.")
    zero = re.compile(rf"\s*mov\.b32\s+{re.escape(counter)}, 0;")
    named = [i for i, line in enumerate(lines) if counter in _REGISTER.findall(line)]
    step = re.compile(rf"\s*add\.s32\s+{re.escape(counter)}, {re.escape(counter)}, 1;")
    if not (
        ways == 2  # the label, and the way back
        and first.match(lines[entered - 1])
        and len(named) == 3
        and entered < named[0] < begin < named[1] < named[2] == at
        and zero.match(lines[named[0]])
        and step.match(lines[named[1]])
        and sum(predicate in _REGISTER.findall(line) for line in lines) == 2
    ):
        return False
    body = [line for i, line in enumerate(lines[begin + 1 : at], begin + 1) if i != named[1]]
    once = _executed(body, {})
    twice = None if once is None else _executed(body, once)
    return once is not None and once == twice


def _is_truth_value(lines: list[str], register: str) -> bool:
    """True if the register is 0 or 1: what one line gives to another register as such, and one line hands on."""
    handed = re.match(r"\s*mov\.b32\s+%\w+, (%\w+);", _giving(lines, register))
    return handed is not None and re.match(r"\s*selp\.b32\s+%\w+, 1, 0, %p\d+;", _giving(lines, handed[1])) is not None


def _giving(lines: list[str], register: str) -> str:
    """The line that gives a register its value; "" where several do, or none."""
    found = giving(lines, register)
    return found[0] if len(found) == 1 else ""


def _words(line: str) -> list[str]:
    return re.findall(r"\$\w+", line)


def _executed(body: list[str], before: Mapping[str, Value]) -> dict[str, Value] | None:
    """Values of the registers after instructions, of those before; None where one does not only give a register a value
    that other registers make."""
    found = dict(before)
    for line in body:
        if _COMMENT.match(line):
            continue
        pure = _PURE.match(line)
        if pure is None:
            return None
        name, register, operands = pure.groups()
        found[register] = _value(name, [found.get(one, one) for one in operands.split(", ")])
    return found


def _value(name: str, operands: list[Value]) -> Value:
    """The value of an instruction; the same for some that are equal."""
    if name == "and.b32":
        parts = frozenset(part for one in operands for part in (one[1] if _is(one, name) else (one,)))
        return name, parts
    if name.startswith("selp."):
        yes, no, predicate = operands
        yes = yes[1] if _is(yes, name) and yes[3] == predicate else yes
        no = no[2] if _is(no, name) and no[3] == predicate else no
        return name, yes, no, predicate
    return name, *operands


def _is(value: Value, name: str) -> bool:
    return isinstance(value, tuple) and value[0] == name
