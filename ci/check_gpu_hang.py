"""Cost and evidence of a hang and a crash on a real GPU: python ci/check_gpu_hang.py --out hang.json

Runs cases through a Runner on cuda:0: an honest kernel, one that spins forever on a flag in global memory, one that
writes to an unmapped address, one that asks for too much memory; then kills the harness itself while a kernel
spins, and compares the rate of small cases with and without GPU core dumps enabled. The children do all of CUDA.
With --device host the same steps run on CPU stand-ins, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuzz.core.case import Case  # noqa: E402
from fuzz.runner import Runner  # noqa: E402
from fuzz.targets import target  # noqa: E402
from oracles.numerics import EXACT  # noqa: E402
from oracles.problem import Problem  # noqa: E402

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

PROBLEM = Problem((64,), (64,), 2, 2, 32, 32, "float32")
DEVICES = ("host", "cuda")

if triton is not None:

    @triton.jit
    def spin_until_set(flag):
        """Returns when flag[0] is not 0."""
        seen = tl.atomic_add(flag, 0)
        while seen == 0:
            seen = tl.atomic_add(flag, 0)

    @triton.jit
    def write_far_away(x, distance):
        """Writes one element far outside x."""
        tl.store(x + distance.to(tl.int64) * 1024, 1.0)


def formula(q, k, v, mask, scale):
    """Attention in fp32, in plain PyTorch."""
    scores = (q.float() @ k.float().transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@target("gpu.honest", device=DEVICES, numerics=EXACT, gqa=False)
def honest(q, k, v, mask, scale):
    """Launches the spinning kernel with its flag set, then answers."""
    if q.is_cuda:
        spin_until_set[(4,)](torch.ones(1, dtype=torch.int32, device=q.device))
    return formula(q, k, v, mask, scale)


@target("gpu.spins", device=DEVICES, numerics=EXACT, gqa=False)
def spins(q, k, v, mask, scale):
    """Four blocks wait for a flag that is never set."""
    if not q.is_cuda:
        time.sleep(3600)
    spin_until_set[(4,)](torch.zeros(1, dtype=torch.int32, device=q.device))
    torch.cuda.synchronize()
    return formula(q, k, v, mask, scale)


@target("gpu.illegal_access", device=DEVICES, numerics=EXACT, gqa=False)
def illegal_access(q, k, v, mask, scale):
    """Writes to an unmapped address, which costs the process its CUDA context."""
    if not q.is_cuda:
        os.abort()
    write_far_away[(1,)](torch.zeros(8, device=q.device), 1 << 30)
    torch.cuda.synchronize()
    return formula(q, k, v, mask, scale)


@target("gpu.out_of_memory", device=DEVICES, numerics=EXACT, gqa=False)
def out_of_memory(q, k, v, mask, scale):
    """Asks for four terabytes."""
    torch.empty(1 << 42, dtype=torch.uint8, device=q.device)
    return formula(q, k, v, mask, scale)


def main() -> int:
    """Runs all steps, prints one line each, and the evidence of the hang."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--cases", type=int, default=200, help="small cases per rate")
    parser.add_argument("--out", type=Path, help="JSON of everything")
    parser.add_argument("--keep", type=Path, help="folder for GPU core files")
    parser.add_argument("--child-of-the-check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child_of_the_check:
        return spin_and_wait(options.device)
    report: dict[str, Any] = {"device": options.device, "torch": torch.__version__}
    with runner(options, core_dump=True) as found:
        report["start"] = timed("start", found.start)
        report["workers are forked"] = found.forks
        print(f"{'workers are forked':24} {found.forks}")
        report["first case"] = step(found, "gpu.honest", "pass")
        report["rate, core dumps on"] = rate(found, options.cases)
        for name, outcome in (
            ("spins", "hang"),
            ("spins", "hang"),
            ("illegal_access", "crash"),
            ("out_of_memory", "crash"),
        ):
            label = name if name not in report else f"{name} again"
            report[label] = step(found, f"gpu.{name}", outcome)
    with runner(options, core_dump=False) as found:
        found.run(case("gpu.honest"))
        report["rate, core dumps off"] = rate(found, options.cases)
        report["spins, no core dump"] = step(found, "gpu.spins", "hang")
        report["workers are forked after a loss"] = found.forks
        print(f"{'… and after a loss':24} {found.forks}")
    report["beside a hang"] = beside_a_hang(options)
    report["parent killed"] = parent_killed(options.device)
    show_evidence(report["spins"])
    if options.out:
        options.out.write_text(json.dumps(report, indent=1, default=str) + "\n")
    failed = [name for name, entry in report.items() if isinstance(entry, dict) and not entry.get("good", True)]
    print("failed: " + ", ".join(failed) if failed else "all as expected")
    return 1 if failed else 0


def runner(options: argparse.Namespace, *, core_dump: bool) -> Runner:
    """A Runner of this file's targets."""
    return Runner(options.device, files=(str(Path(__file__).resolve()),), core_dump=core_dump, keep=options.keep)


def case(name: str) -> Case:
    """One run, so that a step's time is one hang's."""
    return Case(name, PROBLEM, repeats=1)


def timed(name: str, work: Callable[[], Any]) -> dict[str, Any]:
    """Seconds of `work`."""
    began = time.monotonic()
    work()
    spent = time.monotonic() - began
    print(f"{name:24} {spent:7.2f} s", flush=True)
    return {"seconds": round(spent, 3)}


def step(found: Runner, name: str, expected: str) -> dict[str, Any]:
    """One case and an honest one after it: outcome, what both cost, and the evidence."""
    began = time.monotonic()
    verdict = found.run(case(name))
    middle = time.monotonic()
    after = found.run(case("gpu.honest"))
    end = time.monotonic()
    good = verdict.outcome == expected and after.outcome == "pass"
    message = verdict.findings[0].message if verdict.findings else verdict.reason
    times = f"{middle - began:7.2f} s, next case {end - middle:6.2f} s ({after.outcome})"
    print(f"{name:24} {times}  {verdict.outcome}: {message}", flush=True)
    return {
        "good": good,
        "outcome": verdict.outcome,
        "message": message,
        "seconds": round(middle - began, 3),
        "next_case_seconds": round(end - middle, 3),
        "next_case": after.outcome,
        "phases": verdict.seconds,
        "evidence": verdict.evidence,
    }


def rate(found: Runner, count: int) -> dict[str, Any]:
    """Small honest cases in a row."""
    seconds = []
    outcomes = set()
    for _ in range(count):
        began = time.perf_counter()
        outcomes.add(found.run(case("gpu.honest")).outcome)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    print(f"{'rate':24} {1 / median:7.0f} cases a second, median {median * 1e3:.2f} ms, {outcomes}", flush=True)
    return {"good": outcomes == {"pass"}, "median_seconds": median, "count": count}


def beside_a_hang(options: argparse.Namespace) -> dict[str, Any]:
    """Checks whether another worker on the same GPU goes on while a kernel of this one spins and is killed."""
    import threading

    hung = []
    with runner(options, core_dump=True) as first, runner(options, core_dump=False) as second:
        first.run(case("gpu.honest"))
        second.run(case("gpu.honest"))
        thread = threading.Thread(target=lambda: hung.append(first.run(case("gpu.spins"))))
        thread.start()
        outcomes: dict[str, int] = {}
        slowest = 0.0
        while thread.is_alive():
            began = time.monotonic()
            outcome = second.run(case("gpu.honest")).outcome
            slowest = max(slowest, time.monotonic() - began)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        thread.join()
    print(f"{'beside a hang':24} {outcomes}, slowest {slowest:.2f} s; the other: {hung[0].outcome}", flush=True)
    return {"good": set(outcomes) <= {"pass"}, "outcomes": outcomes, "slowest_seconds": slowest}


def parent_killed(device: str) -> dict[str, Any]:
    """Kills a harness whose child spins on the GPU; seconds until the child is gone."""
    command = [sys.executable, str(Path(__file__).resolve()), "--device", device, "--child-of-the-check"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(1.0)
        parent.send_signal(signal.SIGKILL)
        began = time.monotonic()
        while running(child) and time.monotonic() - began < 30:
            time.sleep(0.01)
    spent = time.monotonic() - began
    print(f"{'parent killed':24} {spent:7.2f} s until its child was gone", flush=True)
    return {"good": spent < 2, "seconds": round(spent, 3)}


def spin_and_wait(device: str) -> int:
    """The parent that is to be killed."""
    with Runner(device, files=(str(Path(__file__).resolve()),)) as found:
        found.run(case("gpu.honest"))
        print(found.pid, flush=True)
        found.run(case("gpu.spins"))
    return 0


def running(pid: int) -> bool:
    """True if the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def show_evidence(entry: dict[str, Any]) -> None:
    """The evidence of the first hang, for reading."""
    print("\nevidence of the hang:")
    for name, value in entry["evidence"].items():
        text = json.dumps(value, indent=1, default=str) if isinstance(value, dict) else str(value)
        print(f"-- {name}: {text}" if "\n" not in text else f"-- {name}:\n{text}")
    print()


if __name__ == "__main__":
    sys.exit(main())
