"""Timelines of a run: who ran when, and who waited for what. As Chrome's trace format (chrome://tracing, Perfetto);
`timeline_svg.py` draws them, `save.py` writes both.

The unit of time is one micro-operation, shown as a microsecond: the emulated GPU runs one warp at a time, so a timeline
shows the order of events and not how long they would take on hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st

if TYPE_CHECKING:
    from fuzz.devices.emulator.decode.decoder import Program
    from fuzz.devices.emulator.host.cuda_runtime import Launch
    from fuzz.devices.emulator.state.global_memory import Memory
    from fuzz.devices.emulator.state.machine import Machine

LOAD, COMPUTE, BARRIER, WAIT = "load", "compute", "barrier", "wait"
MEMORY_SHARE = 8  # a slice is a load when one in eight of its micro-operations touches memory

Cta: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Slice:
    """A warp from `start` for `length` micro-operations: running (load or compute), or waiting. `open`: forever."""

    cta: Cta
    warp: int
    start: int
    length: int
    kind: str
    label: str
    open: bool = False

    @property
    def end(self) -> int:
        """The first moment after it."""
        return self.start + self.length


@dataclass(frozen=True)
class Timeline:
    """The slices of one launch, by start. `complete`: the memory for them was enough."""

    kernel: str
    slices: tuple[Slice, ...]
    complete: bool
    never_started: int = 0  # CTAs

    def ctas(self) -> list[Cta]:
        """In the order in which they started."""
        return list(dict.fromkeys(s.cta for s in self.slices))

    def track(self, cta: Cta) -> list[Slice]:
        """Slices of the CTA as a whole, one after another: it runs while one of its warps does, else it waits for
        memory where one of them does, else at a barrier."""
        mine = [s for s in self.slices if s.cta == cta]
        runs = [s for s in mine if s.kind in (LOAD, COMPUTE)]
        found = list(runs)
        for kind in (WAIT, BARRIER):
            for one in (s for s in mine if s.kind == kind):
                found += [replace(one, start=a, length=b - a) for a, b in _gaps(one, found)]
        return sorted(_joined(found), key=lambda s: s.start)


RESOURCES = {st.AT_ALLOC: "columns of tensor memory", st.AT_REGISTERS: "registers", st.AT_PRODUCTS: "products"}


def timeline(m: Machine, program: Program, launch: Launch, memory: Memory) -> Timeline:
    """Reads the recorded slices of a machine that has stopped."""
    n, end = int(m.k[st.K_TRACE]), int(m.k[st.K_EXECUTED])
    waiting: dict[tuple[int, int], tuple[int, str, str]] = {}
    slices = []
    x, y, _ = launch.grid
    place: dict[int, Cta] = {}
    for start, length, position, warp, status, what, value, touched, known, wanted in m.trace[:n].tolist():
        linear = int(m.order[position])
        cta = place.setdefault(position, (linear % x, linear // x % y, linear // (x * y)))
        before = waiting.pop((position, warp), None)
        if before is not None:
            slices.append(Slice(cta, warp, before[0], start - before[0], before[1], before[2]))
        kind = LOAD if touched * MEMORY_SHARE > length else COMPUTE
        slices.append(Slice(cta, warp, start, length, kind, kind))
        if status == st.AT_BARRIER:
            waiting[position, warp] = (start + length, BARRIER, f"barrier {what}")
        elif status == st.ASLEEP and known == st.AT_CLUSTER:
            waiting[position, warp] = (start + length, BARRIER, "barrier of the cluster")
        elif status == st.ASLEEP:
            there = what >> op.SHIFT >= op.FIRST_SEGMENT
            name = memory.describe(what, axes=True) if there else f"shared memory byte {what - op.RESERVED_SHARED}"
            label = f"waits for {name} = {value} to {f'become {wanted}' if known else 'change'}"
            waiting[position, warp] = (start + length, WAIT, label)
        elif status in RESOURCES:
            waiting[position, warp] = (start + length, WAIT, f"waits for {RESOURCES[status]}")
    last = max(end // 40, 1)  # a wait without end is drawn on a little, so that it can be seen
    for (position, warp), (since, kind, label) in waiting.items():
        slices.append(Slice(place[position], warp, since, end + last - since, kind, label, True))
    return Timeline(
        program.kernel.name,
        tuple(sorted(slices, key=lambda s: s.start)),
        n < int(m.k[st.K_TRACE_SIZE]),
        int(m.k[st.K_CTAS] - m.k[st.K_NEXT]),
    )


def chrome(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """The trace events: a process per launch; a track per CTA, and below it one for each of its warps."""
    events: list[dict[str, Any]] = []
    for launch, line in enumerate(timelines):
        events.append(_name("process", launch, 0, line.kernel))
        warps = 1 + max((s.warp for s in line.slices), default=0)
        for i, cta in enumerate(line.ctas()):
            first = i * (warps + 1)
            events.append(_name("thread", launch, first, f"CTA {_text(cta)}"))
            events += [_event(launch, first, s) for s in line.track(cta)]
            for warp in range(warps):
                events.append(_name("thread", launch, first + 1 + warp, f"CTA {_text(cta)}, warp {warp}"))
                own = [s for s in line.slices if s.cta == cta and s.warp == warp]
                events += [_event(launch, first + 1 + warp, s) for s in own]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _name(what: str, launch: int, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "pid": launch, "tid": track, "name": f"{what}_name", "args": {"name": text}}


def _event(launch: int, track: int, s: Slice) -> dict[str, Any]:
    name = s.label + (", forever" if s.open else "")
    return {"ph": "X", "pid": launch, "tid": track, "ts": s.start, "dur": s.length, "name": name, "cat": s.kind}


def _text(cta: Cta) -> str:
    """As short as the grid allows: '7', or '7, 0, 2'."""
    return str(cta[0]) if not (cta[1] or cta[2]) else ", ".join(map(str, cta))


def _gaps(one: Slice, taken: Iterable[Slice]) -> list[tuple[int, int]]:
    """The parts of `one` that none of `taken` covers."""
    found, at = [], one.start
    for other in sorted(taken, key=lambda s: s.start):
        if other.end <= at:
            continue
        if other.start >= one.end:
            break
        if other.start > at:
            found.append((at, other.start))
        at = max(at, other.end)
    if at < one.end:
        found.append((at, one.end))
    return found


def _joined(slices: Iterable[Slice]) -> list[Slice]:
    """Neighbours that say the same, as one."""
    found: list[Slice] = []
    for s in sorted(slices, key=lambda s: s.start):
        last = found[-1] if found else None
        if last is not None and last.end == s.start and (last.kind, last.label, last.open) == (s.kind, s.label, s.open):
            found[-1] = replace(last, length=last.length + s.length)
        else:
            found.append(s)
    return found
