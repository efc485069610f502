"""Speed of the emulated GPU on one core; writes ci/results/emulator_host.json.

    python ci/benchmarks/emulator_speed.py [--out FILE]

Tile pairs: 64 x 64 x 64 steps of the block-sparse forward in bfloat16 per second of one core, with the checks off and
on, translated to machine code; `loop`: not translated. Translate: what compiling that takes, without and with taints.
Split: what the largest of them takes to be read (PTX to micro-operations), executed, and checked. Linear: seconds
against micro-operations, with the line through them. Start: a fresh process that runs one forward, with and without the
compiled interpreter in the cache (the kernel is compiled before). Small case: 256 tokens, 2 heads, dim 64, forward and
backward under three schedules, compiling not counted. Session: drawn cases, judged as a session does with three runs
each, their kernels compiled and loaded; by phase.

All seconds are of the processor, which is what a second on one core is on a machine that does nothing else; the start
and the phases also have those of the clock. `load` says what else ran.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.host.cuda_runtime import export
from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.compile import runtime
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.launch.forward import Sequences, forward_values, forward_variant
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.signature import ordered

ROOT = Path(__file__).parents[2]
OFF: frozenset[str] = frozenset()
FRESH = """
import sys, time
start = time.time()
import torch
from fuzz.devices.emulator import Emulator
kernel = Emulator(resident_ctas=1).load(sys.argv[1])
kernel(*torch.load(sys.argv[2]))
print(time.time() - start)
"""


def problem(length: int, heads: int = 1) -> tuple[Any, list[Any], int]:
    """(variant, values, tile pairs) of a dense forward, dim 64, tiles of 64."""
    q, k, v = (torch.randn(1, length, heads, 64, dtype=torch.bfloat16) for _ in range(3))
    blocks = dense(length, length, tile_m=64, tile_n=64, backward=False)
    zero, full = torch.zeros(1, dtype=torch.int32), torch.full((1,), length, dtype=torch.int32)
    o, lse = torch.empty_like(q), torch.empty(1, heads, length)
    values = forward_values(q, k, v, o, lse, Sequences(zero, full, zero, full), blocks, scale=0.125)
    return forward_variant(q, blocks), list(ordered("forward", values)), heads * (length // 64) ** 2


def fastest(kernel: Any, values: list[Any], emulator: Emulator, repeats: int = 5) -> tuple[float, int]:
    """(median processor seconds, micro-operations) of a call."""
    spent = []
    for _ in range(repeats + 1):
        start = time.process_time()
        report = kernel(*values, emulator=emulator)
        spent.append(time.process_time() - start)
    return statistics.median(spent[1:]), report.executed


def seconds_to_translate(kernel: Any, taints: bool) -> float:
    """Processor seconds to compile the kernel's machine code."""
    translation = kernel.programs.translation(next(iter(kernel.programs.module.kernels)))
    start = time.process_time()
    translation.compile(taints, everything=True)
    return round(time.process_time() - start, 2)


