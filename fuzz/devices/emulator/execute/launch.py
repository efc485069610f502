"""One launch: sets up the machine's arrays, runs the interpreter, and turns what it left into a report."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.decode.decoder import Program
from fuzz.devices.emulator.decode.special_registers import SPECIAL_REGISTERS, Geometry, values
from fuzz.devices.emulator.decode.spins import wanted_by
from fuzz.devices.emulator.execute import interpreter
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.report.report import KIND_NAMES, Deadlock, Finding, Report, Waiting
from fuzz.devices.emulator.report.timeline import timeline
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.global_memory import MappedArrays, Memory
from fuzz.devices.emulator.state.machine import Machine
from fuzz.devices.emulator.state.mbarrier_word import describe

POLICIES = {"in_order": st.IN_ORDER, "random": st.RANDOM, "oldest_last": st.OLDEST_LAST, "greedy": st.GREEDY}
CHECKS = {"races": st.CHECK_RACES, "uninitialised": st.CHECK_UNINITIALISED, "wrapped": st.CHECK_WRAPPED,
          "unordered_adds": st.CHECK_ORDER, "warpgroups": st.CHECK_WARPGROUP}  # fmt: skip
EXPLORED = 64  # CTAs without a slot that are asked, after a deadlock, what they would write
TRACED = 1 << 18  # slices of a timeline
LOOP = 6  # micro-operations in which a loop that waits for an mbarrier has the question


def dispatch_order(config: LaunchConfig, total: int, only: Sequence[int] | None) -> np.ndarray:
    """Linear indices of the CTAs in the order in which they become resident."""
    if only is not None:
        for i in only:
            if not 0 <= i < total:
                raise ValueError(f"only: CTA {i} is not in the grid of {total}")
        order = list(only)
    else:
        order = range(total)  # type: ignore[assignment]
    if config.dispatch == "reversed":
        order = list(reversed(order))
    elif config.dispatch == "permuted":
        order = list(order)
        random.Random(config.seed).shuffle(order)
    return np.array(order, dtype=np.int64)


def execute(
    config: LaunchConfig, program: Program, launch: Launch, memory: Memory, report: Report, only: Sequence[int] | None
) -> None:
    """Runs one launch and adds its outcome to `report`."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    total = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if not 0 < threads <= 1024:
        raise ValueError(f"block: {threads} threads; a CTA has 1 to 1024")
    memory.add_variables(program.globals)
    checks = sum(CHECKS[c] for c in config.checks)
    memory.launches += 1
    segments = memory.table(bool(checks & 3), program.smallest)
    warps = -(-threads // 32)
    order = dispatch_order(config, total, only)
    resident = max(1, min(config.resident_ctas, len(order)))
    n = (resident + 1) * warps  # one CTA more than the launch has, for `interpreter.explore`
    shared_size = program.dynamic + launch.shared
    stride = -(-max(shared_size, 8) // 128) * 128
    mapped = MappedArrays(
        registers=n * program.registers, snapshots=n * program.registers, shared=(resident + 1) * stride,
        local=n * 32 * max(program.local, 8), constants=len(program.constants), code=program.code.nbytes,
        params=max(program.params, 8) + 8, scratch=4096, taints=n * (program.registers >> 5) + 128,
        tracked=16 * n * program.tracked,
        special_values=len(program.specials) * warps * 256,
        **(_shadows(program, resident, warps, len(order), shared_size) if checks else {}),
    )  # fmt: skip
    mapped.array("constants")[:] = program.constants
    mapped.array("code", np.int32)[:] = program.code.reshape(-1)
    mapped.array("params")[: len(launch.params)] = np.frombuffer(launch.params, dtype=np.uint8)
    geometry = Geometry(launch.grid, launch.block, resident, launch.shared, shared_size)
    special_values = mapped.array("special_values", np.int64).reshape(-1, warps, 32)
    for row, name in zip(special_values, program.specials, strict=True):
        row[:] = values(name, geometry)
    specials = [_special(name, place) for name, place in program.specials.items()]
    rows = dict.fromkeys(st.TABLES, n) | {
        "k": st.K_SIZE, "segments": len(segments),
        **dict.fromkeys(("arrived", "expected", "gathered", "cta"), resident + 1),
        "findings": st.FINDINGS, "seen": len(program.code), "wanted": len(program.code),
        "reached": len(program.code) + 1,
        "order": len(order), "special": len(specials),
        "trace": TRACED if config.trace else 1,
    }  # fmt: skip
    machine = Machine(**rows)
    k = machine.k
    for name, value in {
        "STRIDE": program.registers, "WARPS": warps, "RESIDENT_CTAS": resident,
        "SHARED_SIZE": shared_size, "SHARED_STRIDE": stride, "PARAMS_SIZE": program.params,
        "LOCAL_SIZE": program.local, "THREADS": threads, "CTAS": len(order),
        "GRID_X": launch.grid[0], "GRID_Y": launch.grid[1], "GRID_Z": launch.grid[2], "BLOCK_X": launch.block[0],
        "BLOCK_Y": launch.block[1], "BLOCK_Z": launch.block[2], "POLICY": POLICIES[config.warp_schedule],
        "SEED": config.seed * 0x9E3779B97F4A7C15 % (1 << 63) | 1, "QUANTUM": 4096, "BUDGET": config.budget,
        "DYNAMIC": launch.shared, "CODE_SIZE": len(program.code), "SEGMENTS": len(segments), "LAST": -1,
        "SPECIALS": len(specials), "TRACKED_REGISTERS": program.tracked,
        **{name.upper(): address for name, address in mapped.at.items()},
    }.items():  # fmt: skip
        k[getattr(st, f"K_{name}")] = value
    if checks:
        k[st.K_ROW_SIZE], k[st.K_SHARED_CELLS] = _row_size(len(order), warps), _cells(program, shared_size)
        k[st.K_PROXY] = _row_count(resident, warps) * k[st.K_ROW_SIZE] if program.asynchronous else 0
        k[st.K_SHARED_GRANULE] = program.granule.bit_length() - 1
    k[st.K_CHECKS] = checks
    k[st.K_LAUNCH] = 1 + memory.launches % 126
    k[st.K_TRACE_SIZE] = TRACED if config.trace else 0
    machine.segments[:] = segments
    machine.order[:] = order
    machine.wanted[:] = wanted_by(program)
    machine.special[:] = np.array(specials, dtype=np.int64).reshape(-1, 3)
    machine.status[:] = st.EMPTY
    machine.cta[:, st.CTA_INDEX] = -1
    result = interpreter.run(machine.address)
    if k[st.K_DROPPED]:
        report.notes.append("too many synchronising locations: races were not looked for to the end")
    report.executed += int(k[st.K_EXECUTED])
    report.status = ("finished", "deadlock", "budget", "stopped")[result]
    report.findings += [_finding(machine, program, launch, memory, i) for i in range(int(k[st.K_FINDINGS]))]
    report.executions.append((program.source, np.cumsum(machine.reached[:-1])))
    if config.trace:
        report.timelines.append(timeline(machine, program, launch, memory))
    if result == st.DEADLOCK:
        waiting = _waiting(machine, program, launch, memory)
        k[st.K_EXPLORE] = EXPLORED
        interpreter.run(machine.address)
        report.deadlock = _deadlock(machine, launch, waiting)


def _special(name: str, place: int) -> tuple[int, int, bool]:
    """The row of table `special` for a special register whose value goes to `place`."""
    row = SPECIAL_REGISTERS[name]
    return place, getattr(st, f"CTA_{row.of_cta}") if row.of_cta else -1, row.bits == 64


def _cells(program: Program, shared: int) -> int:
    """Cells of one CTA's shared memory."""
    return shared // program.granule + 8


def _row_size(ctas: int, warps: int) -> int:
    """Bytes of a vector clock."""
    return 8 * (2 + ctas * warps)


def _row_count(resident: int, warps: int) -> int:
    """Vector clocks of a launch."""
    return resident * (3 * warps + 16) + vector_clocks.LOCATIONS


def _shadows(program: Program, resident: int, warps: int, ctas: int, shared: int) -> dict[str, int]:
    """Bytes of the clocks and of shared memory's cells, by the names of `k`."""
    cells = _cells(program, shared) * resident
    rows = _row_count(resident, warps) * (1 + program.asynchronous)
    return {
        "rows": rows * _row_size(ctas, warps), "keys": 8 * vector_clocks.LOCATIONS, "shared_writes": 8 * cells,
        "shared_reads": 4 * cells * warps,
    }  # fmt: skip


def _place(launch: Launch, linear: int) -> tuple[int, int, int]:
    x, y, _ = launch.grid
    return linear % x, linear // x % y, linear // (x * y)


def _finding(m: Machine, program: Program, launch: Launch, memory: Memory, index: int) -> Finding:
    row = [int(v) for v in m.findings[index]]
    kind, pc, address, size = row[st.C_KIND], row[st.C_PC], row[st.C_ADDRESS], row[st.C_SIZE]
    source = program.source[pc]
    tensor = memory.describe(address) if address >> op.SHIFT >= op.FIRST_SEGMENT else f"shared memory byte {address}"
    detail = ""
    if kind == st.F_WRAPPED:
        detail = f"the address of {tensor}"
    elif kind in (st.F_BOUNDS, st.F_UNMAPPED, st.F_ALIGN):
        detail = f"{size} bytes at {tensor}"
    elif kind == st.F_SHARED_BOUNDS:
        detail = f"{size} bytes at {address} of {row[st.C_VALUE]} bytes of shared memory"
    elif kind == st.F_BARRIER_COUNT:
        detail = f"barrier {address}: {row[st.C_VALUE]} threads, expected {size or 'a multiple of 32 that the CTA has'}"
    elif kind in (st.F_RACE_WW, st.F_RACE_WR, st.F_RACE_RW, st.F_UNORDERED):
        detail = f"{tensor}, with CTA {_place(launch, row[st.C_OTHER_CTA])} warp {row[st.C_OTHER_WARP]}"
    elif kind == st.F_PROXY:
        detail = f"{tensor}, written by warp {row[st.C_OTHER_WARP]}"
    elif kind == st.F_COPY_SIZE:
        detail = f"{row[st.C_VALUE]} bytes of {tensor} for {size}"
    elif kind == st.F_MBARRIER:
        what = "is none" if row[st.C_VALUE] < 0 else f"has room for {row[st.C_VALUE]} arrivals"
        detail = f"the one at {tensor} {what}"
    elif kind == st.F_WARPGROUP:
        other = row[st.C_VALUE]
        detail = f"warp {address} has not issued it" if other < 0 else f"another warp's: {program.source[other].text}"
    elif kind == st.F_DESCRIPTOR:
        detail = f"{address:#x} and {row[st.C_VALUE]:#x}"
    elif kind in (st.F_SYNC_MISSING, st.F_BARRIER_DIVERGED):
        detail = f"lanes {address:#010x}, of {row[st.C_VALUE]:#010x}"
    return Finding(
        KIND_NAMES[kind], program.kernel.name, source.text, source.line, _place(launch, row[st.C_CTA]), row[st.C_WARP],
        row[st.C_LANE], address, size, tensor, detail,
    )  # fmt: skip


def _waiting(m: Machine, program: Program, launch: Launch, memory: Memory) -> dict[int, Waiting]:
    """Who waits for what, by warp. The values are those that memory holds now."""
    warps = int(m.k[st.K_WARPS])
    waiting = {}
    for w in range(len(m.status)):
        if m.status[w] not in (st.AT_BARRIER, st.ASLEEP):
            continue
        slot = w // warps
        lane = int(m.asleep[w]).bit_length() - 1
        pc = int(m.pc[w]) - 1 if m.status[w] == st.AT_BARRIER else int(m.lane_pc[w, max(lane, 0)])
        if m.status[w] == st.AT_BARRIER:
            number = int(m.barrier_at[w, st.AT_NUMBER])
            expected = int(m.expected[slot, number]) or 32 * int(m.cta[slot, st.CTA_WARPS])
            what = f"at barrier {number}: {int(m.arrived[slot, number])} of {expected} threads are there"
        else:
            parts = []
            for i in range(min(int(m.watched[w]), 4)):
                address = int(m.watch_virtual[w, i])
                shared = address >> op.SHIFT < op.FIRST_SEGMENT
                name = f"shared memory byte {address}" if shared else memory.describe(address)
                host = int(m.watch[w, i])
                if shared and (program.code[pc : pc + LOOP, 0] == op.MBARRIER).any():
                    parts.append(f"{name}, {describe(ctypes.c_int64.from_address(host).value)}")
                else:
                    parts.append(f"{name} = {ctypes.c_int32.from_address(host).value}")
            place = int(m.wanted[pc])
            if place != op.ABSENT and len(parts) == 1:
                parts[0] += f" to {_register(m, w, lane, place)}"
            what = "for a change of " + ", ".join(parts)
        source = program.source[pc]
        waiting[w] = Waiting(_place(launch, int(m.cta[slot, st.CTA_INDEX])), w % warps, source.line, source.text, what)
    return waiting


def _register(m: Machine, w: int, lane: int, place: int) -> int:
    """What the operand at `place` holds for a lane, as 32 bits with a sign."""
    base = int(m.k[st.K_REGISTERS] + w * m.k[st.K_STRIDE]) + place if place >= 0 else int(m.k[st.K_CONSTANTS]) + ~place
    return ctypes.c_int32.from_address(base + 4 * lane).value


def _deadlock(m: Machine, launch: Launch, waiting: dict[int, Waiting]) -> Deadlock:
    """The graph, with the CTAs that would end a wait if they had a slot."""
    rows = []
    asked = int(m.k[st.K_CTAS] - m.k[st.K_NEXT])
    for w, waits in waiting.items():
        one = waits
        if m.writer[w]:
            writer = _place(launch, int(m.order[int(m.writer[w]) - 1]))
            one = replace(one, writer=writer, what=f"{one.what}; CTA {writer}, which has no slot yet, would write it")
        elif asked and m.asleep[w]:
            some = "none of those" if asked <= EXPLORED else f"none of the next {EXPLORED} of those"
            one = replace(one, what=f"{one.what}; {some} without a slot would write it before waiting itself")
        rows.append(one)
    resident = int((m.cta[:-1, st.CTA_INDEX] >= 0).sum())
    return Deadlock(
        tuple(rows),
        resident,
        int(m.k[st.K_FINISHED]),
        int(m.k[st.K_CTAS] - m.k[st.K_NEXT]),
        int(m.k[st.K_RESIDENT_CTAS]),
    )
