"""Times of the Hopper backward kernel's two main loops, the straight and the transposed one, in one run.

    python ci/benchmarks/backward_loops.py [--out FILE.json] [--tokens 8192] [--dims 128,64] [--masks full,causal]
    [--batch 2] [--heads 16] [--heads-kv 16] [--ordered 0,1] [--seconds 80]
    python ci/benchmarks/backward_loops.py --dry        tiny problems on the emulated GPU, to try the script

For each problem: the whole backward pass and its main kernel alone, milliseconds (the least of several rounds, in which
the ways take turns), TFLOP/s of five products (10 * batch * heads * tokens^2 * dim, half of it for causal), and how far
gradients are from those of the straight loop. Ordered gradients must be bitwise the same in three calls. Exits with 1
where gradients differ.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from blocksparse_entry import difference  # noqa: E402
from blocksparse_masks import TILE, Entry, blocks_of  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.launch import backward as launch_backward  # noqa: E402
from kernels.blocksparse.launch import forward as launch  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

KINDS = {"causal": "band", "window": "band", "documents": "intervals"}
DISAGREE = 0.02
Tuning = tuple[tuple[str, int], ...]


# Main loops by name; the first one is what the others' gradients are compared with
WAYS: dict[str, Tuning] = {"straight": (("transposed", 0),), "transposed": ()}


class Problem:
    """Operands of one measurement, and forward's results."""

    def __init__(self, entry: Entry, batch: int) -> None:
        self.entry, self.batch, n = entry, batch, entry.tokens
        device = "cpu" if entry.device == "emulator" else entry.device
        draw = torch.Generator(device).manual_seed(1)

        def tensor(heads: int) -> Tensor:
            return torch.randn(batch, n, heads, entry.dim, device=device, generator=draw).to(torch.bfloat16)

        self.q, self.do, self.k, self.v = (
            *(tensor(entry.heads_q) for _ in range(2)),
            *(tensor(entry.heads_kv) for _ in range(2)),
        )
        zero = torch.zeros(batch, dtype=torch.int32, device=device)
        self.sequences = launch.Sequences(zero, zero + n, zero, zero + n)
        self.blocks, self.scale = blocks_of(entry), entry.dim**-0.5
        self.o, self.lse = torch.empty_like(self.q), torch.empty(batch, entry.heads_q, n, device=device)
        launch.forward(
            self.q, self.k, self.v, self.o, self.lse, self.sequences, self.blocks, scale=self.scale, products="mma"
        )

    def launches(self, tuning: Tuning, ordered: bool) -> tuple[list[Any], list[Tensor]]:
        """The kernels of one way, with their values, and the gradients that they write."""
        gradients = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        workspace = launch_backward.make_workspace(self.q, self.k, self.sequences, self.blocks, ordered)
        found = launch_backward.backward_launches(
            *gradients, self.q, self.k, self.v, self.o, self.lse, self.do, self.sequences, self.blocks, workspace,
            scale=self.scale, deterministic=ordered, tuning=tuning, products="wgmma",
        )  # fmt: skip
        return found, [*gradients, workspace]

    @property
    def flop(self) -> float:
        """Floating-point operations of a backward pass: five products over the scores that the mask leaves, in each of
        which a multiplication and its addition are 2."""
        share = 0.5 if self.entry.mask == "causal" else 1.0
        return 10 * share * self.batch * self.entry.heads_q * self.entry.tokens**2 * self.entry.dim


def run(problem: Problem, launches: list[Any]) -> tuple[float, float]:
    """Milliseconds of all kernels and of the main one."""
    if problem.q.device.type != "cuda":
        began = time.perf_counter()
        for variant, values in launches:
            runtime.launch(variant, problem.q.device, values)
        return (1e3 * (time.perf_counter() - began),) * 2
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    torch.cuda._sleep(500_000)  # until the host has queued them all
    marks[0].record()
    for mark, (variant, values) in zip(marks[1:], launches, strict=True):
        runtime.launch(variant, problem.q.device, values)
        mark.record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[3]), marks[1].elapsed_time(marks[2])


