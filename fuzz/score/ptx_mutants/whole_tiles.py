"""Proof from a kernel's text that a warp may load a whole tile in the way of one that is cut off.

A warp that loads a tile of so many rows looks how many are left (NOTE [whole tiles] of common/tma_loads.py): of a whole
tile one lane starts bulk copies, else the lanes copy rows one by one, zeros in place of those past the end, wait for
the copies and fence them. Where all of the tile's rows are left both ways end alike, if

- the number of rows left is read by the look, and in the other way by comparisons of a row's number with it alone,
  each of which decides of how many bytes a copy is, 16 or none: no row of the tile is past the end,
- both ways arrive once, at the same mbarrier, and store the same beside the copies, and
- neither does anything else that threads wait for, nor gives a register a value that is read after them.

That the lanes' copies bring the rows that are left to where bulk copies bring them is taken from the kernel as it is,
and that the CTAs of a cluster, which load tiles for each other, all look at the same tiles (NOTE [multicast] there).
"""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.register_flow import whole_flow
from fuzz.score.ptx_mutants.thread_values import Registers, registers_of

_LOOK = re.compile(r"\s*setp\.lt\.s32\s+(%p\d+), (%r\d+), \d+;")
_BRANCH = re.compile(r"\s*@(%p\d+)\s+bra\b")
_COPIED = re.compile(r"\s*selp\.b32\s+%r\d+, 16, 0, (%p\d+);")
_BULK = re.compile(r"\s*cp\.async\.bulk\.tensor\.")
_COPY = re.compile(r"\s*cp\.async\.c[ag]\.shared\.global\b")
_ARRIVAL = re.compile(r"\s*mbarrier\.arrive\S*\s+(?:%\w+|_), (\[[^\]]*\]), ")
_STORE = re.compile(r"\s*(?:@!?%p\d+\s+)?(?:(?:st|red|atom|stmatrix)\b|cp\.async\.bulk\.(?!tensor))")
_MEETING = re.compile(  # what other threads see, but for what the ways are made of
    r"\s*(?:@!?%p\d+\s+)?(?:bar\.(?!warp)|barrier|mbarrier\.(?!arrive)|fence(?!\.proxy\.async\.shared)|wgmma|ret|exit|trap)"
)
_DONE = re.compile(
    r"\s*cp\.async\.commit_group;\s*cp\.async\.wait_group\s+0;\s*fence\.proxy\.async\.shared::cta;\s*bar\.warp\.sync\s+-1;"
)


def may_be_cut_off(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX looks whether a tile is whole, or is the branch by
    that, and a whole one may as well be loaded as one that is cut off, see above; False where that is not known."""
    registers = registers_of(text)
    at = number - 2 if _BRANCH.match(registers.lines[number - 1]) else number - 1
    look, branch = _LOOK.match(registers.lines[at]), _BRANCH.match("".join(registers.lines[at + 1 : at + 2]))
    if look is None or branch is None or branch[1] != look[1] or registers.named[look[1]] != [at, at + 1]:
        return False
    flow = whole_flow(text)
    if flow is None:
        return False
    by_lanes, by_bulk = (flow.ways(start, {at}) for start in flow.after(at + 1))
    cut_off, whole = by_lanes - by_bulk, by_bulk - by_lanes
    return (
        _reads_rows_alone(registers, look[2], {at}, cut_off)
        and _is_loaded(flow.lines, whole, _BULK, _COPY)
        and _is_loaded(flow.lines, cut_off, _COPY, _BULK)
        and _DONE.search("\n".join(flow.lines[i] for i in sorted(cut_off))) is not None
        and _beside(flow.lines, whole) == _beside(flow.lines, cut_off)
        and not any(_MEETING.match(flow.lines[i]) for i in whole | cut_off)
        and _stay(registers, whole | cut_off)
    )


def _reads_rows_alone(registers: Registers, left: str, look: set[int], cut_off: set[int]) -> bool:
    """True if what reads the number of rows left is the look and, in the way of tiles that are cut off, comparisons
    that decide of how many bytes copies are."""
    given = registers.giving(left)
    readers = set(registers.named[left]) - look - {given}
    compared = re.compile(rf"\s*setp\.lt\.s32\s+(%p\d+), %r\d+, {re.escape(left)};")
    found = [compared.match(registers.lines[i]) for i in readers]
    if given is None or not readers or not readers <= cut_off or None in found:
        return False
    predicates = [one[1] for one in found if one is not None]
    reading = [i for one in predicates for i in registers.named[one] if i != registers.giving(one)]
    decided = [_COPIED.match(registers.lines[i]) for i in reading]
    return bool(reading) and all(one is not None and one[1] in predicates for one in decided)


def _is_loaded(lines: list[str], way: set[int], by: re.Pattern[str], other: re.Pattern[str]) -> bool:
    """True if a way has copies of one kind alone, and one arrival."""
    copies, others, arrivals = (sum(one.match(lines[i]) is not None for i in way) for one in (by, other, _ARRIVAL))
    return copies > 0 and others == 0 and arrivals == 1


def _stay(registers: Registers, ways: set[int]) -> bool:
    """True if no register that the ways give a value is named elsewhere."""
    given = (name for name, lines in registers.given.items() if not ways.isdisjoint(lines))
    return all(ways.issuperset(registers.named[name]) for name in given)


def _beside(lines: list[str], way: set[int]) -> tuple[list[str], list[str]]:
    """Where a way arrives, and what it stores beside copies."""
    arrivals = [found[1] for i in sorted(way) if (found := _ARRIVAL.match(lines[i])) is not None]
    return arrivals, sorted(lines[i].strip() for i in way if _STORE.match(lines[i]) is not None)