def fresh(folder: Path, cache: str | None) -> tuple[float, float]:
    """(seconds, processor seconds) from the start of a process to its first result; they differ on a busy machine."""
    environment = dict(os.environ) | ({"XDG_CACHE_HOME": cache} if cache else {})
    values = folder / "values.pt"
    _, arguments, _ = problem(64)
    torch.save(arguments, values)
    before, start = os.times(), time.time()
    subprocess.run([sys.executable, "-c", FRESH, str(folder), str(values)], check=True, cwd=ROOT, env=environment,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return round(time.time() - start, 2), round(busy, 2)


def session(count: int = 20) -> dict[str, Any]:
    """Processor seconds per case, over cases drawn as a session draws them, and how they spread over its phases."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from fuzz.generate.cases import MEDIUM, cases
    from fuzz.judging.judge import execute
    from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse

    target = EmulatedBlockSparse()
    found: list[Any] = []

    @seed(1)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases(target, MEDIUM, repeats=3))
    def draw(case: Any) -> None:
        found.append(case)

    draw()
    for case in found:  # compiles and loads
        execute(case, target, lambda phase, limit: None)
    spent: dict[str, float] = {}
    start = time.process_time()
    for case in found:
        verdict = execute(case, target, lambda phase, limit: None)
        for phase, seconds in verdict.seconds.items():
            spent[phase] = spent.get(phase, 0.0) + seconds / len(found)
    whole = (time.process_time() - start) / len(found)
    return {"cases": len(found), "seconds_per_case": round(whole, 4),
            "phases_by_the_clock": {phase: round(seconds, 4) for phase, seconds in spent.items()}}  # fmt: skip


def line(points: list[tuple[int, float]]) -> dict[str, float]:
    """The line of seconds against micro-operations by least squares, and how far a point is from it at most."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    fixed = mean_y - slope * mean_x
    return {
        "nanoseconds_each": round(1e9 * slope, 1), "milliseconds_fixed": round(1e3 * fixed, 2),
        "largest_distance": round(max(abs(y / (fixed + slope * x) - 1) for x, y in points), 3),
    }  # fmt: skip


def small_case() -> dict[str, float]:
    """Forward and deterministic backward through the operator under three schedules; seconds by schedule."""
    loaded: dict[Any, Any] = {}
    options: dict[str, Any] = {}
    spent = [0.0]

    def call(variant: Any, values: Any, injection: Any) -> None:
        if variant not in loaded:
            start = time.process_time()
            loaded[variant] = Emulator().load(build(variant, "sm_80", injection))
            spent[0] += time.process_time() - start
        loaded[variant](*values, emulator=Emulator(**options))

    runtime.launch_elsewhere(call)
    blocks = dense(256, 256, tile_m=64, tile_n=64)
    result = {}
    for schedule in ("in_order", "random", "oldest_last"):
        options.update(resident_ctas=4, warp_schedule=schedule)
        q, k, v = (torch.randn(1, 2, 256, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        spent[0], start = 0.0, time.process_time()
        out, _ = block_sparse_attention(q, k, v, blocks, deterministic=True)
        out.backward(torch.randn_like(out))
        result[schedule] = round(time.process_time() - start - spent[0], 3)
    runtime.launch_elsewhere(None)
    return result | {"all": round(sum(result.values()), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "ci" / "results" / "emulator_host.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    variant, values, pairs = problem(1024, 2)
    compiled = build(variant, "sm_80")
    kernel = Emulator(resident_ctas=4).load(compiled)
    kernel(*values)
    result: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    took: dict[str, float] = {}
    for name, checks in (
        ("off", OFF),
        ("uninitialised", frozenset({"uninitialised"})),
        ("races", frozenset({"races"})),
        ("wrapped", frozenset({"wrapped"})),
        ("all", frozenset({"races", "uninitialised", "wrapped"})),
    ):
        seconds, executed = fastest(kernel, values, Emulator(resident_ctas=4, checks=checks, translate="always"))
        took[name] = seconds
        result[f"tile_pairs_per_second_{name}"] = round(pairs / seconds)
        if name == "off":
            result["nanoseconds_per_micro_operation"] = round(1e9 * seconds / executed, 1)
            result["micro_operations_per_tile_pair"] = round(executed / pairs)
    loop, _ = fastest(kernel, values, Emulator(resident_ctas=4, checks=OFF, translate="never"))
    result["tile_pairs_per_second_off_loop"] = round(pairs / loop)
    result["seconds_to_translate"] = [seconds_to_translate(kernel, taints) for taints in (False, True)]
    costs, points = [], []
    for length in (256, 512, 1024, 2048):
        _, many, _ = problem(length)
        seconds, executed = fastest(kernel, many, Emulator(resident_ctas=4, checks=OFF, translate="always"))
        points.append((executed, seconds))
        costs.append(
            {"tokens": length, "micro_operations": executed, "nanoseconds_each": round(1e9 * seconds / executed, 1)}
        )
    result["linear"] = costs
    result["line"] = line(points)
    start = time.process_time()
    Emulator().load_ptx(compiled.artifacts.PTX).programs.get(next(iter(kernel.programs.module.kernels)))
    result["split_seconds"] = {
        "read_once": round(time.process_time() - start, 3), "execute": round(took["off"], 4),
        "check": round(took["all"] - took["off"], 4),
    }  # fmt: skip
    folder, text = export(compiled)
    (folder / "kernel.ptx").write_text(text)
    fresh(folder, None)
    result["seconds_to_first_result_warm"] = min(fresh(folder, None) for _ in range(3))
    with tempfile.TemporaryDirectory() as cache:
        result["seconds_to_first_result_cold"] = fresh(folder, cache)
    small_case()
    result["small_case_seconds"] = small_case()
    result["session"] = session()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
