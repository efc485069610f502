"""Cost of compiling on this machine, printed and written as JSON with the machine's description.

    python ci/benchmarks/compile_rate.py --jobs 1 2 --out ci/results/compile_host.json               a CPU
    python ci/benchmarks/compile_rate.py --jobs 1 2 4 8 16 --device cuda --out ci/results/…          a GPU machine

keys     kernels that 1,000 random cases of `blocksparse` need, for several seeds, and how long it takes to find out
rate     keys per minute with so many workers, each time into an empty cache; the start of the workers is included
session  what compiling takes of a session, from an empty cache, then the same again: ahead of its cases, by the clock
         and summed over the compiling workers; and what its cases still wait for, summed over the session's workers
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fuzz.compiling import Build, Cache, Pool  # noqa: E402
from fuzz.session.pool import run_session  # noqa: E402
from fuzz.session.precompile.background_compile import compile_ahead  # noqa: E402
from fuzz.session.precompile.build_plan import plan  # noqa: E402
from fuzz.session.records import Reader, machine  # noqa: E402
from fuzz.session.settings import Settings  # noqa: E402

TARGET = "blocksparse"
QUIET = Console(file=sys.stderr)


def keys(device: str, arch: str, seeds: range, cases: int) -> dict[str, Any]:
    """Numbers of kernels that `cases` random cases need, by kind."""
    counts, seconds, kinds, union = [], [], Counter[str](), set()
    for seed in seeds:
        began = time.perf_counter()
        planned = plan(Settings(targets=(TARGET,), device=device, cases=cases, seed=seed), arch)
        seconds.append(time.perf_counter() - began)
        counts.append(len(planned.builds))
        union |= {build.key for build in planned.builds}
        kinds.update(kind_of(build) for build in planned.builds)
    return {
        "cases": cases,
        "keys": counts,
        "keys_of_all_seeds": len(union),
        "plan_seconds": [round(s, 2) for s in seconds],
        "kinds": {kind: round(n / len(seeds), 1) for kind, n in kinds.items()},
    }


def mixed(builds: Sequence[Build]) -> list[Build]:
    """Shuffled builds, any part of which from the first one on has about as many of each kind as the whole."""
    kinds = Counter(kind_of(build) for build in builds)
    met: Counter[str] = Counter()
    places = []
    for build in builds:
        kind = kind_of(build)
        places.append((met[kind] + 0.5) / kinds[kind])
        met[kind] += 1
    return [build for _, build in sorted(zip(places, builds, strict=True), key=lambda pair: pair[0])]


def kind_of(build: Build) -> str:
    """forward, preprocess, backward or postprocess."""
    return str(json.loads(build.options)["kind"])


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
    """One session, whose kernels are compiled ahead as `run_session` does it, but by a clock of its own.

    share  of the session's time by the clock: compiling ahead, and the mean of what a worker's cases waited for
    """
    os.environ["ATTNFUZZ_CACHE"] = cache
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(targets=(TARGET,), device=device, cases=cases, corpus="", folder=folder, minimize_runs=0)
        began = time.perf_counter()
        ended = compile_ahead(settings, QUIET)
        ahead = time.perf_counter() - began
        run_session(settings, workers, QUIET)
        wall = time.perf_counter() - began
        records = list(Reader(Path(folder)).new())
    waited = sum(record.seconds.get("prepare", 0.0) for record in records)
    outcomes = Counter(record.outcome for record in records)
    return {
        "cases": len(records),
        "outcomes": dict(outcomes),
        "wall_seconds": round(wall, 1),
        "ahead": {
            "keys": len(ended),
            "failed": sum(one.status == "failed" for one in ended),
            "seconds": round(ahead, 1),
            "compiling_seconds": round(sum(one.seconds for one in ended), 1),
        },
        "waited_seconds": round(waited, 1),
        "share": round((ahead + waited / workers) / wall, 3),
    }


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--arch", default="sm_100a")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--keys", type=int, default=8, help="keys compiled by each worker, 16 at least in all")
    parser.add_argument("--cases", type=int, default=100, help="cases of each session; 0: no sessions")
    parser.add_argument("--seeds", type=int, default=5, help="sessions of which the keys are counted")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()[0], "arch": options.arch}
    found["keys"] = keys(options.device, options.arch, range(options.seeds), 1000)
    print(json.dumps(found["keys"]), flush=True)
    every = mixed(plan(Settings(targets=(TARGET,), device=options.device, cases=1000), options.arch).builds)
    found["rate"] = []
    for jobs in options.jobs:
        found["rate"].append(rate(every[: max(16, options.keys * jobs)], jobs))
        print(json.dumps(found["rate"][-1]), flush=True)
        write(found, options.out)
    if options.cases:
        found["session"] = {"workers": options.workers}
        with tempfile.TemporaryDirectory() as cache:
            for name in ("cold", "warm"):
                found["session"][name] = session(options.device, options.cases, options.workers, cache)
                print(name, json.dumps(found["session"][name]), flush=True)
                write(found, options.out)


def write(found: dict[str, Any], out: Path | None) -> None:
    """Writes the results so far."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
