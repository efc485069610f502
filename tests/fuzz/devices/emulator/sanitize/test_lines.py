"""Bytes that are always accessed by 16 share a shadow cell: what is found is the same as byte by byte."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from ptx_tools import Emulator, kernel, kinds, run

from fuzz.devices.emulator import api
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.state.global_memory import Memory, Written

PLACES = 160  # bytes at which accesses begin
UNWRITTEN = "read of uninitialised memory"
IN_FLIGHT = "shared memory used while a cp.async is under way to it"
RACES = {
    (0, 0): "race: two writes",
    (0, 1): "race: read of an unordered write",
    (1, 0): "race: write over an unordered read",
}


@dataclass(frozen=True)
class Access:
    """An instruction of one warp: every lane, or lane 0 alone, at byte `at` (+ its size per lane)."""

    warp: int
    phase: int
    read: bool
    at: int
    size: int  # of a lane
    lanes: int
    apart: bool = True  # the lanes' bytes lie one behind the other; else all lanes access the same
    copy: bool = False  # cp.async, from global memory that nothing writes
    arrives: bool = False  # a copy that was issued before

    def text(self, base: str, wide: bool) -> str:
        """PTX; %r70 is the lane, %d30 and %r71 are its address. Predicate %q1: lane 0, %q{2 + warp}: the warp."""
        vector = {4: "b32", 8: "v2.b32", 16: "v4.b32"}[self.size]
        registers = ", ".join(f"%r{60 + i}" for i in range(self.size // 4))
        data = f"{{{registers}}}" if self.size > 4 else registers
        step = self.size if self.lanes > 1 and self.apart else 0
        if wide:
            address = f"mul.wide.u32 %d30, %r70, {step}; add.s64 %d30, %d30, {base}; add.s64 %d30, %d30, {self.at};"
            operand, space = "[%d30]", "global"
        else:
            address = f"mul.lo.u32 %r71, %r70, {step}; add.u32 %r71, %r71, {self.at}; add.u32 %r71, %r71, {base};"
            operand, space = "[%r71]", "shared"
        if self.copy:
            access = f"cp.async.cg.shared.global {operand}, [%d31], 16;"
        else:
            access = self._load_or_store(space, vector, data, operand)
        skip = f"@!%q{2 + self.warp} bra $skip{id(self)};"
        only = f"@!%q1 bra $skip{id(self)};" if self.lanes == 1 else ""
        return f"{address}\n{skip} {only}\n{access}\n$skip{id(self)}:"

    def _load_or_store(self, space: str, vector: str, data: str, operand: str) -> str:
        return f"ld.{space}.{vector} {data}, {operand};" if self.read else f"st.{space}.{vector} {operand}, {data};"

    @property
    def bytes(self) -> range:
        return range(self.at, self.at + self.size * (self.lanes if self.apart else 1))


def program(seed: int, phases: int, count: int = 14, copies: float = 0) -> list[Access]:
    """Accesses in the order in which they are executed: the warp that comes to a barrier last goes on first. copies:
    share of cp.async among them."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        copy = draw.random() < copies
        size = 16 if copy else draw.choice((4, 8, 16))
        lanes = draw.choice((1, 32, 32)) if copy else draw.choice((1, 1, 32))
        at = draw.randrange(0, PLACES // size) * size
        if lanes > 1 and draw.random() < 0.5:
            at &= ~15
        read, apart = not copy and draw.random() < 0.5, draw.random() < 0.7
        made.append(Access(draw.randrange(2), draw.randrange(phases), read, at, size, lanes, apart, copy))
    return sorted(made, key=lambda one: (one.phase, one.warp ^ one.phase & 1))


def expected(accesses: list[Access], initialised: bool) -> list[set[str]]:
    """The findings of each access, by the last write and the readers of every byte, and by the copies under way. A
    copy that arrives is a write, and no finding: who has used its bytes since it was issued was one."""
    wrote: dict[int, Access] = {}
    under_way: dict[int, bool] = {}
    readers: dict[int, dict[int, Access]] = {}
    found = []
    for one in accesses:
        seen: set[str] = set()
        for byte in one.bytes:
            last = wrote.get(byte)
            if one.arrives:
                wrote[byte], under_way[byte] = one, False
                continue
            if last is None and one.read and not initialised:
                seen.add(UNWRITTEN)
            if last is not None and (last.warp, last.phase) != (one.warp, one.phase) and last.phase == one.phase:
                seen.add(RACES[0, int(one.read)])
            elif under_way.get(byte):
                seen.add(IN_FLIGHT)
            if one.read:
                readers.setdefault(byte, {})[one.warp] = one
            else:
                others = (r for w, r in readers.get(byte, {}).items() if w != one.warp)
                if any(r.phase == one.phase for r in others):
                    seen.add(RACES[1, 0])
                wrote[byte], under_way[byte] = one, one.copy
        found.append(seen)
    return found


SETUP = """mov.u32 %r70, %laneid; setp.eq.u32 %q1, %r70, 0; shr.u32 %r72, {id}; setp.eq.u32 %q2, %r72, 0;
setp.eq.u32 %q3, %r72, 1; mov.u32 %r73, s; mov.b32 %r60, 1; mov.b32 %r61, 1; mov.b32 %r62, 1; mov.b32 %r63, 1;
"""


def found_at(report, text: str) -> list[set[str]]:
    """Kinds of the findings of each access, in the order of the accesses."""
    first = kernel("FIRST").splitlines().index("FIRST") + 1
    at = [first + n for n, line in enumerate(text.splitlines()) if line.startswith(("ld.", "st.", "cp.async.cg"))]
    return [{one.kind for one in report.findings if one.line == line} for line in at]


@pytest.mark.parametrize("seed", range(25))
def test_shared_memory(seed):
    accesses = program(seed, phases=3)
    text = SETUP.format(id="%t, 5")
    for phase in range(3):
        text += "\n".join(one.text("%r73", False) for one in accesses if one.phase == phase) + "\nbar.sync 0;\n"
    report = run(text, torch.zeros(1), block=64, shared=1024)
    assert found_at(report, text) == expected(accesses, initialised=False)


def with_arrivals(accesses: list[Access], waits: set[tuple[int, int]], phases: int) -> tuple[list[Access], list[int]]:
    """The accesses and, once more, the copies where they arrive: at the end of a phase in which their warp waits.
    waits: (phase, warp). Also: for each of them, the place of the access that it belongs to."""
    found, places = [], []
    for phase in range(phases):
        for warp in (phase & 1, 1 - (phase & 1)):
            mine = [(i, one) for i, one in enumerate(accesses) if one.phase == phase and one.warp == warp]
            found += [one for _, one in mine]
            places += [i for i, _ in mine]
            if (phase, warp) not in waits:
                continue
            for i, one in enumerate(accesses):
                late = [p for p in range(one.phase, phase) if (p, warp) in waits]
                if one.copy and one.warp == warp and one.phase <= phase and not late:
                    found.append(replace(one, phase=phase, arrives=True))
                    places.append(i)
    return found, places


@pytest.mark.parametrize("seed", range(25))
def test_nobody_uses_the_bytes_of_a_copy_until_it_is_awaited(seed):
    """A copy of all lanes together is noted down as one (warp_copies.py); what is found is as for each of its bytes."""
    phases = 4
    accesses = program(200 + seed, phases, count=12, copies=0.5)
    draw = random.Random(seed)
    waits = {(p, w) for p in range(phases) for w in range(2) if p == phases - 1 or draw.random() < 0.4}
    text = SETUP.format(id="%t, 5") + "mul.wide.u32 %d31, %r70, 16; add.s64 %d31, %d31, %p0;\n"
    for phase in range(phases):
        text += "\n".join(one.text("%r73", False) for one in accesses if one.phase == phase) + "\n"
        text += "".join(f"@%q{2 + w} cp.async.wait_all;\n" for w in range(2) if (phase, w) in waits)
        text += "bar.sync 0;\n"
    report = run(text, torch.zeros(256, dtype=torch.int32), block=64, shared=1024)
    events, places = with_arrivals(accesses, waits, phases)
    seen: list[set[str]] = [set() for _ in accesses]
    for place, kinds_there in zip(places, expected(events, initialised=False), strict=True):
        seen[place] |= kinds_there
    assert found_at(report, text) == seen


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("start", [0, 1])
def test_global_memory(seed, start):
    """Two CTAs of a warp, which nothing orders; the tensor begins at a line, or four bytes after."""
    accesses = [one for one in program(100 + seed, phases=1) if start == 0 or one.size == 4]
    text = SETUP.format(id="%c, 0") + "\n".join(one.text("%p0", True) for one in accesses)
    memory = torch.zeros(1024, dtype=torch.int32)
    report = run(text, memory[start:], grid=2, block=32)
    assert found_at(report, text) == expected(accesses, initialised=True)


def test_the_next_cta_in_the_same_memory_finds_it_unwritten_and_whole():
    """CTA 0 writes a part of a line, then all of it; CTA 1, in its place, reads it unwritten."""
    body = """setp.eq.u32 %q1, %c, 1; @%q1 bra $second;
mov.b32 %r1, 1; st.shared.b32 [s+4], %r1; st.shared.v4.b32 [s], {%r1, %r1, %r1, %r1}; bra $end;
$second: ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [s];
$end:"""
    report = run(body, torch.zeros(1), grid=2, block=1, shared=64, resident_ctas=1)
    assert kinds(report) == {UNWRITTEN} and report.findings[0].cta == (1, 0, 0)


@pytest.mark.parametrize("access", ["ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d1];",
                                    "cp.async.cg.shared.global [%r0], [%d1], 16;"])  # fmt: skip
@pytest.mark.parametrize("missing", [None, 0, 16 * 20 + 7, 511])
def test_one_byte_that_nothing_wrote_is_found_in_the_line_of_its_lane(access, missing):
    """Each lane of two warps reads its own 16 bytes, twice; the second warp's are all written."""
    body = f"""mul.wide.u32 %d0, %t, 16; add.s64 %d1, %p0, %d0; shl.b32 %r0, %t, 4;
mov.u32 %r5, s; add.u32 %r0, %r0, %r5; {access}
cp.async.wait_all;
{access}"""
    tensor = torch.zeros(256, dtype=torch.int32)
    written = Written(tensor.data_ptr(), 1024)
    written.map()[:] = 1
    if missing is not None:
        written.map()[missing] = 0
    memory = Memory()
    params = memory.add("tensor", tensor, written).to_bytes(8, "little")
    programs = Programs(kernel(body, shared=1024))
    launch = Launch("k", (1, 1, 1), (64, 1, 1), 0, params)
    report = api.run(Emulator(strict=False), programs, [launch], memory)
    found = [(one.kind, one.warp, one.lane) for one in report.findings]
    assert found == ([] if missing is None else 2 * [(UNWRITTEN, 0, missing // 16)])
