"""Proof from a kernel's text that one thread of a warp may do what another one of it is chosen for.

A branch that all threads but one take leaves that one to a region, behind which all lanes of its warp meet at a barrier
(bar.warp.sync). Another one of the warp may be chosen where

- until the branch both have gone the same way, and every register that the region reads has one value in both: it is
  made of parameters, constants, numbers of the CTA and what the warp's first lane has, by instructions on registers;
- what the region leaves in registers nobody reads behind it;
- the region has no instruction of which a thread's own state remembers something (groups of copies, fences), and none
  of all lanes: instructions on registers, loads, stores, atomic operations and mbarriers;
- it is entered by the branch alone, and left to the barrier alone: there is no access to memory before the barrier;
- before the branch all threads have met at a barrier, and since then they have accessed no memory but parameters.

So the region's accesses are ordered with all others whichever of the two makes them.
"""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.register_flow import Flow, whole_flow
from fuzz.score.ptx_mutants.thread_values import LANES, Registers, chosen_by, is_one_number, registers_of

_GUARD = re.compile(r"\s*@(%p\d+)\s+bra\s+(\$\w+);")
_BRANCH = re.compile(r"\s*(@!?(%\w+)\s+)?bra(\.uni)?\s")
_LANES_MEET = re.compile(r"\s*bar\.warp\.sync\s+-1;")
_MEET = re.compile(r"\s*(bar\.warp\.sync\s+-1;|bar\.sync\s+0;)")
_REGISTERS = re.compile(r"\s*(setp|selp|mov|add|sub|and|or|xor|not|neg|shl|shr|mul|mad|div|rem|min|max|cvt|cvta)\.\S")
_UNIFORM = re.compile(r"\s*(ld\.param\.\S+\s|setmaxnreg\.)")
_FROM_FIRST = re.compile(r"\s*shfl\.sync\.idx\.b32\s+(%r\d+), (%r\d+), 0, 31, -1;\s*$")
_ACCESS = re.compile(r"\s*(ld\.(global|shared)|st\.(global|shared)|atom\.global|mbarrier\.(arrive|try_wait))\.\S")
_NOTHING = re.compile(r"\s*($|//|\.|[{}]|\$?\w+:)")
_WAITS = re.compile(r"\s*(@P1 bra\.uni DONE;|bra\.uni +LAB_WAIT;)\s*$")  # of a wait for an mbarrier
_WORD = re.compile(r"%\w+(?:\.\w+)?")
_OF_CTA = re.compile(r"%n?ctaid(\.\w)?$")


def may_choose_another(text: str, changed: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX compares a thread's number, which chooses one thread,
    and in the changed text another one of its warp, which does the same, see above; False where that is not known."""
    registers, flow = registers_of(text), whole_flow(text)
    chosen = chosen_by(text, changed, number)
    if flow is None or chosen is None or len(chosen) != 2 or len({one // LANES for one in chosen}) != 1:
        return False
    asked = re.match(r"\s*setp\.ne\.b32\s+(%p\d+), ", flow.lines[number - 1])
    named = [] if asked is None else registers.named[asked[1]]
    if asked is None or len(named) != 2 or named[0] != number - 1:
        return False
    branch = named[1]
    guard = _GUARD.match(flow.lines[branch])
    if guard is None or guard[1] != asked[1]:
        return False
    join, inside = flow.after(branch)
    region = flow.ways(inside, {join}) - {join}
    return (
        inside == branch + 1
        and _is_entered_once(flow, region, branch)
        and all(_is_one_of(flow.lines[i], _REGISTERS, _UNIFORM, _ACCESS, _NOTHING, _BRANCH, _WAITS) for i in region)
        and _meets_first(flow, join)
        and _has_met(flow, branch)
        and not _is_told_apart(text, flow, registers, region, branch, chosen)
        and not _is_read_behind(flow, registers, region, join)
    )


def _is_one_of(line: str, *patterns: re.Pattern[str]) -> bool:
    return any(one.match(line) for one in patterns)


def _is_entered_once(flow: Flow, region: set[int], branch: int) -> bool:
    """True if a region is come to by the branch alone, and does not end the kernel."""
    into = {before for i in region for before in flow.before(i)} - region
    return into == {branch} and all(flow.after(i) for i in region)


def _meets_first(flow: Flow, join: int) -> bool:
    """True if the lanes meet from a line on before they access memory."""
    i = join
    while not _LANES_MEET.match(flow.lines[i]):
        if not _is_one_of(flow.lines[i], _REGISTERS, _UNIFORM, _NOTHING) or flow.after(i) != [i + 1]:
            return False
        i += 1
    return True


def _has_met(flow: Flow, branch: int) -> bool:
    """True if threads have met on every way to a branch, and have accessed no memory since."""
    since = flow.since({i for i, line in enumerate(flow.lines) if _MEET.match(line)}, branch)
    return -1 not in since and all(_is_one_of(flow.lines[i], _REGISTERS, _UNIFORM, _NOTHING, _BRANCH) for i in since)


def _is_told_apart(
    text: str, flow: Flow, registers: Registers, region: set[int], branch: int, threads: tuple[int, int]
) -> bool:
    """True if what a region reads that other lines gave, or what decides the way to its branch, may not be the same in
    two threads of a warp."""
    decided = (_BRANCH.match(flow.lines[i]) for i in flow.since(set(), branch) - {-1})
    read = {found[2] for found in decided if found is not None and found[2]}
    read |= {word for i in region for word in _WORD.findall(flow.lines[i])}
    apart = _words_apart(flow, registers, region)
    return any(not is_one_number(text, word, threads) for word in read & apart)


def _words_apart(flow: Flow, registers: Registers, region: set[int]) -> set[str]:
    """Registers whose values may differ between lanes of a warp that have gone the same way, as far as lines outside a
    region give them one; all that are made of such ones, or of ones that no line gives a value."""
    made: dict[str, set[str]] = {}  # of which registers a line makes a register
    words = {word for line in flow.lines for word in _WORD.findall(line)}
    apart = {word for word in words if word not in registers.given and not _OF_CTA.match(word)}
    for word, lines in registers.given.items():
        for i in set(lines) - region:
            text = flow.lines[i]
            if _FROM_FIRST.match(text) or re.match(r"\s*ld\.param\.", text):
                continue
            if not _REGISTERS.match(text) or text.count(";") != 1:
                apart.add(word)
            made.setdefault(word, set()).update(_WORD.findall(text))
    while more := {word for word, of in made.items() if word not in apart and of & apart}:
        apart |= more
    return apart


def _is_read_behind(flow: Flow, registers: Registers, region: set[int], join: int) -> bool:
    """True if a register that a region gives a value may be read behind it before it is given another one."""
    given = {word for word, lines in registers.given.items() if region & set(lines)}
    return any(_may_be_read(flow, registers, word, join) for word in given)


def _may_be_read(flow: Flow, registers: Registers, word: str, start: int) -> bool:
    pure = re.compile(rf"\s*[\w.:]+\s+{re.escape(word)}, (?!.*{re.escape(word)}\b)[^;]*;\s*$")
    named = set(registers.named[word])
    seen, todo = set[int](), [start]
    while todo:
        i = todo.pop()
        if i in seen:
            continue
        seen.add(i)
        if i in named:
            if not pure.match(flow.lines[i]):
                return True
            continue
        todo += flow.after(i)
    return False
