"""Random cases on a GPU and on the emulated one, from the same compiled kernels: same verdicts, same answers within the
accuracy oracle's budget? Writes ci/results/emulator_vs_<gpu's arch>.json, for other targets than blocksparse
emulator_vs_<arch>_<target>.json.

    python ci/emulator_vs_cuda_cases.py [--cases 200] [--seconds 140]      on a machine with an NVIDIA GPU
    python ci/emulator_vs_cuda_cases.py --without-cuda --cases 4 --out F   a dry run: the emulator against itself, whose
                                                                          second run has its warps in another order
    python ci/emulator_vs_cuda_cases.py --target flash_attn.cute --record F    on a machine with an NVIDIA GPU: keeps
                                                                          the cases and the GPU's answers in F
    python ci/emulator_vs_cuda_cases.py --target flash_attn.cute --compare F   elsewhere: the emulator against these

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
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from case_workers import results, targets
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec import structs

from fuzz.compiling import Build, Cache, Pool
from fuzz.core.case import Case, from_json, to_json
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.generate.cases import cases

ROOT = Path(__file__).resolve().parent.parent
SIZE = Size(1 << 14, 4, 320, 1 << 16)
WARM = "from fuzz.devices.emulator.conformance import suite as s; s.emulate(next(s.all_kernels()))"


class Enough(Exception):
    """Ends the drawing."""


def drawn(name: str, count: int, start: int, most_builds: int, arch: str) -> tuple[list[Case], dict[str, Build]]:
    """Distinct cases, `count` of them with a backward pass, that need at most so many kernels; and the kernels."""
    target: Any = targets(name)["emulator"]()
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
        if refusal(target, case) is not None or not sum(case.problem.lengths_q):
            return
        if name == "blocksparse" and target.ctas_of(case):
            return  # a GPU runs all CTAs, or none
        needed = {b.key: b for b in target.builds(case, arch)}
        if len(builds.keys() | needed.keys()) <= most_builds:
            builds.update(needed)
            found[case.id] = case

    with contextlib.suppress(Enough):
        loop()
    return list(found.values()), builds


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

    names = ("torch", "nvidia-cutlass-dsl", "numba", "llvmlite", "flash-attn-4")
    return {
        "gpu": torch.cuda.get_device_name(0) if with_cuda else None, "arch": arch, "cpus": os.cpu_count(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *(Path(a).name if a.startswith("/") else a for a in sys.argv)]),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in names},
    }  # fmt: skip


def compiled(builds: Iterable[Build], workers: int, began: float) -> None:
    """Compiles the kernels, and says how far that is."""
    with Pool(Cache(), max(1, workers - 1)) as pool:
        for i, ended in enumerate(pool.build(builds)):
            if ended.status == "failed" or i % 20 == 19:
                print(f"{time.monotonic() - began:6.1f} s  kernel {i + 1} {ended.status} {ended.why[:200]}", flush=True)


def gpu_arch() -> str:
    """The arch that kernels for this machine's GPU are compiled for: 'sm_90a'."""
    from kernels.blocksparse.compile.runtime import arch_of

    return arch_of(torch.device("cuda", 0))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("blocksparse", "flash_attn.cute"), default="blocksparse")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=140.0, help="no case is begun after so many")
    parser.add_argument("--builds", type=int, default=150, help="kernels that may be compiled")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--without-cuda", action="store_true")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    began = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    recorded = torch.load(options.compare) if options.compare else None
    with_cuda = not options.without_cuda and recorded is None
    arch = recorded["about"]["arch"] if recorded else gpu_arch() if with_cuda else "sm_90a"
    os.environ["ATTNFUZZ_ARCH"] = arch  # what the emulator's kernels are compiled for, here and in the workers
    suffix = "" if options.target == "blocksparse" else "_" + options.target.replace(".", "_")
    out = options.out or ROOT / "ci" / "results" / f"emulator_vs_{arch.rstrip('a')}{suffix}.json"
    sides = ("cuda",) if options.record else ("emulator", "cuda") if with_cuda else ("emulator",)
    warm = subprocess.Popen([sys.executable, "-c", WARM], cwd=ROOT) if "emulator" in sides else None
    if recorded:
        given = [(from_json(text), answer) for text, answer in recorded["cases"].items()]
        target: Any = targets(options.target)["emulator"]()
        builds = {b.key: b for case, _ in given for b in target.builds(case, arch)}
    else:
        found, builds = drawn(options.target, options.cases, options.seed, options.builds, arch)
        given = [(case, None) for case in found]
    print(f"{len(given)} cases, {len(builds)} kernels for {arch}", flush=True)
    seconds: dict[str, float] = {"draw": round(time.monotonic() - began, 1)}
    compiled(builds.values(), options.workers, began)
    seconds["kernels"] = round(time.monotonic() - began, 1)
    if warm is not None:  # it compiles the interpreter, beside the kernels
        warm.wait()
    print(f"{time.monotonic() - began:6.1f} s  everything compiled", flush=True)

    rows: list[dict[str, Any]] = []
    answers: dict[str, Any] = {}
    head = about(arch, with_cuda) | {"seed": options.seed, "target": options.target}
    if recorded:
        head["gpu"], head["recorded_with"] = recorded["about"]["gpu"], recorded["about"]

    def save() -> None:
        seconds["all"] = round(time.monotonic() - began, 1)
        if options.record:
            torch.save({"about": head, "cases": answers}, options.record)
            return
        text = json.dumps(head | {"summary": summary(rows, len(given)), "seconds": seconds, "cases": rows}, indent=1)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")

    saved = time.monotonic()
    for ended in results(options.target, sides, given, options.workers, began + options.seconds):
        if ended is not None and options.record:
            case, result = ended
            if "cuda" in result:
                answers[to_json(case)] = {"cuda": result["cuda"], "answers": result["answers"]}
            else:
                print(f"{case.id}: {result}", flush=True)
        elif ended is not None:
            rows.append(_row(*ended))
        if time.monotonic() - saved > 5:
            saved = time.monotonic()
            save()
            short = summary(rows, len(given))
            print(f"{saved - began:6.1f} s  {len(rows) or len(answers)} of {len(given)} done, "
                  f"{short['same_verdict']} the same verdict, {short['all_tensors_within_budget']} within budget",
                  flush=True)  # fmt: skip
    save()
    if options.record:
        print(json.dumps(Counter(one["cuda"]["outcome"] for one in answers.values())))
    else:
        print(json.dumps(summary(rows, len(given)), indent=1))


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
