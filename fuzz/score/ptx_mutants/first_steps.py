"""Proof from a kernel's text that a tile's first step may bring the rows' references up to date though none is behind.

A row's reference is minus infinity before a tile's first step, and follows its maximum where any row of the warp is
more than LAG behind (`advance` of forward/hopper/mainloop.py). With a scale that is positive and normal, as launches
make sure of, no row is behind in a first step where each one's maximum is minus infinity, or not a number. So what the
update makes of these two, for each of a thread's two rows, is computed: the registers' values are those of before the
update, or

- those of a row whose maximum is not a number become that too: so is the row's sum, and with it O, whatever comes, or
- the last factor of a row is another one, and nobody reads it: O is multiplied by factors where an update made them,
  which is asked of the same truth value both times.

Where a row is behind, the update is made once, as the truth value is 1. What a changed line of it makes of
rows whose maxima are finite, infinite or not a number is computed likewise, with a finite maximum and the scale as
symbols: a row whose maximum is plus infinity ends as one that is not a number does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from fuzz.score.ptx_mutants.register_flow import Flow, whole_flow
from fuzz.score.ptx_mutants.thread_values import Registers, registers_of

# of a register of 32 bits; of a predicate, 0 or 1; a name of a number: _SCALE, or a finite maximum
Bits: TypeAlias = int | str
_MINUS_INFINITY, _INFINITY, _NAN = 0xFF800000, 0x7F800000, 0x7FC00000
_SCALE = "scale"  # positive and normal
_SCALES = (0x00800000, 0x3F800000, 0x7F7FFFFF)  # the least normal number, 1, the largest one
_BRANCH = re.compile(r"\s*@(!?)(%p\d+)\s+bra(?:\.uni)?\s+(\$\w+);")
_NONE = re.compile(r"\s*setp\.lt\.s32\s+%p\d+, (%r\d+), 1;")
_HANDED = re.compile(r"\s*mov\.b32\s+%r\d+, (%r\d+);")
_CHOSEN = re.compile(r"\s*selp\.b32\s+%r\d+, 1, 0, (%p\d+);")
_VOTED = re.compile(r"\s*vote\.sync\.any\.pred\s+%p\d+, (%p\d+), -1;")
_BEHIND = re.compile(r"\s*setp\.gt\.f32\s+%p\d+, (%r\d+), 0f41000000;")
_LARGER = re.compile(r"\s*max\.f32\s+%r\d+, (%r\d+), (%r\d+);")
_SCALED = re.compile(r"\s*mul\.f32\s+%r\d+, (%r\d+), (%r\d+);")
_ABOVE_REFERENCE = re.compile(r"\s*add\.f32\s+%r\d+, (%r\d+), 0f7F800000;")  # less minus infinity
_PURE = re.compile(r"\s*([\w.]+)\s+(%\w+), ([^\[\]{}|]+);\s*$")
_LABEL = re.compile(r"\s*(?:\$\w+:)?\s*;?\s*(?://.*)?$")  # or an instruction that was left out
_MOST = 1000  # instructions of an update


def may_follow_nothing(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX is the branch around the update of a tile's first
    step, and the update may as well be made, see above; False where that is not known."""
    registers, at = registers_of(text), number - 1
    branch = _BRANCH.match(registers.lines[at])
    rows = None if branch is None or branch[1] else _behind(registers, branch[2])
    if branch is None or rows is None:
        return False
    flow = whole_flow(text)
    if flow is None:
        return False
    scale, count, maxima = rows
    names, alone = _given(flow, at + 1, flow.after(at)[0]), dict[str, set[int]]()
    for at_scale, *values in product(_SCALES, *((_MINUS_INFINITY, _NAN),) * len(maxima)):
        known = {scale: at_scale, count: 0} | dict(zip(maxima, values, strict=True))
        before = _before(registers, at, known)
        after = None if before is None else _executed(flow, at + 1, flow.after(at)[0], before)
        if before is None or after is None:
            return False
        unlike = {name for name in names if after.get(name) != before.get(name)}
        read = unlike - _not_numbers(unlike, after, values, alone)
        if not all(_is_unread(flow, registers, name, flow.after(at)[0]) for name in read):
            return False
    return all(len(rows) == 1 for rows in alone.values())  # of one row each


