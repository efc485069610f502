"""Proof from a kernel's text that a CTA which takes the next tile's number is one of fewer CTAs than there are tiles.

A CTA looks whether there are more tiles than CTAs, R < N, before it takes a number, which is R and what it reads from a
counter. Where the number is that of a tile without rows, it takes another one, and looks again. That look says yes
whatever it compares with, if on every way to it a number X was found below N, and whatever gave X its value made it

- R and a counter's value, which is R or more, or
- N itself, by a move, or computed as N was: then it is not below N.

So R is at most X, which is below N. N and R are the same all the while.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuzz.score.ptx_mutants.register_flow import Flow, whole_flow
from fuzz.score.ptx_mutants.thread_values import Registers, registers_of

_LOOK = re.compile(r"\s*setp\.ge\.s32\s+(%p\d+), (%r\d+), (%r\d+);")
_GUARD = re.compile(r"\s*@(!?)(%p\d+)\s+bra\b")
_COMPARED = re.compile(r"\s*setp\.(ge|lt)\.s32\s+%p\d+, (%r\d+), (%r\d+);")
_JOINED = re.compile(r"\s*(or|and)\.pred\s+%p\d+, (%p\d+), (%p\d+);")
_TAKEN = re.compile(r"\s*add\.s32\s+%r\d+, (%r\d+), (%r\d+);")
_COUNTER = re.compile(r"\s*atom\.global\.add\.u32\s+%r\d+, \[%rd\d+\], 1;")
_MOVED = re.compile(r"\s*mov\.b32\s+%r\d+, (%r\d+);")
_PARAMETER = re.compile(r"\s*ld\.param\.b32\s+%r\d+, (\[\S+\]);")
_PRODUCT = re.compile(  # one of two numbers, by whether a pointer is null, times a third one
    r"\s*mul\.lo\.s32\s+(%r\d+), (%r\d+), (%r\d+);\s*setp\.eq\.b64\s+(%p\d+), (%rd\d+), 0;\s*@\4 bra\s+(\$\w+);"
    r"\s*ld\.global\.b32\s+\1, \[(%rd\d+)\];\s*\6:(?:\s*ld\.param\.[^;]*;)*\s*mul\.lo\.s32\s+(%r\d+), \1, (%r\d+);$"
)
_LONGEST = 12  # lines of such a product


@dataclass(frozen=True)
class _Text:
    flow: Flow
    registers: Registers

    def line(self, register: str) -> str:
        """The line that gives a register its value; "" where several do, or none."""
        given = self.registers.giving(register)
        return "" if given is None else self.registers.lines[given]

    def given(self, register: str) -> set[int]:
        """The lines that give a register a value."""
        return set(self.registers.given.get(register, []))

    def is_kept(self, names: set[str], since: set[int]) -> bool:
        """True if none of the lines gives one of the registers a value."""
        return not any(self.given(name) & since for name in names)


def number_was_below(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX looks whether there are more tiles than CTAs, or is
    the branch by that, and there are, see above; False where that is not known."""
    registers = registers_of(text)
    guard = _GUARD.match(registers.lines[number - 1])
    given = number - 1 if guard is None else registers.giving(guard[2])
    look = None if given is None else _LOOK.match(registers.lines[given])
    if look is None or given is None or not given <= number - 1 <= given + 2:
        return False
    flow = whole_flow(text)
    if flow is None:
        return False
    there = _Text(flow, registers)
    _, ctas, tiles = look.groups()
    below = _found_below(there, given, tiles)
    return bool(below) and all(_is_as_many(there, x, at, ctas, tiles) for x, at in below)


def _found_below(there: _Text, look: int, tiles: str) -> set[tuple[str, int]]:
    """Registers that were found below `tiles`, and the lines that compared them: one on every way to the look. Empty
    where there is a way without one, or `tiles` changes since."""
    found, seen, todo = set[tuple[str, int]](), {look}, [look]
    while todo:
        line = todo.pop()
        for before in there.flow.before(line):
            if before < 0 or before in there.given(tiles):
                return set()
            one = _compared(there, before, line, tiles)
            if one is not None:
                found.add(one)
            elif before not in seen:
                seen.add(before)
                todo.append(before)
    return found


