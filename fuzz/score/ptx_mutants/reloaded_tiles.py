"""Proof from a kernel's text that a wait for a ring's buffer is not needed at a tile's first step.

The warps that multiply write a ring's buffers, say of dS, read them, and arrive at an mbarrier E of the ring when they
are done with a step. Before a tile's first step they wait for its keys, at an mbarrier F. The warp that loads these has
waited before, at an mbarrier G, until all warps were done with the keys of the tile before. So a wait for E finds the
buffer free, if

- on every way to it there is a wait for F, and no arrival at E since: the step is the tile's first one,
- on every way to an arrival at F there is a wait for G, and no other arrival at F since,
- each lane that arrives at E also arrives at G, on every way, before it waits for F again, and
- as many warps are awaited at G as at E.

That each of these mbarriers says what it is there for is taken from the kernel as it is.
"""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.register_flow import Flow
from fuzz.score.ptx_mutants.thread_values import Registers, are_the_same, registers_of

_ADDRESS = r"\[(%r\d+)(?:\+(\d+))?\]"
_WAIT = re.compile(r"\s*mbarrier\.try_wait\.parity\.shared\.b64 \w+, " + _ADDRESS)
_ARRIVAL = re.compile(r"\s*mbarrier\.arrive\S*\s+(?:%\w+|_), " + _ADDRESS)
_ANY_ARRIVAL = re.compile(r"\s*(?:@!?%\w+\s+)?mbarrier\.(?:arrive|complete_tx)")
_INIT = re.compile(r"\s*mbarrier\.init\.shared\.b64\s+" + _ADDRESS + r", (%r\d+|\d+);")
_PLACE = re.compile(r"\s*add\.s32\s+%r\d+, (%r\d+), (\d+);\s*$")
_GUARD = re.compile(r"\s*@(%p\d+)\s+bra\b")
_STRAIGHT = re.compile(r"\s*(?:mov|add|sub|shl|shr|and|or|not|ld\.param)\.")
_BASE = re.compile(r"\s*shfl\.sync\.idx\.b32\s+(%r\d+), %r\d+, 0, 31, -1;")


class _Mbarriers:
    """The mbarriers of a kernel's text by their offset from a place: lines, from 0, that wait for one, and that arrive
    at one. unknown: there is an arrival at an mbarrier that is not found out."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers
        self.waits: dict[str, set[int]] = {}
        self.arrivals: dict[str, set[int]] = {}
        self.counts: dict[str, str] = {}
        self.rings: set[str] = set()  # those whose address is not that of the shared memory and an offset
        self.unknown = False
        for i, line in enumerate(registers.lines):
            for pattern, lines in ((_WAIT, self.waits), (_ARRIVAL, self.arrivals)):
                if (found := pattern.match(line)) is not None and (offset := self._offset(*found.groups())):
                    lines.setdefault(offset, set()).add(i)
            self.unknown |= _ANY_ARRIVAL.match(line) is not None and not any(i in x for x in self.arrivals.values())
            if (found := _INIT.match(line)) is not None and (offset := self._offset(found[1], found[2])):
                self.counts[offset] = found[3]

    def _offset(self, place: str, offset: str | None) -> str:
        """The offset of an address; "" where it is not found out."""
        if offset is None:
            given = self._registers.giving(place)
            found = None if given is None else _PLACE.match(self._registers.lines[given])
            if found is None:
                return ""
            place, offset = found.groups()
        given = self._registers.giving(place)
        if given is None or _BASE.match(self._registers.lines[given]) is None:
            self.rings.add(offset)
        return offset


def ring_is_free_at_first(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX waits for a ring's buffer at a tile's first step, as
    all warps are done with it, see above; False where that is not known."""
    try:
        flow = Flow(text)
    except ValueError:
        return False
    all_of = _Mbarriers(registers_of(text))
    ring = next((offset for offset, lines in all_of.waits.items() if number - 1 in lines), "")
    if not ring or all_of.unknown or not all_of.arrivals.get(ring):
        return False
    return any(
        _is_first_step(flow, all_of, number - 1, ring, filled)
        and any(_is_reloaded(flow, all_of, ring, filled, released) for released in all_of.waits)
        for filled in all_of.waits.keys() - all_of.rings - {ring}
    )


def _is_first_step(flow: Flow, all_of: _Mbarriers, line: int, ring: str, filled: str) -> bool:
    """True if on every way to the line there is a wait for `filled`, and no arrival at `ring` since."""
    return not ({-1, line} | all_of.arrivals[ring]) & flow.since(all_of.waits[filled], line)


def _is_reloaded(flow: Flow, all_of: _Mbarriers, ring: str, filled: str, released: str) -> bool:
    """True if the warp that arrives at `filled` waits for `released` first, and as many warps arrive at `released` as
    at `ring`, after their arrivals there."""
    fills, arrivals = all_of.arrivals.get(filled, set[int]()), all_of.arrivals.get(released, set[int]())
    if released in all_of.rings or released in (ring, filled) or not fills or not arrivals:
        return False
    if all_of.counts.get(ring, "") != all_of.counts.get(released):
        return False
    waits = all_of.waits[released]
    if any(({-1} | fills) & flow.since(waits, one) for one in fills):
        return False
    guards = {_guard(flow, one) for one in arrivals}
    return all(_passes(flow, one, guards, all_of.waits[filled]) for one in all_of.arrivals[ring])


def _passes(flow: Flow, arrival: int, guards: set[tuple[int, str]], waits: set[int]) -> bool:
    """True if on every way from an arrival to one of the waits there is one of the guards, by which the same threads
    arrive."""
    text, (line, predicate) = "\n".join(flow.lines), _guard(flow, arrival)
    alike = {at for at, theirs in guards if at >= 0 and are_the_same(text, predicate, theirs)}
    return line >= 0 and bool(alike) and not flow.ways(arrival, alike) & waits


def _guard(flow: Flow, arrival: int) -> tuple[int, str]:
    """The branch around an arrival, and the predicate by which it is not made; (-1, "") where there is none right
    before it."""
    for i in range(arrival - 1, -1, -1):
        if (guard := _GUARD.match(flow.lines[i])) is not None:
            return i, guard[1]
        if not _STRAIGHT.match(flow.lines[i]):
            break
    return -1, ""
