"""Cases until a planted bug is found, with the oracles that need no tolerance and without them: python ci/detection.py.

Each planted bug of a kernel is fuzzed from several seeds, in this process, until the first bad verdict. 'without' draws
the same cases but for exact inputs (three in eleven), which are drawn from the other distributions, and asks no case
otherwise. Prints a table and writes JSON with --json FILE. On a CPU, sdpa runs in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from fuzz import strategies
from fuzz.case import Case
from fuzz.exact_values import STYLES
from fuzz.judge import execute
from fuzz.session import Lane, explore
from fuzz.signature import root
from fuzz.targets.registry import load, targets
from fuzz.targets.target import Target, refusal


def main() -> None:
    """Runs all planted bugs of --kernel, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="planted bugs, such as sdpa!causal_off_by_one; none: all of --kernel")
    parser.add_argument("--kernel", default="sdpa")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cases", type=int, default=60, help="the most for each seed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.names or [n for n in targets(planted=True) if n.startswith(f"{given.kernel}!")]
    rows = []
    for name in names:
        for new in (False, True):
            row = measure(load(name), new, given.seeds, given.cases)
            rows.append(row)
            print(f"{name:45} {'with' if new else 'without':8} cases {row['cases']} median {row['median']}", flush=True)
    if given.json:
        given.json.write_text(
            json.dumps({"torch": torch.__version__, "limit": given.cases, "rows": rows}, indent=1) + "\n"
        )


def measure(target: Target, new: bool, seeds: int, limit: int) -> dict[str, Any]:
    """Cases and seconds to the first bad verdict for each seed (limit + 1: none), and the oracle that gave it."""
    known = strategies.DISTRIBUTIONS
    if not new:
        strategies.DISTRIBUTIONS = tuple(name for name in known if name not in STYLES)
    try:
        found = [_first(target, new, seed, limit) for seed in range(seeds)]
    finally:
        strategies.DISTRIBUTIONS = known
    cases, seconds, oracles = ([of[i] for of in found] for i in range(3))
    row = {"target": target.name, "new_oracles": new, "cases": cases, "median": statistics.median(cases)}
    return row | {"worst": max(cases), "median_seconds": round(statistics.median(seconds), 2), "oracles": oracles}


def _first(target: Target, new: bool, seed: int, limit: int) -> tuple[int, float, str]:
    count, oracle, began = 0, "", time.perf_counter()

    def one(case: Case) -> None:
        nonlocal count, oracle
        if oracle or refusal(target, case) is not None:
            return
        count += 1
        verdict = execute(case if new else replace(case, relations=()), target, lambda phase, limit: None)
        first = root(verdict)
        if verdict.bad and first is not None:
            oracle = f"{first.oracle}:{first.kind}"

    explore(Lane(target.name, 0, limit, 1000 + seed), strategies.cases(target, strategies.SMALL, 1), one)
    return (count if oracle else limit + 1), time.perf_counter() - began, oracle


if __name__ == "__main__":
    main()