def _compared(there: _Text, branch: int, line: int, tiles: str) -> tuple[str, int] | None:
    """The register that is below `tiles` where the branch goes to a line, and where it was compared: in the same basic
    block. None where that does not follow."""
    guard, ways = _GUARD.match(there.flow.lines[branch]), there.flow.after(branch)
    if guard is None or len(ways) != 2 or ways[0] == ways[1]:
        return None
    at = _says_below(there, guard[2], (line == ways[0]) == (guard[1] == ""), tiles)
    block = set(range(branch if at is None else at[1], branch))
    straight = all(there.flow.before(i + 1) == [i] and there.flow.after(i) == [i + 1] for i in block)
    return at if at is not None and block and straight and there.is_kept({tiles, at[0]}, block) else None


def _says_below(there: _Text, predicate: str, holds: bool, tiles: str) -> tuple[str, int] | None:
    """The register that is below `tiles` where a predicate holds, or where it does not, and where it is compared."""
    at, line = there.registers.giving(predicate), there.line(predicate)
    if at is None:
        return None
    if (compared := _COMPARED.match(line)) is not None:
        return (compared[2], at) if compared[3] == tiles and (compared[1] == "lt") == holds else None
    joined = _JOINED.match(line)
    if joined is None or (joined[1] == "and") != holds:
        return None
    both = (_says_below(there, one, holds, tiles) for one in joined.groups()[1:])
    return next((one for one in both if one is not None), None)


def _is_as_many(there: _Text, x: str, at: int, ctas: str, tiles: str) -> bool:
    """True if a register that is below `tiles` in line `at` is `ctas` or more: see above."""
    since = there.flow.since(there.given(x), at)
    if -1 in since or not there.given(x):
        return False
    kept = there.is_kept({tiles}, since)
    return all(
        _is_more(there, i, ctas) or (kept and _is_moved(there, i, tiles)) or _is_computed(there, i, tiles)
        for i in there.given(x)
    )


def _is_more(there: _Text, i: int, ctas: str) -> bool:
    """True if line `i` gives its register the number of CTAs and a counter's value."""
    taken = _TAKEN.match(there.flow.lines[i])
    if taken is None or _COUNTER.match(there.line(taken[1])) is None:
        return False
    one, other = _parameters(there, taken[2]), _parameters(there, ctas)
    return len(one) == 1 and "" not in one and one == other


def _parameters(there: _Text, register: str) -> set[str]:
    """The kernel's parameters that a register is given; with "" where it is given something else."""
    found = [_PARAMETER.match(there.flow.lines[i]) for i in there.given(register)]
    return {"" if one is None else one[1] for one in found}


def _is_moved(there: _Text, i: int, tiles: str) -> bool:
    """True if line `i` gives its register `tiles`."""
    moved = _MOVED.match(there.flow.lines[i])
    return moved is not None and moved[1] == tiles


def _is_computed(there: _Text, i: int, tiles: str) -> bool:
    """True if line `i` gives its register what `tiles` is given later: the same product."""
    given = there.registers.giving(tiles)
    ours, theirs = (None if j is None else _product(there, j) for j in (i, given))
    if ours is None or ours != theirs or given is None:
        return False
    return there.is_kept(set(ours), there.flow.since({i}, given))


def _product(there: _Text, i: int) -> tuple[str, ...] | None:
    """The registers that a product of `_PRODUCT` that ends in line `i` is made of."""
    for first in range(i, max(i - _LONGEST, -1), -1):
        found = _PRODUCT.match("\n".join(there.flow.lines[first : i + 1]))
        if found is not None:
            return found[2], found[3], found[5], found[7], found[9]
    return None