def update_is_the_same(text: str, changed: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX is one of the update of a tile's first step, and the
    update in the changed text gives what it gives here, see above; False where that is not known."""
    registers, flow, other = registers_of(text), whole_flow(text), whole_flow(changed)
    begun = None if flow is None else _update_of(flow, registers, number - 1)
    if flow is None or other is None or begun is None:
        return False
    at, (scale, count, maxima) = begun
    join, alone, excused = flow.after(at)[0], dict[str, set[int]](), dict[str, set[int]]()
    ends: tuple[Bits, ...] = (_MINUS_INFINITY, _INFINITY, _NAN)
    for values in product((*ends, maxima[0]), (*ends, maxima[1])):
        known: dict[str, Bits] = {scale: _SCALE, count: 1}
        known.update(zip(maxima, values, strict=True))
        before = _before(registers, at, known)
        here, there = (None if before is None else _executed(one, at + 1, join, before) for one in (flow, other))
        if here is None or there is None:
            return False
        unlike = {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}
        read = unlike - _not_numbers(unlike, there, values, excused)
        _not_numbers(set(here) | set(there), here, values, alone)
        _not_numbers(set(here) | set(there), there, values, alone)
        if not all(_is_unread(other, registers, name, join) for name in read):
            return False
    return all(len(alone[name]) == 1 for name in excused)  # of one row each


def _update_of(flow: Flow, registers: Registers, line: int) -> tuple[int, tuple[str, str, tuple[str, str]]] | None:
    """The branch around the update of a first step that a line is in, and what `_behind` says of it."""
    for at in range(line - 1, -1, -1):
        branch = _BRANCH.match(flow.lines[at])
        rows = None if branch is None or branch[1] else _behind(registers, branch[2])
        if rows is not None:
            join = flow.after(at)[0]
            return (at, rows) if line in flow.ways(at + 1, {join}) - {join} else None
    return None


def _not_numbers(
    unlike: set[str], after: Mapping[str, Bits], maxima: Sequence[Bits], alone: dict[str, set[int]]
) -> set[str]:
    """Registers that are not a number after an update, of rows that end as none: where one row does so, it is added to
    `alone` for each of them."""
    ending = [i for i, value in enumerate(maxima) if value in (_NAN, _INFINITY)]
    found = {name for name in unlike if ending and _is_nan(after.get(name))}
    if len(ending) == 1:
        for name in found:
            alone.setdefault(name, set()).add(ending[0])
    return found


def _behind(registers: Registers, predicate: str) -> tuple[str, str, tuple[str, str]] | None:
    """The scale, the count and the maxima of two rows, where a predicate says that none of a warp's rows is behind a
    reference of minus infinity."""

    def given(register: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        i = registers.giving(register)
        found = None if i is None else pattern.match(registers.lines[i])
        return () if found is None else found.groups()

    count = given(predicate, _NONE)
    one = count
    for pattern in (_HANDED, _CHOSEN, _VOTED, _BEHIND, _LARGER):
        one = given(one[0], pattern) if one else ()
    scaled = [given(x, _SCALED) for x in one]
    maxima = [given(x[1], _ABOVE_REFERENCE) for x in scaled if x]
    if len(maxima) != 2 or not all(maxima) or scaled[0][0] != scaled[1][0]:
        return None
    return scaled[0][0], count[0], (maxima[0][0], maxima[1][0])


def _before(registers: Registers, branch: int, known: Mapping[str, Bits]) -> dict[str, Bits] | None:
    """Registers' values before the branch: `known`, and what the moves before it give."""
    first = branch
    while re.match(r"\s*mov\.b32\s", registers.lines[first - 1]):
        first -= 1
    found = dict(known)
    for line in registers.lines[first:branch]:
        pure = _PURE.match(line)
        value = None if pure is None else _value(pure[3], found)
        if pure is None or value is None:
            return None
        found[pure[2]] = value
    return found


def _given(flow: Flow, begin: int, join: int) -> set[str]:
    """The registers that lines from `begin` on give a value, as far as `join`."""
    lines = (flow.lines[i] for i in flow.ways(begin, {join}) - {join})
    return {pure[2] for line in lines if (pure := _PURE.match(line)) is not None}


def _executed(flow: Flow, begin: int, join: int, before: Mapping[str, Bits]) -> dict[str, Bits] | None:
    """Registers' values at `join` after instructions from `begin` on; None where one is not known here."""
    found, i = dict(before), begin
    for _ in range(_MOST):
        if i == join:
            return found
        line, ways = flow.lines[i], flow.after(i)
        branch, pure = _BRANCH.match(line), _PURE.match(line)
        if branch is not None:
            if branch[2] not in found:
                return None
            if isinstance(found[branch[2]], str):
                return None
            i = ways[0] if (found[branch[2]] != 0) == (branch[1] == "") else ways[1]
            continue
        if pure is not None:
            given = [_value(one, found) for one in pure[3].split(", ")]
            known = [one for one in given if one is not None]
            value = _result(pure[1], known) if len(known) == len(given) else None
            if value is None:
                return None
            found[pure[2]] = value
        elif not _LABEL.match(line):
            return None
        if len(ways) != 1:
            return None
        (i,) = ways
    return None


def _value(operand: str, found: Mapping[str, Bits]) -> Bits | None:
    if operand.startswith("%"):
        return found.get(operand)
    return int(operand[2:], 16) if operand.startswith("0f") else int(operand) % (1 << 32)


def _result(name: str, operands: list[Bits]) -> Bits | None:
    """The result of an instruction of an update; None for others."""
    x = [one for one in operands if isinstance(one, int)]
    if len(x) < len(operands):
        return _of_symbols(name, operands)
    with np.errstate(all="ignore"):
        f = [np.uint32(one).view(np.float32) for one in x]
        match name, len(x):
            case ("mov.b32", 1):
                return x[0]
            case ("and.b32", 2):
                return x[0] & x[1]
            case (("setp.eq.b32" | "setp.lt.u32"), 2):
                return int(x[0] == x[1] if name == "setp.eq.b32" else x[0] < x[1])
            case ("setp.eq.f32", 2):
                return int(f[0] == f[1])
            case (("selp.f32" | "selp.b32"), 3):
                return x[0] if x[2] else x[1]
            case ("sub.f32", 2):
                return _bits(f[0] - f[1])
            case ("mul.f32", 2):
                return _bits(f[0] * f[1])
            case ("ex2.approx.ftz.f32", 1):
                return _bits(np.exp2(f[0]))
    return None


def _of_symbols(name: str, x: list[Bits]) -> Bits | None:
    """The result of an instruction of which an operand is the scale or a finite maximum; None where it is needed."""
    ends = (_MINUS_INFINITY, _INFINITY, _NAN)
    if name == "mov.b32":
        return x[0]
    if name in ("selp.f32", "selp.b32") and isinstance(x[2], int):
        return x[0] if x[2] else x[1]
    if name == "setp.eq.f32":
        return 0 if set(x) & set(ends) else None
    if name == "sub.f32" and x[0] == x[1]:
        return 0
    if name == "sub.f32" and x[0] in ends:
        return x[0]
    if name == "sub.f32" and x[1] in ends:
        return _NAN if x[1] == _NAN else _MINUS_INFINITY if x[1] == _INFINITY else _INFINITY
    if name == "mul.f32" and _SCALE in x:
        factor = x[x[0] == _SCALE]
        return factor if factor in (*ends, 0) else None
    return None


def _bits(x: np.float32) -> Bits:
    return _NAN if np.isnan(x) else int(x.view(np.uint32))


def _is_nan(bits: Bits | None) -> bool:
    return isinstance(bits, int) and bits & 0x7FFFFFFF > 0x7F800000


def _is_unread(flow: Flow, registers: Registers, name: str, start: int) -> bool:
    """True if on every way from `start` on the register is given a value before it is read. Branches by truth values
    that are one register go one way as long as it is not given another value."""
    named, given = set(registers.named.get(name, [])), set(registers.given.get(name, []))
    asked = {_asked_before(flow, registers, i) for i in named - given}
    seen = set[tuple[int, frozenset[tuple[str, bool]]]]()
    todo = [(start, frozenset[tuple[str, bool]]())]
    while todo:
        i, known = todo.pop()
        if (i, known) in seen:
            continue
        seen.add((i, known))
        if i in named:
            if i not in given or flow.lines[i].count(name) > 1 or flow.lines[i].lstrip().startswith("@"):
                return False
            continue
        known = frozenset(one for one in known if i not in registers.given.get(one[0], []))
        branch = _BRANCH.match(flow.lines[i])
        truth = None if branch is None else _truth(registers, branch[2]) or None
        for way, following in enumerate(flow.after(i)):
            if branch is None or truth not in asked:
                todo.append((following, known))
                continue
            none = (way == 0) == (branch[1] == "")  # the count is 0
            if (truth, none) not in known:
                todo.append((following, known | {(truth, not none)}))
    return True


def _asked_before(flow: Flow, registers: Registers, i: int) -> str:
    """The truth value of the branch next before line `i`; "" where it is by something else."""
    branch = next((found for line in reversed(flow.lines[:i]) if (found := _BRANCH.match(line)) is not None), None)
    return "" if branch is None else _truth(registers, branch[2])


def _truth(registers: Registers, predicate: str) -> str:
    """The truth value that is 0 where a predicate holds; "" where it is not that of one."""
    found: str | None = predicate
    for pattern in (_NONE, _HANDED):
        i = None if found is None else registers.giving(found)
        one = None if i is None else pattern.match(registers.lines[i])
        found = None if one is None else one[1]
    i = None if found is None else registers.giving(found)
    return found if found is not None and i is not None and _CHOSEN.match(registers.lines[i]) else ""
