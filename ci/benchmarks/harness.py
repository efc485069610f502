"""make bench: the harness's own figures on this machine, printed and written as JSON with the machine's description.

    python ci/benchmarks/harness.py --out ci/results/harness_host.json            on a CPU
    python ci/benchmarks/harness.py --device cuda --workers 1 4 8 16 --out …       on a GPU

overhead   per case: all but kernel, reference and compiling; i.e. drawing, inputs, judging, messages, records. Given in
           two readings: with the same-precision run, which is a PyTorch run of the case too but no reference (strict),
           and without it. A relation's further runs of the kernel are runs; what they need besides is overhead.
           Counted by the clock, from one verdict to the next: what a worker draws and records while its child
           works costs nothing as long as there is a core for it.
rate       cases per second of a whole session, drawing and judging included, start-up excluded (and given beside it)
state      microseconds that a case with eight calls spends on global state: read, compared, put back
           (fuzz/runner/process_state.py); median and fastest tenth
hang       seconds from the launch of a kernel that never returns to the next case's verdict, restart included
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console

from fuzz.core.case import Case
from fuzz.runner import Runner, process_state
from fuzz.session.pool import run_session
from fuzz.session.records import Reader, Record, machine
from fuzz.session.settings import Settings
from oracles.problem import Problem

OUTSIDE = ("reference", "run", "prepare")
BUDGET = "same_precision"  # the phase of the run that the error budget comes from
FAKES = Path(__file__).parents[2] / "tests" / "fakes" / "hangs.py"


def overhead(record: Record) -> float:
    """Seconds of a case that are neither kernel nor reference nor compiling."""
    s = record.seconds
    return s.get("total", 0.0) + s.get("draw", 0.0) - sum(s.get(phase, 0.0) for phase in OUTSIDE)


def without_budget(record: Record) -> float:
    """`overhead` without the same-precision run."""
    return overhead(record) - record.seconds.get(BUDGET, 0.0)


def session(device: str, targets: tuple[str, ...], cases: int, workers: int, size: str) -> dict:
    """One session in a fresh folder; its figures."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(targets=targets, device=device, cases=cases, size=size, seed=1, folder=folder, corpus="")
        settings = msgspec.structs.replace(settings, minimize_runs=10)
        began = time.monotonic()
        run_session(settings, workers, Console(file=sys.stderr))
        wall = time.monotonic() - began
        records = list(Reader(Path(folder)).new())
    phases: dict[str, dict[str, float]] = {"median": {}, "mean": {}}
    for name in ("draw", "inputs", "reference", BUDGET, "prepare", "run", "judge", "total"):
        spent = [1e3 * r.seconds.get(name, 0.0) for r in records]
        phases["median"][name] = round(statistics.median(spent), 3)
        phases["mean"][name] = round(statistics.fmean(spent), 3)
    busy = _busy(records)
    return {
        "targets": list(targets),
        "size": size,
        "workers": workers,
        "cases": len(records),
        "wall_s": round(wall, 2),
        "steady_s": round(busy, 2),
        "cases_per_s": round(len(records) / busy, 1),
        "cases_per_s_with_start": round(len(records) / wall, 1),
        "overhead_ms_median": round(1e3 * statistics.median(map(overhead, records)), 2),
        "overhead_without_same_precision_ms_median": round(1e3 * statistics.median(map(without_budget, records)), 2),
        "median_ms": phases["median"],
        "mean_ms": phases["mean"],
        "outcomes": {o: sum(r.outcome == o for r in records) for o in sorted({r.outcome for r in records})},
    }


def _busy(records: list[Record]) -> float:
    """Seconds of the busiest worker, without its first case (which starts the child)."""
    by: dict[str, list[Record]] = {}
    for record in records:
        by.setdefault(record.worker, []).append(record)
    return max(sum(r.seconds["total"] + r.seconds["draw"] for r in mine[1:]) for mine in by.values()) or 1e-9


def hang() -> dict:
    """Cost of a case that never ends: until its verdict, and until the next case's verdict."""
    problem = Problem((16,), (16,), 1, 1, 16, 16, "float32")
    good, bad = (Case(f"fake.{name}", problem) for name in ("honest", "sleeps"))
    with Runner("host", files=(str(FAKES), str(FAKES.with_name("honest.py")))) as runner:
        runner.run(good)
        began = time.perf_counter()
        verdict = runner.run(bad)
        answered = time.perf_counter() - began
        runner.run(good)
        whole = time.perf_counter() - began
    return {"outcome": verdict.outcome, "verdict_s": round(answered, 2), "with_next_case_s": round(whole, 2)}


def state(cases: int = 2000, calls: int = 8) -> dict:
    """Cost of keeping one target's changes of global state from the next, per case of `calls` calls."""
    kept = process_state.ProcessState()
    spent = []
    for _ in range(cases):
        began = time.perf_counter()
        kept.begin()
        for _ in range(calls):
            process_state.call(int)
        kept.end()
        spent.append(1e6 * (time.perf_counter() - began))
    fastest = statistics.quantiles(spent, n=10)[0]
    return {"calls": calls, "median_us": round(statistics.median(spent)), "fastest_tenth_us": round(fastest)}


def save(result: dict, out: str | None) -> None:
    """Writes what is there so far."""
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--targets", nargs="+", default=["torch.sdpa.math", "torch.sdpa.flash"])
    parser.add_argument("--size", default="small")
    parser.add_argument("--out")
    options = parser.parse_args()
    result: dict = {"machine": machine(), "sessions": []}
    for workers in options.workers:
        cases = options.cases * (workers if options.device == "cuda" else 1)
        result["sessions"].append(session(options.device, tuple(options.targets), cases, workers, options.size))
        save(result, options.out)
    if options.device == "host":
        result["state"] = state()
        result["hang"] = hang()
        save(result, options.out)
    print(json.dumps(result, indent=2))
    for row in result["sessions"]:
        print(
            f"{row['workers']:>3} workers  {row['cases_per_s']:>8} cases/s  "
            f"overhead {row['overhead_ms_median']} ms (median), "
            f"{row['overhead_without_same_precision_ms_median']} ms without the same-precision run"
        )
    if "hang" in result:
        print(f"global state costs a case {result['state']['median_us']} µs")
        print(f"a hang costs {result['hang']['with_next_case_s']} s, restart and next case included")


if __name__ == "__main__":
    main()
