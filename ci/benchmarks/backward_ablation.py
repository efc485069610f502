"""What the transposed main loop would take without one of its parts: results are wrong, times say what bounds it.

    python ci/benchmarks/backward_ablation.py [--seconds 60]

Atomic adds, full mask, 8,192 tokens, 2 sequences of 16 heads. exp: no exponentials; bulk: no adds of dQ in memory; hand:
dQ stays in registers; load: Q and dO are loaded for four steps only; share: dS is not written to shared memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from backward_loops import Problem, run  # noqa: E402
from blocksparse_masks import TILE, Entry  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

TUNING = {128: (("transposed", 3),), 64: (("transposed", 3),)}
PARTS = ("", "exp", "bulk", "hand", "load", "share", "exp hand load share")


@contextmanager
def without(parts: str) -> Iterator[None]:
    """Parts of the kernel are nothing, in this process."""
    from cutlass import cute

    from kernels.blocksparse.backward import softmax_gradient
    from kernels.blocksparse.backward.transposed import dq_warp, loads, mainloop

    original = loads.load_step

    @cute.jit
    def first_steps(w, operand, statistic, block, step, sX, sValues, full):
        if step < 4:
            original(w, operand, statistic, block, step, sX, sValues, full)
        elif cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(full + step % cute.size(sX, mode=[2]))

    replaced = {
        "exp": [(softmax_gradient, "exp2", lambda values: values)],
        "bulk": [(dq_warp, "add_run", lambda *arguments: None)],
        "hand": [
            (mainloop, "hand_over_dq", lambda w, values: None),
            (dq_warp, "add_dq_of_steps", lambda w: None),
        ],
        "load": [(loads, "load_step", first_steps)],
        "share": [(mainloop, "share_rounded", lambda *arguments: None)],
    }
    kept = []
    for part in parts.split():
        for module, name, other in replaced[part]:
            kept.append((module, name, getattr(module, name)))
            setattr(module, name, other)
    try:
        yield
    finally:
        for module, name, before in kept:
            setattr(module, name, before)


def build(folder: str, arch: str, variant: Variant, parts: str) -> None:
    """Compiles in a process of its own."""
    from kernels.blocksparse.compile.build import export

    with without(parts):
        export(variant, arch, Path(folder) / parts.replace(" ", "_"))


class Clocks(threading.Thread):
    """What nvidia-smi says of the clock (MHz) and the power (W) until `stop`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended, self.said = threading.Event(), []

    def run(self) -> None:
        query = ["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
        while not self.ended.is_set():
            with suppress(Exception):
                said = subprocess.run(query, capture_output=True, text=True, timeout=5, check=False).stdout
                self.said.append(tuple(float(x) for x in said.split(",")))


def measured(problem: Problem, launches) -> tuple[float, str]:
    """(milliseconds of the main kernel, clock and power while it runs for a second)."""
    run(problem, launches)
    clocks, times, began = Clocks(), [], time.monotonic()
    clocks.start()
    while time.monotonic() - began < 0.8:
        times += [run(problem, launches)[1] for _ in range(20)]
    clocks.ended.set()
    clocks.join()
    said = sorted(clocks.said)
    return sorted(times)[len(times) // 2], str(said[len(said) // 2]) if said else "?"


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    began = time.monotonic()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        arch, jobs = runtime.arch_of(torch.device("cuda", 0)), []
        for dim, tuning in TUNING.items():
            for parts in PARTS:
                jobs.append((Variant("backward", "bfloat16", dim, TILE, TILE, products="wgmma", tuning=tuning), parts))
            jobs += [
                (Variant("forward", "bfloat16", dim, TILE, TILE), ""),
                (Variant("preprocess", "bfloat16", dim), ""),
            ]
            jobs.append((Variant("postprocess", "bfloat16", dim, TILE, TILE, products="wgmma", tuning=tuning), ""))
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            for job in [pool.submit(build, folder, arch, variant, parts) for variant, parts in jobs]:
                job.result()
        for parts in filter(None, PARTS):  # the kernels around it are the same
            for file in Path(folder).glob("*.o"):
                if not file.name.startswith("backward"):
                    shutil.copy(file, Path(folder) / parts.replace(" ", "_"))
        print(f"built in {time.monotonic() - began:.0f} s", flush=True)
        for dim, tuning in TUNING.items():
            for parts in PARTS:
                if time.monotonic() - began > options.seconds:  # of compiling and measuring
                    print("left out:", dim, parts)
                    continue
                with runtime.use_source(runtime.artifact_source(Path(folder) / parts.replace(" ", "_"))):
                    problem = Problem(Entry("pair", "full", 8192, dim, 16, 16), 2)
                    launches, _ = problem.launches(tuning, False)
                    run(problem, launches)
                    ms = min(run(problem, launches)[1] for _ in range(6))
                    print(
                        f"dim {dim} without {parts or 'nothing':24s} {ms:.4f} ms {problem.flop / ms / 1e9:.1f} TFLOP/s",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
