"""What compiling costs on this machine, printed and written as JSON with the machine's description.

    python ci/bench_compile.py --jobs 1 2 --out ci/results/compile_host.json               a CPU
    python ci/bench_compile.py --jobs 1 2 4 8 16 --device cuda --out ci/results/…          a GPU machine

keys     kernels that 1,000 random cases of `blocksparse` need, for several seeds, and how long it takes to find out
rate     keys per minute with so many workers, each time into an empty cache; the start of the workers is included
session  share of a session's time, over its workers, spent compiling: from an empty cache, then the same again
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuzz.compiling import Build, Cache, Pool  # noqa: E402
from fuzz.compiling.plan import plan  # noqa: E402
from fuzz.pool import run_session  # noqa: E402
from fuzz.records import Reader, machine  # noqa: E402
from fuzz.session import Settings  # noqa: E402

TARGET = "blocksparse"
QUIET = Console(file=sys.stderr)


def keys(device: str, arch: str, seeds: range, cases: int) -> dict[str, Any]:
    """How many kernels `cases` random cases need, and which kinds."""
    counts, seconds, kinds, union = [], [], Counter[str](), set()
    for seed in seeds:
        began = time.perf_counter()
        planned = plan(Settings(targets=(TARGET,), device=device, cases=cases, seed=seed), arch)
        seconds.append(time.perf_counter() - began)
        counts.append(len(planned.builds))
        union |= {build.key for build in planned.builds}
        kinds.update(json.loads(build.options)["kind"] for build in planned.builds)
    return {
        "cases": cases,
        "keys": counts,
        "keys_of_all_seeds": len(union),
        "plan_seconds": [round(s, 2) for s in seconds],
        "kinds": {kind: round(n / len(seeds), 1) for kind, n in kinds.items()},
    }


def rate(builds: list[Build], jobs: int) -> dict[str, Any]:
    """Keys per minute with `jobs` workers."""
    with tempfile.TemporaryDirectory() as folder, Pool(Cache(folder), jobs) as pool:
        began = time.perf_counter()
        ended = list(pool.build(builds))
        seconds = time.perf_counter() - began
    built = [one.seconds for one in ended if one.status == "built"]
    return {
        "jobs": jobs,
        "keys": len(built),
        "failed": len(ended) - len(built),
        "seconds": round(seconds, 1),
        "keys_per_minute": round(60 * len(built) / seconds, 1),
        "seconds_per_key": {"median": round(statistics.median(built), 2), "most": round(max(built), 2)},
    }


def session(device: str, cases: int, workers: int, cache: str) -> dict[str, Any]:
    """One session; how much of its workers' time went into compiling."""
    os.environ["ATTNFUZZ_CACHE"] = cache
    with tempfile.TemporaryDirectory() as folder:
        wanted = Settings(targets=(TARGET,), device=device, cases=cases, corpus="", folder=folder, minimize_runs=0)
        began = time.perf_counter()
        run_session(wanted, workers, QUIET)
        wall = time.perf_counter() - began
        records = list(Reader(Path(folder)).new())
    compiling = sum(record.seconds.get("prepare", 0.0) for record in records)
    whole = sum(record.seconds.get("total", 0.0) + record.seconds.get("draw", 0.0) for record in records)
    outcomes = Counter(record.outcome for record in records)
    return {
        "cases": len(records),
        "outcomes": dict(outcomes),
        "wall_seconds": round(wall, 1),
        "compiling_seconds": round(compiling, 1),
        "share": round(compiling / whole, 3) if whole else 0.0,
    }


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--arch", default="sm_100a")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--keys", type=int, default=24, help="keys compiled for each number of workers")
    parser.add_argument("--cases", type=int, default=100, help="cases of each session")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()[0], "arch": options.arch}
    found["keys"] = keys(options.device, options.arch, range(5), 1000)
    print(json.dumps(found["keys"]), flush=True)
    every = plan(Settings(targets=(TARGET,), device=options.device, cases=1000), options.arch).builds
    step = max(1, len(every) // options.keys)
    found["rate"] = []
    for jobs in options.jobs:
        found["rate"].append(rate(list(every[::step][: options.keys]), jobs))
        print(json.dumps(found["rate"][-1]), flush=True)
    with tempfile.TemporaryDirectory() as cache:
        found["session"] = {"workers": options.workers}
        for name in ("cold", "warm"):
            found["session"][name] = session(options.device, options.cases, options.workers, cache)
            print(name, json.dumps(found["session"][name]), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(msgspec.to_builtins(found), indent=2) + "\n")
        print(f"written: {options.out}")


if __name__ == "__main__":
    main()
