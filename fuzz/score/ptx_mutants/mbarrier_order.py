"""Two mbarriers that say of one ring's buffers that they are free: is it enough to wait for one of them?

A warp that reads two buffers in a step, and is done with the first one earlier, arrives at two mbarriers. The warp that
fills both again waits for the second one first, which tells it that the first buffer is free too. What this shows is
read off a kernel's text: the order of the arrivals, of the waits, and that both waits ask for the same parity.
"""

from __future__ import annotations

import re

_ARRIVAL = re.compile(r"\s*mbarrier\.arrive\.shared\.b64 [^,]+, \[(%r\d+)\+(\d+)\]")
_WAIT = re.compile(r"\s*mbarrier\.try_wait\.parity\.shared\.b64 \w+, \[(%r\d+)\], (%r\d+),")
_GUARD = re.compile(r"\s*@(!?%p\d+) bra")
_PRODUCTS = re.compile(r"\s*wgmma\.wait_group\.sync\.aligned \s*(\d+);")
_NEAR = 8  # lines in which an arrival's guard, and the arrival after a wait for products, are looked for


def _arrivals(lines: list[str]) -> list[tuple[int, str, str]]:
    """(line from 0, offset of the mbarrier, the guard) of every arrival of a warp by one lane, which a branch guards
    and whose mbarrier is one of a ring: its address is not the shared memory's own."""
    found = []
    for i, line in enumerate(lines):
        arrival = _ARRIVAL.match(line)
        guards = [g[1] for one in lines[max(0, i - _NEAR) : i] if (g := _GUARD.match(one)) is not None]
        if arrival is not None and arrival[1] != "%r1" and guards:
            found.append((i, arrival[2], guards[-1]))
    return found


def _waits(lines: list[str]) -> list[tuple[int, str, str]]:
    """(line from 0, offset of the mbarrier, register of the parity) of every wait for one of a ring."""
    found = []
    for i, line in enumerate(lines):
        wait = _WAIT.match(line)
        if wait is None:
            continue
        given = re.compile(rf"\s*add\.s32 \s*{re.escape(wait[1])}, %r\d+, (\d+);")
        offset = next((m[1] for one in reversed(lines[:i]) if (m := given.match(one)) is not None), "")
        found.append((i, offset, wait[2]))
    return found


def _second(lines: list[str], first: str) -> str:
    """The offset of the mbarrier at which every warp arrives next after that at `first`, under the same guard and after
    a wait for all of its products; "" where there is no such one, or several."""
    found = set()
    arrivals = _arrivals(lines)
    for (i, offset, guard), (j, after, its) in zip(arrivals, [*arrivals[1:], (len(lines), "", "")], strict=True):
        if offset == first:
            waited = any((m := _PRODUCTS.match(one)) is not None and m[1] == "0" for one in lines[i:j])
            found.add(after if waited and guard == its else "")
    return found.pop() if len(found) == 1 else ""


def _asks_second_first(lines: list[str], first: str) -> bool:
    """True where every wait for the mbarrier at `first` by the warp that fills the ring comes after one for that at
    which warps arrive later, of the same parity."""
    waits, second = _waits(lines), _second(lines, first)
    at = [n for n, (_, offset, _) in enumerate(waits) if offset == first]
    return bool(second and at) and all(
        n > 0 and waits[n - 1][1] == second and waits[n - 1][2] == waits[n][2] for n in at
    )


def wait_is_idle(text: str, number: int) -> bool:
    """True where the wait for an mbarrier in line `number` (from 1) of a kernel's PTX adds nothing to the one before
    it; False where that is not known."""
    lines = text.splitlines()
    offset = next((offset for i, offset, _ in _waits(lines) if i == number - 1), "")
    return bool(offset) and _asks_second_first(lines, offset)


def release_is_idle(text: str, number: int) -> bool:
    """True where nobody relies on the arrival that follows the wgmma.wait_group in line `number` (from 1) of a kernel's
    PTX: the buffer is filled again only after a later arrival, which comes after a wait for all products; False where
    that is not known."""
    lines = text.splitlines()
    arrival = next((offset for i, offset, _ in _arrivals(lines) if 0 <= i - number < _NEAR), "")
    return bool(arrival) and _asks_second_first(lines, arrival)
