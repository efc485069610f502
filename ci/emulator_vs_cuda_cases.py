"""Random block-sparse cases on a GPU and on the emulated one, from the same compiled kernels: same verdicts, same
answers within the accuracy oracle's budget? Writes ci/results/emulator_vs_<gpu's arch>.json.

    python ci/emulator_vs_cuda_cases.py [--cases 200] [--seconds 140]      on a machine with an NVIDIA GPU
    python ci/emulator_vs_cuda_cases.py --without-cuda --cases 4 --out F   a dry run: the emulator against itself, whose
                                                                          second run has its warps in another order

Cases are drawn as a session draws them; --cases counts those with a backward pass. Kernels are compiled first, for the
GPU's own architecture, on every core; then each worker takes a case, judges it on both devices, and compares O, LSE,
dQ, dK and dV: the quotient of their distance and the budget that the accuracy oracle would give the emulator's answer,
were the GPU's the right one (1 is the limit), and whether they are equal to the bit. A worker that does not answer is
killed and its case counts as such. The file is written as results come.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec import structs

from fuzz.compiling import Build, Cache, Pool
from fuzz.core.case import Case, from_json, to_json
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.generate.cases import cases
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.gpu import GpuBlockSparse
from fuzz.targets.blocksparse.target import BlockSparseTarget
from oracles.outputs import Outputs

ROOT = Path(__file__).resolve().parent.parent
SIZE = Size(1 << 14, 4, 320, 1 << 16)
CASE_LIMIT = 60.0  # seconds after which a worker counts as stuck
START_LIMIT = 120.0  # of its first case, which imports and loads
WARM = "from fuzz.devices.emulator.conformance import suite as s; s.emulate(next(s.all_kernels()))"


class Enough(Exception):
    """Ends the drawing."""


def drawn(count: int, start: int, most_builds: int, arch: str) -> tuple[list[Case], dict[str, Build]]:
    """Distinct cases, `count` of them with a backward pass, that need at most so many kernels; and the kernels."""
    target = EmulatedBlockSparse()
    found: dict[str, Case] = {}
    builds: dict[str, Build] = {}

    @seed(start)
    @settings(max_examples=40 * count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases(target, SIZE, repeats=2))
    def loop(case: Case) -> None:
        case = structs.replace(case, relations=())
        if sum(c.problem.backward for c in found.values()) >= count:
            raise Enough
        if case.id in found:
            return
        if refusal(target, case) is not None or not sum(case.problem.lengths_q) or target.ctas_of(case):
            return  # a GPU runs all CTAs, or none
        needed = {b.key: b for b in target.builds(case, arch)}
        if len(builds.keys() | needed.keys()) <= most_builds:
            builds.update(needed)
            found[case.id] = case

    with contextlib.suppress(Enough):
        loop()
    return list(found.values()), builds


# ------------------------------------------------------------------------------------------------------------ a worker


def judged(case: Case, target: BlockSparseTarget) -> tuple[str, list[str], Outputs | None, Outputs | None]:
    """(outcome, what was found, the first and the second run's answers on the CPU).

    No more is kept: what grows with every run is what the judge calls a leak.
    """
    from fuzz.judging.judge import execute

    kept: list[Outputs] = []
    run = type(target).run

    def keep(case: Case, tensors: Any) -> Any:
        execution = run(target, case, tensors)
        if len(kept) < 2:
            kept.append(Outputs(**{name: x.detach().cpu().clone() for name, x in execution.outputs.items()}))
        return execution

    target.run = keep  # type: ignore[method-assign]
    verdict = execute(case, target, lambda phase, limit: None)
    found = sorted({f"{f.oracle}/{f.kind}: {f.message}"[:200] for f in verdict.findings})
    return verdict.outcome, found, kept[0] if kept else None, kept[-1] if kept else None


def distances(case: Case, ours: Outputs, theirs: Outputs) -> dict[str, dict[str, float | bool]]:
    """Distances by tensor: the largest quotient of their distance and its budget, and whether they are equal to the
    bit."""
    from fuzz.tensors.arena import build
    from oracles.accuracy import judge
    from oracles.error_budget.same_precision import same_precision
    from oracles.numerics import FUSED

    t = build(case, torch.device("cpu")).tensors()
    same = same_precision(case.problem, t.q, t.k, t.v, bias=t.bias, do=t.do, numerics=FUSED)
    want = Outputs(**{name: x.float() for name, x in theirs.items()})
    found = judge(case.problem, ours, want, same)
    words = {2: torch.int16, 4: torch.int32}
    result: dict[str, dict[str, float | bool]] = {}
    for name, mine in ours.items():
        other = dict(theirs.items())[name]
        width = words[mine.element_size()]
        equal = bool((mine.contiguous().view(width) == other.contiguous().view(width)).all())
        ratio = found.worst[name].ratio if name in found.worst else 0.0
        result[name] = {"ratio": round(ratio, 4), "bitwise": equal}
    return result


def work(pipe: Connection, with_cuda: bool) -> None:
    """Outputs cases (JSON) with results until the pipe closes."""
    torch.set_num_threads(1)
    emulated = EmulatedBlockSparse()
    real = GpuBlockSparse() if with_cuda else None
    while True:
        try:
            case = from_json(pipe.recv())
        except EOFError:
            return
        start = time.perf_counter()
        try:
            result: dict[str, Any] = {}
            outcome, found, ours, again = judged(case, emulated)
            result["emulator"] = {"outcome": outcome, "findings": found}
            result["emulator_seconds"] = round(time.perf_counter() - start, 3)
            theirs = again
            if real is not None:
                outcome, found, theirs, _ = judged(case, real)
            result["cuda" if real is not None else "again"] = {"outcome": outcome, "findings": found}
            if ours is not None and theirs is not None:
                result["tensors"] = distances(case, ours, theirs)
        except Exception as error:  # of this script: a case's own troubles are in its verdict
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        result["seconds"] = round(time.perf_counter() - start, 3)
        pipe.send(result)


# ---------------------------------------------------------------------------------------------------------- the parent


@dataclass
class Worker:
    """A process with a pipe, and the case that it has in hand."""

    with_cuda: bool
    case: Case | None = None
    since: float = 0.0
    limit: float = START_LIMIT
    pipe: Connection = field(init=False)
    process: Any = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A fresh process."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.with_cuda), daemon=True)
        self.process.start()
        theirs.close()
        self.limit = START_LIMIT

    def give(self, case: Case) -> None:
        self.case, self.since = case, time.monotonic()
        self.pipe.send(to_json(case))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def summary(rows: list[dict[str, Any]], cases_drawn: int) -> dict[str, Any]:
    """Summary of the rows."""
    other = "again" if any("again" in r for r in rows) else "cuda"
    whole = [r for r in rows if "emulator" in r and other in r]
    tensors: dict[str, dict[str, float]] = {}
    for row in whole:
        for name, x in row.get("tensors", {}).items():
            t = tensors.setdefault(name, {"cases": 0, "within_budget": 0, "bitwise": 0, "largest_ratio": 0.0})
            t["cases"] += 1
            t["within_budget"] += x["ratio"] <= 1
            t["bitwise"] += bool(x["bitwise"])
            t["largest_ratio"] = max(t["largest_ratio"], x["ratio"])
    outcomes = Counter(f"{r['emulator']['outcome']} / {r[other]['outcome']}" for r in whole)
    return {
        "drawn": cases_drawn, "compared": len(whole), "with_backward": sum(r["backward"] for r in whole),
        "same_verdict": sum(r["emulator"]["outcome"] == r[other]["outcome"] for r in whole),
        "outcomes_emulator_and_other": dict(outcomes),
        "all_tensors_within_budget": sum(all(x["ratio"] <= 1 for x in r.get("tensors", {}).values()) for r in whole),
        "tensors": tensors, "not_compared": len(rows) - len(whole),
    }  # fmt: skip


def about(arch: str, with_cuda: bool) -> dict[str, Any]:
    """The machine and the versions of what took part."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "?"

    names = ("torch", "nvidia-cutlass-dsl", "numba", "llvmlite")
    return {
        "gpu": torch.cuda.get_device_name(0) if with_cuda else None, "arch": arch, "cpus": os.cpu_count(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *(Path(a).name if a.startswith("/") else a for a in sys.argv)]),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in names},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=140.0, help="no case is begun after so many")
    parser.add_argument("--builds", type=int, default=150, help="kernels that may be compiled")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--without-cuda", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    with_cuda = not options.without_cuda
    arch = "sm_90a"
    if with_cuda:
        from kernels.blocksparse.compile.runtime import arch_of

        arch = arch_of(torch.device("cuda", 0))
    os.environ["ATTNFUZZ_ARCH"] = arch  # what the emulator's kernels are compiled for, here and in the workers
    out = options.out or ROOT / "ci" / "results" / f"emulator_vs_{arch}.json"
    warm = subprocess.Popen([sys.executable, "-c", WARM], cwd=ROOT)  # compiles the interpreter, beside the kernels
    found, builds = drawn(options.cases, options.seed, options.builds, arch)
    print(f"{len(found)} cases, {len(builds)} kernels for {arch}", flush=True)
    seconds: dict[str, float] = {"draw": round(time.monotonic() - began, 1)}
    with Pool(Cache(), max(1, options.workers - 1)) as pool:
        for i, ended in enumerate(pool.build(builds.values())):
            if ended.status == "failed" or i % 20 == 19:
                print(f"{time.monotonic() - began:6.1f} s  kernel {i + 1} {ended.status} {ended.why[:200]}", flush=True)
    seconds["kernels"] = round(time.monotonic() - began, 1)
    warm.wait()
    seconds["interpreter"] = round(time.monotonic() - began, 1)
    print(f"{seconds['interpreter']:6.1f} s  everything compiled", flush=True)

    rows: list[dict[str, Any]] = []
    head = about(arch, with_cuda) | {"seed": options.seed}

    def save() -> None:
        seconds["all"] = round(time.monotonic() - began, 1)
        text = json.dumps(head | {"summary": summary(rows, len(found)), "seconds": seconds, "cases": rows}, indent=1)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")

    todo = list(reversed(found))
    workers = [Worker(with_cuda) for _ in range(min(options.workers, len(found)))]
    saved = 0.0
    while True:
        for worker in workers:
            if worker.case is None and todo and time.monotonic() - began < options.seconds:
                worker.give(todo.pop())
        busy = {w.pipe: w for w in workers if w.case is not None}
        if not busy:
            break
        for pipe in wait(list(busy), timeout=1.0):
            worker = busy.pop(pipe)  # type: ignore[call-overload]
            assert worker.case is not None
            try:
                result = worker.pipe.recv()
                worker.limit = CASE_LIMIT
            except (EOFError, OSError):
                result = {"error": f"the worker ended ({worker.process.exitcode})"}
                worker.end()
                worker.start()
            rows.append(_row(worker.case, result))
            worker.case = None
        for worker in busy.values():
            if worker.case is not None and time.monotonic() - worker.since > worker.limit:
                rows.append(_row(worker.case, {"error": f"no answer within {worker.limit:.0f} s"}))
                worker.end()
                worker.start()
                worker.case = None
        if time.monotonic() - saved > 5:
            saved = time.monotonic()
            save()
            short = summary(rows, len(found))
            print(f"{saved - began:6.1f} s  {short['compared']} of {len(found)} compared, "
                  f"{short['same_verdict']} the same verdict, {short['all_tensors_within_budget']} within budget",
                  flush=True)  # fmt: skip
    for worker in workers:
        worker.end()
    save()
    print(json.dumps(summary(rows, len(found)), indent=1))


def _row(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    """A line of the file; a case that is not the same on both is there as a whole."""
    p = case.problem
    row = {"case": case.id, "backward": p.backward, "dtype": p.dtype, "dim": p.dim, **result}
    outcomes = {result[side]["outcome"] for side in ("emulator", "cuda", "again") if side in result}
    if len(outcomes) != 1 or any(not x["ratio"] <= 1 for x in result.get("tensors", {}).values()):
        row["whole"] = json.loads(to_json(case))
    return row


if __name__ == "__main__":
    main()
