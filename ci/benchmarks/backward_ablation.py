"""What the transposed main loop would take without one of its parts: results are wrong, times say what bounds it.

    python ci/benchmarks/backward_ablation.py [--seconds 60]

Atomic adds, full mask, 8,192 tokens, 2 sequences of 16 heads. exp: no exponentials; bulk: no adds of dQ in memory;
hand: dQ stays in registers; load: Q and dO are loaded for four steps only; share: dS is not written to shared memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from backward_loops import Problem, run  # noqa: E402
from blocksparse_masks import TILE, Entry  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

TUNING = {128: (("transposed", 1),), 64: (("transposed", 1),)}
PARTS = ("", "exp", "bulk", "hand", "load", "share", "exp hand", "exp hand load share")


def without(parts: str) -> None:
    """Replaces parts of the kernel by nothing, in this process."""
    from cutlass import cute

    from kernels.blocksparse.backward import softmax_gradient
    from kernels.blocksparse.backward.hopper import dq_warp, loads, mainloop_transposed

    if "exp" in parts:
        softmax_gradient.exp2 = lambda values: values
    if "bulk" in parts:
        dq_warp.add_run = lambda *arguments: None
    if "hand" in parts:
        mainloop_transposed.hand_over_dq = lambda w, values: None
        dq_warp.add_dq_of_steps = lambda w: None
    if "share" in parts:
        mainloop_transposed.share_rounded = lambda *arguments: None
    if "load" in parts:
        original = loads.load_step

        @cute.jit
        def first_steps(w, operand, statistic, block, step, sX, sValues, full):
            if step < 4:
                original(w, operand, statistic, block, step, sX, sValues, full)
            elif cute.arch.lane_idx() == 0:
                cute.arch.mbarrier_arrive(full + step % cute.size(sX, mode=[2]))

        loads.load_step = first_steps


def build(folder: str, arch: str, variant: Variant, parts: str) -> None:
    """Compiles in a process of its own."""
    from kernels.blocksparse.compile.build import export

    if variant.kind == "backward":
        without(parts)
    export(variant, arch, Path(folder) / parts.replace(" ", "_"))


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
                jobs.append((Variant("forward", "bfloat16", dim, TILE, TILE), parts))
                jobs.append((Variant("preprocess", "bfloat16", dim, tile_m=TILE), parts))
                for kind in ("backward", "postprocess"):
                    jobs.append((Variant(kind, "bfloat16", dim, TILE, TILE, products="wgmma", tuning=tuning), parts))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
            for job in [pool.submit(build, folder, arch, variant, parts) for variant, parts in jobs]:
                job.result()
        print(f"built in {time.monotonic() - began:.0f} s", flush=True)
        for dim, tuning in TUNING.items():
            for parts in PARTS:
                if time.monotonic() - began > options.seconds:
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
