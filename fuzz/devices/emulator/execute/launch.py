"""One launch: sets up the machine's arrays, runs the interpreter, and adds the outcome to a report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.decode.decoder import Program, Unimplemented
from fuzz.devices.emulator.decode.loops import loop_count
from fuzz.devices.emulator.decode.operands import unimplemented
from fuzz.devices.emulator.decode.special_registers import SPECIAL_REGISTERS, Geometry, values
from fuzz.devices.emulator.decode.spins import wanted_by
from fuzz.devices.emulator.execute import interpreter, watch
from fuzz.devices.emulator.execute.clusters.grid import dispatch_order
from fuzz.devices.emulator.execute.tcgen05 import operands as tcgen05_operands
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.report.from_machine import Stopped
from fuzz.devices.emulator.report.printed import printed
from fuzz.devices.emulator.report.report import Report
from fuzz.devices.emulator.report.timeline import timeline
from fuzz.devices.emulator.sanitize import cluster_order, shared_lanes, tensor_shadow, vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state import tensor_map as tm
from fuzz.devices.emulator.state import tensor_memory
from fuzz.devices.emulator.state.global_memory import MappedArrays, Memory
from fuzz.devices.emulator.state.machine import Machine
from fuzz.devices.emulator.translate.compiled import Translation

POLICIES = {"in_order": st.IN_ORDER, "random": st.RANDOM, "oldest_last": st.OLDEST_LAST, "greedy": st.GREEDY}
CHECKS = {"races": st.CHECK_RACES, "uninitialised": st.CHECK_UNINITIALISED, "wrapped": st.CHECK_WRAPPED,
          "unordered_adds": st.CHECK_ORDER, "warpgroups": st.CHECK_WARPGROUP,
          "equal_writes": st.CHECK_EQUAL, "tensor_fences": st.CHECK_TENSOR_FENCES,
          "tensor_waits": st.CHECK_TENSOR_WAITS, "volatile": st.CHECK_VOLATILE,
          "copies_at_exit": st.CHECK_EXITS, "lanes": st.CHECK_LANES,
          "warpgroup_registers": st.CHECK_REGISTERS, "wgmma_warps": st.CHECK_PRODUCTS}  # fmt: skip
EXPLORED = 64  # CTAs that have not started and are run after a deadlock, to see what they would write
TRACED = 1 << 18  # slices of a timeline
DENSE = ("registers", "shared", "taints", "code", "constants", "line_writes", "line_reads")  # memory mostly touched
Sizes = tuple[int, int, int]


def execute(
    config: LaunchConfig, program: Program, translation: Translation, launch: Launch, memory: Memory, report: Report,
    only: Sequence[int] | None, cluster: Sizes = (1, 1, 1), explicit_cluster: bool = False,
) -> None:  # fmt: skip
    """Runs one launch of `program`, with clusters of `cluster` CTAs, and adds its outcome to `report`. translation: of
    this program."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if not 0 < threads <= 1024:
        raise ValueError(f"block: {threads} threads; a CTA has 1 to 1024")
    memory.add_variables(program.globals)
    checks = sum(CHECKS[c] for c in config.checks)
    memory.launches += 1
    segments = memory.table(bool(checks & 3), program.smallest)
    warps = -(-threads // 32)
    ctas = math.prod(cluster)
    entities = warps + (st.AGENTS if program.bulk or ctas > 1 else 0)  # of a CTA, each with a clock
    order = dispatch_order(config, launch.grid, only, cluster)
    resident = max(ctas, min(config.resident_ctas // ctas * ctas, len(order)))
    slots = resident + ctas  # one cluster more than the launch has, for `interpreter.explore`
    n = slots * warps
    loops = loop_count(program)
    shared_size = program.dynamic + launch.shared
    stride = -(-max(shared_size, 8) // 128) * 128
    mapped = MappedArrays(
        DENSE,
        registers=n * program.registers, snapshots=n * program.registers, shared=slots * stride,
        local=n * 32 * max(program.local, 8), constants=len(program.constants), code=program.code.nbytes,
        params=max(program.params, 8) + 8, scratch=4096, taints=n * (program.registers >> 5) + 128,
        tracked=16 * n * program.tracked, trips=8 * n * loops,
        special_values=len(program.specials) * warps * 256,
        **_tensor_memories(program, slots, warps, entities, len(order), shared_size, checks),
        **(_shadows(program, resident, warps, entities, len(order), shared_size, ctas, checks) if checks else {}),
    )  # fmt: skip
    mapped.array("constants")[:] = program.constants
    mapped.array("code", np.int32)[:] = program.code.reshape(-1)
    if program.tensor_memory:
        table = tcgen05_operands.narrow_floats()
        mapped.array("tensor_scratch", np.int32)[tcgen05_operands.FLOAT8 // 4 :][: len(table)] = table
    mapped.array("params")[: len(launch.params)] = np.frombuffer(launch.params, dtype=np.uint8)
    geometry = Geometry(
        launch.grid, launch.block, resident, launch.shared, shared_size, cluster, explicit_cluster
    )  # fmt: skip
    special_values = mapped.array("special_values", np.int64).reshape(-1, warps, 32)
    for row, name in zip(special_values, program.specials, strict=True):
        row[:] = values(name, geometry)
    specials = [_special(name, place) for name, place in program.specials.items()]
    rows = dict.fromkeys(st.TABLES, n) | {
        "k": st.K_SIZE, "segments": len(segments),
        **dict.fromkeys(
            ("arrived", "expected", "gathered", "cta", "arrivals", "bulk", "agents", "columns", "tensor_cta"), slots
        ),
        "findings": st.FINDINGS, "seen": len(program.code), "wanted": len(program.code),
        "reached": len(program.code) + 1,
        "order": len(order), "special": len(specials),
        "trace": TRACED if config.trace else 1, "printed": st.PRINTS,
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
        "ENTITIES": entities, "READERS": ctas * entities, "CLUSTER": ctas, "CLUSTER_X": cluster[0],
        "CLUSTER_Y": cluster[1], "CLUSTER_Z": cluster[2], "CLUSTER_BARRIER": program.cluster_barrier,
        "SPECIALS": len(specials), "LOOPS": loops, "TRACKED_REGISTERS": program.tracked,
        "ENTRY_REGISTERS": program.kernel.entry_registers if program.limited else 0,
        **{name.upper(): address for name, address in mapped.at.items()},
    }.items():  # fmt: skip
        k[getattr(st, f"K_{name}")] = value
    if checks:
        k[st.K_ROW_SIZE], k[st.K_SHARED_CELLS] = _row_size(len(order), entities), _cells(program, shared_size)
        k[st.K_LINES] = _lines(shared_size)
        rows = _row_count(resident, warps) * k[st.K_ROW_SIZE]
        k[st.K_TENSOR_ROWS] = rows if program.tensor_memory else 0
        k[st.K_GLOBAL_PROXY] = 2 * rows if program.bulk else 0
        k[st.K_PROXY], k[st.K_PROXY_STEP] = (3 * rows, rows) if program.asynchronous else (0, 0)
        k[st.K_SHARED_GRANULE] = program.granule.bit_length() - 1
    k[st.K_TENSOR_SHARE] = config.ctas_per_sm if ctas == 1 else 1
    k[st.K_CHECKS], k[st.K_SCOPED] = checks, program.scoped
    k[st.K_LAUNCH] = 1 + memory.launches % 126
    k[st.K_TRACE_SIZE] = TRACED if config.trace else 0
    machine.segments[:] = segments
    machine.order[:] = order
    machine.slot[:] = np.arange(n) // warps
    machine.wanted[:] = wanted_by(program)
    machine.special[:] = np.array(specials, dtype=np.int64).reshape(-1, 3)
    machine.status[:] = st.EMPTY
    machine.cta[:, st.CTA_INDEX] = -1
    interpreter.ready()
    with_taints = bool(checks & st.CHECK_WRAPPED)
    k[st.K_TRANSLATED] = translation.table(with_taints, config.translate)
    trips = mapped.array("trips", np.int64).reshape(n, loops)
    start = time.thread_time()
    result, report.endless = watch.run(machine, program, launch, memory, trips, config.patience)
    reached = np.cumsum(machine.reached[:-1])
    translation.ran(reached, time.thread_time() - start, with_taints)
    if k[st.K_REFUSED]:
        raise refused(program, int(k[st.K_REFUSED]) - 1, int(k[st.K_REFUSED_WHY]), int(k[st.K_REFUSED_VALUE]))
    report.checked_on_hardware &= not (program.tensor_memory or program.cancels)
    if program.limited and program.kernel.entry_registers == 0:
        report.notes.append("setmaxnreg has no effect here: the kernel has neither .maxnreg nor .maxntid")
    if k[st.K_DROPPED]:
        report.notes.append("too many synchronising locations: races were not looked for to the end")
    report.printed += printed(machine.printed[: k[st.K_PRINTED]], memory)
    if k[st.K_PRINTED] > st.PRINTS:
        report.notes.append(f"only the first {st.PRINTS} of {k[st.K_PRINTED]} texts that the kernel prints are kept")
    if k[st.K_FAULTED] and result in (st.OUT_OF_BUDGET, st.TOO_MANY) and k[st.K_FINDINGS] < st.FINDINGS:
        result = st.TOO_MANY
        report.notes.append("stopped a while after its first access out of bounds, before it ended")
    report.executed += int(k[st.K_EXECUTED])
    report.status = ("finished", "deadlock", "budget", "stopped", "endless")[result]
    stopped = Stopped(machine, program, launch, memory)
    report.findings += stopped.findings()
    report.executions.append((program.source, reached))
    if config.trace:
        report.timelines.append(timeline(machine, program, launch, memory))
    if result == st.DEADLOCK:
        waiting = stopped.waiting()
        k[st.K_EXPLORE] = EXPLORED
        k[st.K_TRANSLATED] = 0  # what is explored has no checks, so no taints
        interpreter.run(machine.address)
        report.deadlock = stopped.deadlock(waiting, EXPLORED)


def refused(program: Program, pc: int, why: int, value: int) -> Unimplemented:
    """The error for what a kernel asks for while it runs, see execute/refusal.py."""
    what = {
        tm.NO_INTERLEAVE: "with an interleaved tensor map",
        tm.NO_PADDED_STORE: "from shared memory with padding",
    }.get(why, f"with descriptor {value:#x}")
    return unimplemented(program.source[pc], program.kernel, f"{what} is not emulated")


def _special(name: str, place: int) -> tuple[int, int, int]:
    """The row of table `special` for a special register whose value goes to `place`."""
    row = SPECIAL_REGISTERS[name]
    return place, getattr(st, f"CTA_{row.of_cta}") if row.of_cta else -1, {64: 1, 1: 2}.get(row.bits, 0)


def _cells(program: Program, shared: int) -> int:
    """Cells of one CTA's shared memory."""
    return (shared // 16 + 1) * (16 // program.granule)


def _lines(shared: int) -> int:
    """Lines of one CTA's shared memory, see sanitize/shared_lines.py."""
    return shared // 16 + 1


def _row_size(ctas: int, entities: int) -> int:
    """Bytes of a vector clock."""
    return 8 * (2 + ctas * entities)


def _row_count(resident: int, warps: int) -> int:
    """Vector clocks of a launch."""
    return resident * (vector_clocks.WARP_ROWS * warps + 16 + 2) + vector_clocks.LOCATIONS


def _shadows(
    program: Program, resident: int, warps: int, entities: int, ctas: int, shared: int, cluster: int, checks: int
) -> dict[str, int]:
    """Bytes of the clocks and of shared memory's cells, by the names of `k`. cluster: CTAs of one."""
    cells, lines = _cells(program, shared) * resident, _lines(shared) * resident
    kinds = 3 + cluster * program.asynchronous if program.asynchronous or program.bulk or program.tensor_memory else 1
    rows = _row_count(resident, warps) * kinds
    return {
        "rows": rows * _row_size(ctas, entities), "keys": 8 * vector_clocks.LOCATIONS,
        "versions": 8 * vector_clocks.LOCATIONS, "shared_writes": 8 * cells,
        "shared_reads": 4 * cells * entities * cluster + 16, "line_writes": 8 * lines,
        "line_reads": 4 * lines * entities * cluster + 16, "known": 4 * entities * cluster + 16,
        **({"visits": cluster_order.VISIT * resident * entities * cluster} if cluster > 1 else {}),
        **({"shared_lanes": shared_lanes.BYTES * cells} if checks & st.CHECK_LANES else {}),
    }  # fmt: skip


def _tensor_memories(
    program: Program, slots: int, warps: int, entities: int, ctas: int, shared: int, checks: int
) -> dict[str, int]:
    """Bytes of tensor memory, of what a product needs beside it and of their checks, by the names of `k`."""
    if not program.tensor_memory:
        return {}
    found = {"tensor_memory": slots * tensor_memory.SIZE, "tensor_scratch": tensor_memory.SCRATCH}
    if checks:
        found |= {
            "tensor_fences": 2 * slots * warps * _row_size(ctas, entities),
            "tensor_cells": slots * tensor_shadow.BYTES,
            "tensor_reads": 8 * _cells(program, shared) * slots,
        }
    return found
