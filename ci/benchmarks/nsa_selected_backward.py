"""The backward pass of kernels.nsa's selected branch, by itself: dQ added in memory, in order or atomically, beside dQ
by a kernel of its own.

    python ci/benchmarks/nsa_selected_backward.py --tokens 65536 --heads 64/4 --units 1 4 16 --stages 3,3,2 5,5,1
    python ci/benchmarks/nsa_selected_backward.py --smoke     tiny, on the emulated GPU: its syntax

One sequence, head dim 128, bfloat16, blocks of 64, 16 selected, random inputs. 'all' is the pass with its lists, the
median of CUDA events around each of five calls; the kernels' own times are the profiler's, all in milliseconds.
'beside ordered' is the largest difference of dQ, dK and dV from those with ordered adds, as a share of the largest
value. --units times the separate dQ with so many units of each KV head (NOTE [group split]), --stages with so many
stages of K and of V and tiles of Q and dO (dq_by_queries/tuning.py), --step-groups, each with all units, with that main
loop for dK and dV (`step_groups` of backward/tiling.py). --json appends a line for each row to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from ci.benchmarks.nsa_speed import Inputs, Problem, timed  # noqa: E402
from kernels.blocksparse.launch import backward as launch_backward  # noqa: E402
from kernels.nsa.api import checked  # noqa: E402
from kernels.nsa.branches import Branch  # noqa: E402
from kernels.nsa.plans import branches_of, compressed  # noqa: E402
from kernels.nsa.selection import select  # noqa: E402

KERNELS = ("preprocess", "postprocess", "dqbyqueries", "backward")  # of names in lower case, the first that is there
Gradients = tuple[Tensor, Tensor, Tensor]


class Pass:
    """The backward pass of one selected branch."""

    def __init__(self, problem: Problem) -> None:
        inputs = Inputs(problem)
        operands, _ = checked(inputs.q, inputs.k, inputs.v, **inputs.options)
        small = compressed(operands)
        self.branch: Branch = branches_of(operands, small, select(operands, small.k))[1]
        self.out, self.lse = self.branch.forward()
        self.do = inputs.do

    def run(self, separate_dq: bool, ordered: bool = True) -> Gradients:
        """The gradients, lists too."""
        o = self.branch.operands
        branch = replace(self.branch, operands=replace(o, settings=replace(o.settings, deterministic=ordered)))
        return branch.backward(self.out, self.lse, self.do, separate_dq)

    def prepared(self, units: int | None, tuning: tuple[tuple[str, int], ...]) -> Callable[[], Gradients]:
        """The kernels alone, with a separate dQ, lists and memory made before."""
        o, branch, blocks = self.branch.operands, self.branch, self.branch.both_lists()
        units = branch.group_split(blocks, True) if units is None else units
        inputs = o.q, branch.k, branch.v
        found = tuple(torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in inputs)
        sequences = branch.sequences()
        workspace = launch_backward.make_workspace(o.q, o.k, sequences, blocks, True, units, separate_dq=True)

        def work() -> Gradients:
            launch_backward.backward(
                *found, *inputs, self.out, self.lse, self.do, sequences, blocks,
                scale=o.settings.scale, deterministic=True, products=o.launcher.products, workspace=workspace,
                tuning=tuning,
            )  # fmt: skip
            return found

        return work


def kernel_times(work: Callable[[], Any], rounds: int = 3) -> dict[str, float]:
    """Milliseconds of each kernel, by the profiler."""
    if not ON_GPU:
        return {}
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profiled.key_averages():
        name = next((x for x in KERNELS if x in event.key.lower()), "others")
        found[name] = found.get(name, 0.0) + event.device_time_total / 1e3 / rounds
    return {name: round(took, 3) for name, took in sorted(found.items())}


def differences(found: Gradients, others: Gradients) -> list[float]:
    """The largest of each gradient, as a share of the largest value."""
    pairs = zip(found, others, strict=True)
    return [float(f"{float((x - y).abs().max() / y.abs().max()):.2e}") for x, y in pairs]


def rows(
    problem: Problem, units: list[int], stages: list[tuple[int, ...]], step_groups: list[int]
) -> list[dict[str, Any]]:
    """The rows of a problem, printed as they come."""
    found: list[dict[str, Any]] = []

    def note(way: str, work: Callable[[], Gradients], beside: Gradients | None, **more: Any) -> Gradients:
        gradients = tuple(x.clone() for x in work())
        row = {**problem.row, "way": way, **more, "all": timed(work), **kernel_times(work)}
        if beside is not None:
            row["beside ordered"] = differences(gradients, beside)
            row["same again"] = all(torch.equal(x, y) for x, y in zip(gradients, work(), strict=True))
        found.append(row)
        print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        return gradients

    one = Pass(problem)
    ordered = note("ordered", lambda: one.run(False), None)
    note("atomic", lambda: one.run(False, ordered=False), ordered)
    note("separate", lambda: one.run(True), ordered)
    for number in units:
        for groups in step_groups:
            work = one.prepared(number, (("step_groups", groups),))
            note("separate, kernels alone", work, ordered, units=number, step_groups=groups)
    for numbers in stages:
        tuning = tuple(zip(("dq_stages_k", "dq_stages_v", "dq_tiles"), numbers, strict=True))
        note("separate, kernels alone", one.prepared(None, tuning), ordered, stages=numbers)
    return found


def emulate() -> None:
    """Launches on the emulated GPU, by wgmma; that atomic adds have no order is no finding."""
    from fuzz.devices.emulator.config import DEFAULT_CHECKS
    from fuzz.targets.blocksparse.devices import connect, emulated
    from kernels.nsa import operands
    from kernels.nsa.launcher import Launcher

    connect("emulator")
    torch.set_num_threads(1)
    emulated().begin(replace(emulated().emulator, checks=DEFAULT_CHECKS - {"unordered_adds"}))
    operands.LAUNCHER = Launcher("wgmma")


def main() -> int:
    """The rows of one problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536])
    parser.add_argument("--heads", default="64/4", help="query heads and KV heads")
    parser.add_argument("--units", type=int, nargs="*", default=[])
    parser.add_argument("--step-groups", type=int, nargs="*", default=[0])
    parser.add_argument("--stages", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    print(torch.cuda.get_device_name() if ON_GPU else "emulated", torch.__version__, flush=True)
    heads_q, heads_kv = map(int, options.heads.split("/"))
    problems = [Problem((tokens,), (heads_q, heads_kv)) for tokens in options.tokens]
    if options.smoke:
        problems = [Problem((256,), (2, 1), 128, 64, 2, 64)]
    if not ON_GPU:
        emulate()
    stages = [tuple(map(int, x.split(","))) for x in options.stages]
    with torch.no_grad():
        for problem in problems:
            found = rows(problem, options.units, stages, options.step_groups)
            if options.json:
                with options.json.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
            if ON_GPU:
                torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
