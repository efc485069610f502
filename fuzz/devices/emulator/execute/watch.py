"""Runs a launch in pieces, and looks in between for a loop that does not end.

A long launch is not an endless one, so time alone decides nothing. NOTE [endless]: a loop is called endless when, since
its warp came to it,

1. nothing that the loop writes decides whether it is left (decode/loops.Loop.endless); or
2. counters decide, which are computed from registers alone, and by their steps it would go round more often than the
   launch's tensors have elements (at least LEAST), and for more than an hour; or
3. it went round more often than that, for `patience` seconds of the processor, no counter leads to its end within an
   hour, and nothing else in the launch goes on: every warp that can run is in such a loop, and no CTA has finished.

A loop that goes through its data once is never called endless, however long it takes. The pauses change nothing about
the schedule.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from dataclasses import dataclass, replace
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from fuzz.devices.emulator.decode.loops import Exit, Loop, loads_behind, loops_of
from fuzz.devices.emulator.execute import interpreter
from fuzz.devices.emulator.report.endless import HOUR, Endless, cta_at, duration
from fuzz.devices.emulator.state import tables as st

if TYPE_CHECKING:
    from fuzz.devices.emulator.decode.operands import Program
    from fuzz.devices.emulator.host.cuda_runtime import Launch
    from fuzz.devices.emulator.ptx import Instruction
    from fuzz.devices.emulator.state.global_memory import Memory
    from fuzz.devices.emulator.state.machine import Machine

LEAST = 1 << 16  # trips that no loop is called endless for by 2 and 3
SAMPLES = 16  # of a loop's registers that are kept
FIRST_PAUSE = 1 << 14  # micro-operations
COMPARED = 1 << 26  # bytes of tensors that are looked at for a change, at most


def run(
    machine: Machine, program: Program, launch: Launch, memory: Memory, trips: np.ndarray, patience: float
) -> tuple[int, Endless | None]:
    """Runs a launch to its end, or up to an endless loop (the result is PAUSED then). trips: int64 (warps, loops),
    counted by the interpreter. patience: see NOTE [endless]; what follows an access out of bounds gets as much."""
    k = machine.k
    watch = Watch(machine, program, launch, memory, trips, patience)
    pace, faulted = FIRST_PAUSE, 0.0
    spent = 0.0
    while True:
        k[st.K_PAUSE] = k[st.K_EXECUTED] + pace
        start = thread_time()
        result = int(interpreter.run(machine.address))
        took = thread_time() - start
        spent += took
        if result == st.OUT_OF_BUDGET and not k[st.K_FAULTED]:
            budget = int(k[st.K_BUDGET])
            return result, watch.busiest(f"the launch has come to its budget of {budget:,} micro-operations")
        if result != st.PAUSED:
            return result, None
        found = watch.look(spent) if spent >= patience / 20 else None  # before, it could not judge any loop
        if found is not None:
            before = _digest(memory)
            k[st.K_PAUSE] = k[st.K_EXECUTED] + pace
            result = int(interpreter.run(machine.address))
            if result != st.PAUSED:
                return result, None
            if before is not None and before == _digest(memory):
                found = replace(found, why=f"{found.why}; meanwhile no tensor changes")
            return result, found
        if k[st.K_FAULTED]:
            faulted += took
            if faulted > patience:
                return st.TOO_MANY, None
        if took < patience / 100:
            pace *= 2
        elif took > patience / 20:
            pace = max(pace // 2, 1)


@dataclass(frozen=True)
class _Sample:
    """Registers of a warp in its loop. values: int64 (exits, 2, lanes)."""

    spent: float
    trips: int
    values: np.ndarray


@dataclass(frozen=True)
class _Counter:
    """A comparison that ends a loop: `register` comes to `bound`, by `step` in each trip, when `trips` are done."""

    way: Exit
    register: str
    value: int
    bound: str | int
    bound_value: int
    step: float
    trips: float


class Watch:
    """The loops of a running launch, as the pauses show them."""

    def __init__(
        self, machine: Machine, program: Program, launch: Launch, memory: Memory, trips: np.ndarray, patience: float
    ) -> None:
        self.m, self.program, self.launch, self.trips, self.patience = machine, program, launch, trips, patience
        tensors = sum(segment.high - segment.low for segment in memory.segments.values())
        self.elements = tensors // 4
        self.most = max(LEAST, self.elements)
        self.loops: tuple[Loop, ...] = ()
        self.last = np.zeros_like(trips)
        self.since = np.zeros(trips.shape)
        self.began = np.zeros(trips.shape[0], dtype=np.int64)
        self.samples: dict[tuple[int, int], list[_Sample]] = {}
        self.finished, self.finished_at = -1, 0.0

    def look(self, spent: float) -> Endless | None:
        """The endless loop that a pause shows, after `spent` seconds."""
        if not self.trips.size:
            return None
        if not self.loops:
            self.loops = loops_of(self.program)
            self.around = np.array(
                [[a != b and a.head <= b.head and b.branch <= a.branch for b in self.loops] for a in self.loops]
            )
        running = self._follow(spent)
        suspects: dict[int, Endless] = {}
        for w, number in running:
            certain, found = self._judge(w, number)
            if certain:
                return found
            if found is not None:
                suspects.setdefault(w, found)
        if int(self.m.k[st.K_FINISHED]) != self.finished:
            self.finished, self.finished_at = int(self.m.k[st.K_FINISHED]), spent
        can_run = np.flatnonzero(self.m.status == st.RUNNING).tolist()
        if suspects and spent - self.finished_at >= self.patience and all(w in suspects for w in can_run):
            return next(iter(suspects.values()))
        return None

    def busiest(self, why: str) -> Endless | None:
        """The loop that a warp which can run has gone round most often, if any."""
        if not self.trips.size:
            return None
        self.loops = self.loops or loops_of(self.program)
        counts = np.where((self.m.status == st.RUNNING)[:, None], self.trips, 0)
        w, number = (int(i) for i in np.unravel_index(counts.argmax(), counts.shape))
        return self._endless(w, number, 0.0, why) if counts[w, number] > 1 else None

    def _follow(self, spent: float) -> list[tuple[int, int]]:
        """Takes a sample of every loop that a warp has been in since the last pause; returns them."""
        m, now = self.m, self.trips.copy()
        began = np.repeat(m.cta[:, st.CTA_AGE], int(m.k[st.K_WARPS]))
        moved = now != self.last
        stays = (now >= self.last) & (self.last > 0) & (began == self.began)[:, None] & ~(moved @ self.around)
        self.since = np.where(stays, self.since, spent)
        self.last, self.began = now, began
        active = stays & moved & (m.status == st.RUNNING)[:, None]
        for key in [key for key in self.samples if not stays[key]]:
            del self.samples[key]
        running = [(int(w), int(number)) for w, number in np.argwhere(active)]
        for w, number in running:
            kept = self.samples.setdefault((w, number), [])
            kept.append(_Sample(spent, int(now[w, number]), self._values(w, self.loops[number])))
            if len(kept) > SAMPLES:
                del kept[1:-1:2]
        return running

    def _values(self, w: int, loop: Loop) -> np.ndarray:
        rows = [[self._read(w, way, x) for x in way.compared or (0, 0)] for way in loop.exits]
        return np.array(rows, dtype=np.int64).reshape(-1, 2, 32)

    def _read(self, w: int, way: Exit, x: str | int) -> np.ndarray:
        """The values of a comparison's operand in the warp's lanes."""
        if isinstance(x, int):
            return np.full(32, x)
        k = self.m.k
        at = int(k[st.K_REGISTERS]) + w * int(k[st.K_STRIDE]) + self.program.places[x]
        if way.bits == 64:
            return np.ctypeslib.as_array((ctypes.c_int64 * 32).from_address(at)).copy()
        kind = ctypes.c_int32 if way.signed else ctypes.c_uint32
        return np.ctypeslib.as_array((kind * 32).from_address(at)).astype(np.int64)

    def _judge(self, w: int, number: int) -> tuple[bool, Endless | None]:
        """(is it certain, the loop if it may be endless)."""
        loop, samples = self.loops[number], self.samples[w, number]
        first, last = samples[0], samples[-1]
        inside = last.spent - float(self.since[w, number])
        if inside < self.patience / 10:
            return False, None
        if loop.endless:
            return True, self._endless(w, number, inside, self._fixed(loop, last, w))
        if len(samples) < 3 or last.trips - first.trips < 8:
            return False, None
        counters = [self._counter(w, way, i, samples) for i, way in enumerate(loop.exits)]
        known = [c for c in counters if c is not None]
        ends = min((c.trips for c in known), default=math.inf)
        left = (ends - last.trips) * (last.spent - first.spent) / (last.trips - first.trips)
        if known and (ends <= self.most or left <= HOUR):
            return False, None
        if known and all(c or (way.always and way.fixed) for c, way in zip(counters, loop.exits, strict=True)):
            return True, self._endless(w, number, inside, self._far(min(known, key=lambda c: c.trips), left))
        if last.trips <= self.most or inside < self.patience:
            return False, None
        why = f"no counter ends it, {self._size()}, and nothing else in the launch goes on"
        return False, self._endless(w, number, inside, why)

    def _counter(self, w: int, way: Exit, index: int, samples: list[_Sample]) -> _Counter | None:
        """The counter that an exit compares, where there is one: it is computed from registers alone, by the samples it
        goes on by the same step in each trip, and what it is compared with stays."""
        if way.compared is None or not way.counted:
            return None
        lane = max(int(self.m.mask[w]).bit_length() - 1, 0)
        trips = [s.trips for s in samples]
        a, b = ([int(s.values[index, i, lane]) for s in samples] for i in range(2))
        names = way.compared
        if len(set(a)) == 1:
            a, b, names = b, a, names[::-1]
        if len(set(b)) != 1 or isinstance(names[0], int):
            return None
        step = (a[-1] - a[0]) / (trips[-1] - trips[0])
        off = [abs(x - a[0] - step * (n - trips[0])) for x, n in zip(a, trips, strict=True)]
        if step == 0 or max(off) > 3 * abs(step):
            return None
        left = (b[0] - a[-1]) / step
        if left < -2:
            if not way.always:
                return None
            left = 2.0**way.bits / abs(step)  # it has gone past, and comes again when it has wrapped
        return _Counter(way, names[0], a[-1], names[1], b[0], step, trips[-1] + left)

    def _fixed(self, loop: Loop, sample: _Sample, w: int) -> str:
        """How it is known of a loop whose exits nothing in it decides."""
        if not loop.exits:
            return "nothing leaves it"
        way = loop.exits[0]
        leaves = self.program.source[way.pc]
        if way.compared is None:
            return f"nothing in it changes {leaves.guard}, by which it would be left (PTX line {leaves.line})"
        lane = max(int(self.m.mask[w]).bit_length() - 1, 0)
        values = [int(sample.values[0, i, lane]) for i in range(2)]
        a, b = (str(x) if isinstance(x, int) else f"{x} = {v}" for x, v in zip(way.compared, values, strict=True))
        return f"nothing in it changes {a} or {b}, by which it would be left (PTX line {leaves.line})"

    def _far(self, counter: _Counter, left: float) -> str:
        """How it is known of a loop whose counter has far to go."""
        bound, origin = f"{counter.bound_value:,}", ""
        if isinstance(counter.bound, str):
            bound = f"{counter.bound} = {bound}"
            loads = [self._line(i) for i in loads_behind(self.program, counter.bound)]
            origin = f" (loaded at {' and '.join(loads)})" if loads else ""
        return (
            f"{counter.register} is {counter.value:,}, goes on by {counter.step:,.4g} in each trip and comes to "
            f"{bound}{origin} in {duration(left)}; {self._size()}"
        )

    def _line(self, i: Instruction) -> str:
        where = self.program.kernel.place(i)
        return f"{f'{where}, ' if where else ''}PTX line {i.line}"

    def _size(self) -> str:
        return f"the launch's tensors have {self.elements:,} elements of 4 bytes"

    def _endless(self, w: int, number: int, seconds: float, why: str) -> Endless:
        loop, m = self.loops[number], self.m
        branch = self.program.source[loop.branch]
        warps = int(m.k[st.K_WARPS])
        cta = cta_at(int(m.cta[w // warps, st.CTA_INDEX]), self.launch.grid)
        return Endless(
            self.program.kernel.name, cta, w % warps, self.program.kernel.place(branch),
            (self.program.source[loop.head].line, branch.line), branch.text, int(self.trips[w, number]), seconds, why,
        )  # fmt: skip


def _digest(memory: Memory) -> int | None:
    """A checksum of all tensors; None where they are too large for one."""
    segments = list(memory.segments.values())
    if sum(s.high - s.low for s in segments) > COMPARED:
        return None
    found = 0
    for s in segments:
        if s.high > s.low:
            found = zlib.crc32((ctypes.c_char * (s.high - s.low)).from_address(s.host), found)
    return found
