"""Speed of the emulated GPU on one core; writes ci/results/emulator_host.json.

    python ci/bench_emulator.py [--out FILE]

Tile pairs: 64 x 64 x 64 steps of the block-sparse forward in bfloat16 per second, with the checks off and on. Split:
how long one kernel takes to be read (PTX to micro-operations), executed, and checked. Start: a fresh process that runs
one forward, with and without the compiled interpreter in the cache (the kernel is compiled before). Small case: 256
tokens, 2 heads, dim 64, forward and backward under three schedules, compiling not counted.
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
from fuzz.devices.emulator.launching import export
from kernels.blocksparse import launcher
from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.build import dense
from kernels.blocksparse.compile import build
from kernels.blocksparse.launch import Sequences, forward_values, forward_variant

ROOT = Path(__file__).parent.parent
OFF: frozenset[str] = frozenset()
FRESH = """
import sys, time
start = time.time()
import torch
from fuzz.devices.emulator import Emulator
kernel = Emulator(slots=1).load(sys.argv[1])
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
    return forward_variant(q, blocks), values, heads * (length // 64) ** 2


def fastest(kernel: Any, values: list[Any], emulator: Emulator, repeats: int = 5) -> tuple[float, int]:
    """(median seconds, micro-operations) of a call."""
    reports = [kernel(*values, emulator=emulator) for _ in range(repeats + 1)]
    return statistics.median(r.seconds for r in reports[1:]), reports[0].executed


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


def small_case() -> dict[str, float]:
    """Forward and deterministic backward through the operator under three schedules; seconds by schedule."""
    loaded: dict[Any, Any] = {}
    options: dict[str, Any] = {}
    spent = [0.0]

    def call(variant: Any, values: Any, seams: Any) -> None:
        if variant not in loaded:
            start = time.time()
            loaded[variant] = Emulator().load(build(variant, "sm_80", seams))
            spent[0] += time.time() - start
        loaded[variant](*values, emulator=Emulator(**options))

    launcher.launch_elsewhere(call)
    blocks = dense(256, 256, tile_m=64, tile_n=64)
    result = {}
    for schedule in ("in_order", "random", "starve_oldest"):
        options.update(slots=4, schedule=schedule)
        q, k, v = (torch.randn(1, 2, 256, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        spent[0], start = 0.0, time.time()
        out, _ = block_sparse_attention(q, k, v, blocks, deterministic=True)
        out.backward(torch.randn_like(out))
        result[schedule] = round(time.time() - start - spent[0], 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "ci" / "results" / "emulator_host.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    variant, values, pairs = problem(1024, 2)
    compiled = build(variant, "sm_80")
    kernel = Emulator(slots=4).load(compiled)
    kernel(*values)
    result: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    for name, checks in (
        ("off", OFF),
        ("uninitialised", frozenset({"uninitialised"})),
        ("races", frozenset({"races"})),
        ("wrapped", frozenset({"wrapped"})),
        ("all", frozenset({"races", "uninitialised", "wrapped"})),
    ):
        seconds, executed = fastest(kernel, values, Emulator(slots=4, checks=checks))
        result[f"tile_pairs_per_second_{name}"] = round(pairs / seconds)
        if name == "off":
            result["nanoseconds_per_micro_operation"] = round(1e9 * seconds / executed, 1)
            result["micro_operations_per_tile_pair"] = round(executed / pairs)
    costs = []
    for length in (256, 512, 1024, 2048):
        _, many, _ = problem(length)
        seconds, executed = fastest(kernel, many, Emulator(slots=4, checks=OFF))
        costs.append(
            {"tokens": length, "micro_operations": executed, "nanoseconds_each": round(1e9 * seconds / executed, 1)}
        )
    result["linear"] = costs
    start = time.time()
    Emulator().load_ptx(compiled.artifacts.PTX).programs.get(next(iter(kernel.programs.module.kernels)))
    result["seconds_to_read_ptx"] = round(time.time() - start, 3)
    folder, text = export(compiled)
    (folder / "kernel.ptx").write_text(text)
    fresh(folder, None)
    result["seconds_to_first_result_warm"] = min(fresh(folder, None) for _ in range(3))
    with tempfile.TemporaryDirectory() as cache:
        result["seconds_to_first_result_cold"] = fresh(folder, cache)
    small_case()
    result["small_case_seconds"] = small_case()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
