"""Proof from a kernel's text that a warp's copies into one buffer are awaited with those into the next one.

A warp that loads two buffers in a step, say dO and then Q, copies the rows of a tile that is cut off by cp.async: it
commits them, waits for them, fences, lets its lanes meet, and one lane arrives at the buffer's mbarrier. Where the
commit or the wait for dO's copies is left out, those are complete before the warp arrives at Q's mbarrier, and nobody
reads them before that, if

- the warp comes from dO's copies to Q's whenever it makes the first: on no way elsewhere, and both are made behind a
  branch by the same condition,
- the same lanes arrive at both mbarriers, which are of the same place in their rings, and
- on every way to a wait for dO's mbarrier there is one for Q's before it, of the same place and parity.

Two values are the same where the same instructions make them of the same registers, none of which is given another
value after the first of these instructions and before the second value is read; and all of these instructions are on
every way from the first one to there. A word of shared memory that the warp itself does not write in between is taken
to stay: what is announced to a warp stays until it is done with it, or the kernel would not be right without the change
either.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fuzz.score.ptx_mutants.register_flow import Flow
from fuzz.score.ptx_mutants.thread_values import Registers, registers_of

_PURE = re.compile(
    r"\s*((?:add|sub|mul|mad|shl|shr|and|or|xor|not|mov|setp|selp|cvt)\.[\w.]+)\s+%\w+, ([^\[\]{}|]+);\s*$"
)
_SHARED = re.compile(r"\s*(ld\.shared\.[su]?b?\d+)\s+%\w+, \[(%\w+)(?:\+(\d+))?\];\s*$")
_WRITES_SHARED = re.compile(r"\s*(@!?%\w+\s+)?(st\.shared|stmatrix|atom\.shared|red\.shared|st\.async)")
_COMMIT = re.compile(r"\s*cp\.async\.commit_group;")
_TAIL = (  # what follows the commit, line by line
    re.compile(r"\s*cp\.async\.wait_group\s+0;"),
    re.compile(r"\s*fence\.proxy\.async\.shared::cta;"),
    re.compile(r"\s*bar\.warp\.sync\s+-1;"),
    re.compile(r"\s*@(%\w+)\s+bra\b"),
)
_ARRIVAL = re.compile(r"\s*mbarrier\.arrive\S* [^,]+, \[(%r\d+)\+(\d+)\]")
_WAIT = re.compile(r"\s*mbarrier\.try_wait\.parity\.shared\.b64 \w+, \[(%r\d+)\], (%r\d+),")
_PLACE = re.compile(r"\s*add\.s32\s+%r\d+, (%r\d+), (\d+);\s*$")
_LABEL = re.compile(r"\s*\$\w+:")
_BRANCH = re.compile(r"\s*@(%\w+)\s+bra\b")
_NEAR = 16  # lines behind the barrier of the lanes in which the arrival is looked for


class _Copies(NamedTuple):
    """Copies of one buffer, by lines from 0: where they are committed, what the branch before them asks, its line and
    its target; what the branch around the arrival asks, its line and its target; the register that the mbarrier's
    address is made of, its line, and the offset."""

    commit: int
    asked: str
    branch: int
    begin: int
    guard: str
    around: int
    behind: int
    place: str
    arrival: int
    offset: str


class _Wait(NamedTuple):
    """A wait for an mbarrier of a ring: its line from 0, the register of its place, the offset, that of the parity."""

    line: int
    place: str
    offset: str
    parity: str


def copies_are_awaited_next(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX commits copies, or waits for them, which the same
    warp's next copies await too, see above; False where that is not known."""
    try:
        flow = Flow(text)
    except ValueError:
        return False
    registers = registers_of(text)
    commits = [i for i, line in enumerate(flow.lines) if _COMMIT.match(line)]
    here = next((i for i in commits if number - 1 in (i, i + 1)), None)
    following = next((i for i in commits if here is not None and i > here), None)
    if here is None or following is None:
        return False
    first, second = _copies(flow, here), _copies(flow, following)
    if first is None or second is None or first.offset == second.offset:
        return False
    guards = (first.guard, first.around), (second.guard, second.around)
    places = (first.place, first.arrival), (second.place, second.arrival)
    # what runs from the first copies to the second ones, as the branch before these goes the same way
    within = flow.ways(first.begin, {second.branch}) | flow.ways(second.begin, {second.arrival, second.behind})
    return (
        _comes_to(flow, first, second)
        and _same(flow, registers, (first.asked, first.branch), (second.asked, second.branch))
        and _same(flow, registers, *guards, within)
        and _same(flow, registers, *places, within)
        and _awaits_both(flow, registers, first.offset, second.offset)
    )