def measured(problem: Problem, ordered: bool, rounds: int) -> list[dict[str, Any]]:
    """A row for each way."""
    rows, all_ways, expected = [], {}, None
    for name, tuning in WAYS.items():
        launches, gradients = problem.launches(tuning, ordered)
        run(problem, launches)
        first = [x.clone() for x in gradients[:3]]
        expected = expected or first
        off = max(difference(x, y) for x, y in zip(first, expected, strict=True))
        same = None
        if ordered:
            same = True
            for _ in range(3):
                run(problem, launches)
                same = same and all(torch.equal(x, y) for x, y in zip(first, gradients[:3], strict=True))
        all_ways[name] = (launches, gradients, [])
        rows.append({"way": name, "difference": round(off, 5), "same_bits": same})
    for _ in range(rounds):
        for launches, _, times in all_ways.values():
            times.append(run(problem, launches))
    for row in rows:
        times = all_ways[row["way"]][2]
        total, main = (min(t[i] for t in times) for i in range(2))
        row |= {"ms": round(total, 4), "main_ms": round(main, 4)}
        row |= {"tflops": round(problem.flop / total / 1e9, 1), "main_tflops": round(problem.flop / main / 1e9, 1)}
        row["wrong"] = not row["difference"] < DISAGREE or row["same_bits"] is False
    return rows


def builds(dims: list[int], masks: list[str], orders: list[bool]) -> list[Variant]:
    """The kernels that are needed, each once."""
    found: dict[Variant, None] = {}
    for dim in dims:
        for tuning in WAYS.values():
            found[Variant("postprocess", "bfloat16", dim, TILE, TILE, products="wgmma", tuning=tuning)] = None
            for mask in masks:
                kind = KINDS.get(mask, "none")
                found[Variant("forward", "bfloat16", dim, TILE, TILE, kind)] = None
                found[Variant("preprocess", "bfloat16", dim, tile_m=TILE)] = None
                for ordered in orders:
                    found[Variant("backward", "bfloat16", dim, TILE, TILE, kind, ordered, False, "wgmma", tuning)] = (
                        None
                    )
    return list(found)


def build(folder: str, arch: str, variant: Variant) -> None:
    """Compiles in a process of its own."""
    from kernels.blocksparse.compile.build import export

    export(variant, arch, folder)


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", "8192"), ("dims", "128,64"), ("masks", "full,causal"), ("ordered", "0,1")):
        parser.add_argument(f"--{name}", default=default)
    for name, number in (("batch", 2), ("heads", 16), ("heads-kv", 16), ("rounds", 8), ("seconds", 80)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began, where = time.monotonic(), "cuda"
    if options.dry:
        from fuzz.targets.blocksparse.devices import connect, emulated

        connect("emulator")
        emulated().blind = True  # atomic adds in no fixed order are what is measured, not a finding
        where, options.tokens, options.heads, options.heads_kv, options.batch, options.rounds = (
            "emulator",
            "200",
            2,
            1,
            1,
            1,
        )
    orders = [bool(int(x)) for x in options.ordered.split(",")]
    masks, dims = options.masks.split(","), [int(x) for x in options.dims.split(",")]
    problems = [
        (Entry("pair", mask, tokens, dim, options.heads, options.heads_kv, where), ordered)
        for ordered in orders
        for tokens in map(int, options.tokens.split(","))
        for mask in masks
        for dim in dims
    ]
    rows: list[dict[str, Any]] = []

    def all_problems() -> None:
        for entry, ordered in problems:
            if time.monotonic() - began > options.seconds:
                print("left out:", entry.name, "ordered" if ordered else "atomic")
                continue
            for row in measured(Problem(entry, options.batch), ordered, options.rounds):
                about = {"mask": entry.mask, "tokens": entry.tokens, "dim": entry.dim, "ordered": ordered}
                rows.append({**about, **row})
                print(json.dumps(rows[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1) + "\n")

    if options.dry:
        all_problems()
    else:
        print(torch.cuda.get_device_name(), torch.__version__, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            arch = runtime.arch_of(torch.device("cuda", 0))
            with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
                list(pool.map(partial(build, folder, arch), builds(dims, masks, orders)))
            print(f"built in {time.monotonic() - began:.0f} s", flush=True)
            with runtime.use_source(runtime.artifact_source(folder)):
                all_problems()
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