def _copies(flow: Flow, commit: int) -> _Copies | None:
    """The copies that are committed in a line; None where the lines around it are others than above."""
    tail = flow.lines[commit + 1 : commit + 1 + len(_TAIL)]
    if len(tail) < len(_TAIL) or not all(one.match(line) for one, line in zip(_TAIL, tail, strict=True)):
        return None
    behind = commit + 1 + len(_TAIL)
    lines = list(enumerate(flow.lines))[behind : behind + _NEAR]
    arrival = next(((i, m) for i, line in lines if (m := _ARRIVAL.match(line)) is not None), None)
    if arrival is None or any(_LABEL.match(line) for line in flow.lines[behind : arrival[0]]):
        return None
    around = behind - 1
    guard = _BRANCH.match(flow.lines[around])
    begin = commit
    while begin > 0:
        begin -= 1
        ways = [way for way in flow.before(begin) if not begin <= way <= commit]
        if ways == [begin - 1]:
            continue
        branch = _BRANCH.match(flow.lines[ways[0]]) if len(ways) == 1 and 0 <= ways[0] < begin - 1 else None
        if branch is None or guard is None:
            return None
        guarded = guard[1], around, flow.after(around)[0]
        return _Copies(commit, branch[1], ways[0], begin, *guarded, arrival[1][1], arrival[0], arrival[1][2])
    return None


def _comes_to(flow: Flow, first: _Copies, second: _Copies) -> bool:
    """True if what runs from the first copies on comes to the branch before the second ones, and from its target to
    these, on every way."""
    for start, end in ((first.begin, second.branch), (second.begin, second.commit)):
        reached = flow.ways(start, {end}) - {end}
        if not all(start <= i < end and flow.after(i) for i in reached):
            return False
    return first.commit < second.branch < second.begin < second.commit


def _awaits_both(flow: Flow, registers: Registers, first: str, second: str) -> bool:
    """True if on every way to a wait for the mbarriers at `first` one for those at `second` comes before, of the same
    place and parity, and there is one at least."""
    waits = [one for i in range(len(flow.lines)) if (one := _wait(registers, i)) is not None]
    ours = [one for one in waits if one.offset == first]
    for one in ours:
        before = {other.line for other in waits if other.offset == second and _is_of(flow, registers, other, one)}
        if {-1, one.line} & flow.since(before, one.line):
            return False
    return bool(ours)


def _is_of(flow: Flow, registers: Registers, one: _Wait, other: _Wait) -> bool:
    """True if two waits, of which `one` comes first, are of the same place and parity."""
    return one.line < other.line and all(
        _same(flow, registers, (getattr(one, name), one.line), (getattr(other, name), other.line))
        for name in ("place", "parity")
    )


def _wait(registers: Registers, i: int) -> _Wait | None:
    """The wait in a line, if it is one for an mbarrier whose address is a place and an offset."""
    wait = _WAIT.match(registers.lines[i])
    given = None if wait is None else registers.giving(wait[1])
    place = None if given is None else _PLACE.match(registers.lines[given])
    return None if wait is None or place is None else _Wait(i, place[1], place[2], wait[2])


def _same(
    flow: Flow, registers: Registers, one: tuple[str, int], other: tuple[str, int], within: set[int] | None = None
) -> bool:
    """True if two registers have the same value, the first one in its line, the second in its own, which comes later:
    see above. within: lines among which all that makes both is, and what runs from there to the second one."""
    opened = set[str]()
    while True:
        pair = _compared(registers, one, other, opened)
        if pair is None:
            return False
        begin = min(pair.lines | {one[1]})
        since = flow.ways(begin, {other[1]}, within)
        if within is None:
            back = flow.since({begin}, other[1])
            since &= back | {begin}
            if {-1, other[1]} & back:
                return False
        passed = (pair.lines | {one[1]}) - {begin}
        if not since or any(other[1] in flow.ways(begin, {i}, within) for i in passed):
            return False
        changing = {x for x in pair.leaves if since & set(registers.given.get(x, []))}
        if not changing:
            break
        if changing & opened:
            return False
        opened |= changing  # they may be made of what does not change
    loads = any(_SHARED.match(registers.lines[i]) for i in pair.lines)
    return not (loads and any(_WRITES_SHARED.match(registers.lines[i]) for i in since))


class _Pair(NamedTuple):
    """Lines that make one value twice, and the registers that it is made of."""

    lines: set[int]
    leaves: set[str]


def _compared(registers: Registers, one: tuple[str, int], other: tuple[str, int], opened: set[str]) -> _Pair | None:
    """The instructions that make the values of two registers, each in a line, where these are the same; None where they
    differ. A register that both have in common is taken as it is, unless it is `opened`."""
    if one[0] == other[0] and one[0] not in opened:
        return _Pair(set(), {one[0]} if one[0].startswith("%") else set())
    made = [_instruction(registers, *at) for at in (one, other)]
    if made[0] is None or made[1] is None:
        return None
    (line, name, operands), (its_line, its_name, its_operands) = made[0], made[1]
    if name != its_name or len(operands) != len(its_operands):
        return None
    found = _Pair({line, its_line}, set())
    for x, y in zip(operands, its_operands, strict=True):
        pair = _compared(registers, (x, line), (y, its_line), opened)
        if pair is None:
            return None
        found = _Pair(found.lines | pair.lines, found.leaves | pair.leaves)
    return found


def _instruction(registers: Registers, register: str, end: int) -> tuple[int, str, list[str]] | None:
    """The line before `end` that alone gives a register its value, its instruction and what it reads: registers,
    constants, or a word of shared memory; None for others."""
    line = registers.giving(register)
    if line is None or line >= end:
        return None
    if (shared := _SHARED.match(registers.lines[line])) is not None:
        return line, f"{shared[1]}+{shared[3] or 0}", [shared[2]]
    pure = _PURE.match(registers.lines[line])
    return None if pure is None else (line, pure[1], pure[2].split(", "))
