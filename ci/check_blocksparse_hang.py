"""Planted deadlocks of the block-sparse backward pass, found, explained and minimised: on a GPU, or the emulated one.

    python ci/check_blocksparse_hang.py --device cuda --out ci/results/blocksparse_hang_h100.json
    python ci/check_blocksparse_hang.py --device host        the same on the emulated GPU, smaller, to try the script

Runs every planted bug of `blocksparse` and the correct kernels beside it, first on the configuration in which the bug
was met for real (ten packed segments of 1,024 tokens, `varlen_full_1k`), then on a problem with more CTAs than fit at
once. For each: what the metadata foretells, the verdict, the seconds until it was there, what the semaphores said, and
whether the next case on the same device passes. Then the real one is minimised. Exits with 1 where something is not as
it must be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuzz.case import Case  # noqa: E402
from fuzz.minimize import minimize  # noqa: E402
from fuzz.records import machine  # noqa: E402
from fuzz.runner import Runner  # noqa: E402
from fuzz.targets.bundled_blocksparse import MUTANTS  # noqa: E402
from fuzz.targets.registry import load  # noqa: E402
from fuzz.targets.target import refusal  # noqa: E402
from fuzz.verdict import Verdict, summary  # noqa: E402
from oracles.masks import Causal, Documents, PerHead, Window  # noqa: E402
from oracles.problem import Problem  # noqa: E402

SEGMENTS = (366, 391, 471, 835, 984, 1005, 1017, 1020, 1023)
VARLEN_FULL_1K = Problem((1024,), (1024,), 8, 1, 128, 128, "bfloat16", mask=Documents(SEGMENTS))
HANGS = ("lock_is_n_block", "release_missing", "release_twice", "semaphores_not_cleared", "rank_direction")
# Must be found on the larger problem; the others are reported as they are.
FOUND = (*HANGS, "tail_keys_not_masked", "sums_not_rescaled", "head_ignored", "last_partial_block_lost")


def large(device: str) -> Problem:
    """More CTAs than a GPU holds, different masks per head, lengths that fill no tile."""
    if device == "host":
        mask = PerHead((Window(100, 20), Causal()))
        return Problem((260,), (200,), 2, 1, 64, 64, "float16", mask=mask)
    mask = PerHead((Window(500, 60), Causal()))
    return Problem((3000,) * 4, (2900,) * 4, 16, 8, 64, 64, "float16", mask=mask)


def told(verdict: Verdict) -> dict[str, Any]:
    """What is kept of a verdict."""
    kept = ("explained", "foretold", "resident_ctas", "kernel", "looks", "look_trouble", "shape", "emulator")
    found: dict[str, Any] = {
        "outcome": verdict.outcome,
        "summary": summary(verdict)[:600],
        "findings": [f"{f.oracle}:{f.kind}:{f.tensor}" for f in verdict.findings],
        "seconds": {phase: round(spent, 3) for phase, spent in verdict.seconds.items()},
    }
    return found | {name: str(verdict.evidence[name])[:3000] for name in kept if name in verdict.evidence}


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wrong: list[str] = []
    found: dict[str, Any] = {"machine": machine(), "device": options.device, "bugs": {}}
    variant = {"tile_m": 64, "tile_n": 64} | ({"slots": 2} if options.device == "host" else {})
    problems = {"varlen_full_1k": (VARLEN_FULL_1K, {}), "large": (large(options.device), variant)}
    if options.device == "host":
        del problems["varlen_full_1k"]
    with Runner("cuda:0" if options.device == "cuda" else "host") as runner:

        def run(name: str, problem: Problem, chosen: dict[str, Any]) -> tuple[dict[str, Any], Verdict]:
            began = time.monotonic()
            verdict = runner.run(Case(name, problem, variant=chosen, repeats=3))
            return {**told(verdict), "wall_seconds": round(time.monotonic() - began, 2)}, verdict

        for title, (problem, chosen) in problems.items():
            for mutant in ("", *MUTANTS):
                name = "blocksparse" + f"!{mutant}" * bool(mutant)
                entry, verdict = run(name, problem, chosen)
                if mutant:
                    after, next_one = run("blocksparse", problem, chosen)
                    entry["next_case"] = {"outcome": after["outcome"], "wall_seconds": after["wall_seconds"]}
                    if next_one.outcome != "pass":
                        wrong.append(f"{title}: after {mutant} the correct kernels: {after['summary']}")
                found["bugs"][f"{title} {name}"] = entry
                seconds, line = entry["wall_seconds"], entry["summary"][:140]
                print(f"{title:14} {name:35} {entry['outcome']:6} {seconds:5.1f} s  {line}", flush=True)
                if not mutant and verdict.outcome != "pass":
                    wrong.append(f"{title}: the correct kernels: {entry['summary']}")
                if mutant in FOUND and title == "large" and not verdict.bad:
                    wrong.append(f"{title}: {mutant} was not found")
                if mutant in HANGS and verdict.bad and title == "large" and verdict.outcome != "hang":
                    wrong.append(f"{title}: {mutant} should hang: {entry['summary']}")
        target = load("blocksparse!lock_is_n_block", device="cuda" if options.device == "cuda" else "host")
        problem, chosen = next(iter(problems.values()))
        began = time.monotonic()
        smallest = minimize(
            Case(target.name, problem, variant=chosen, repeats=1),
            runner.run,
            max_runs=60,
            max_seconds=150,
            allowed=lambda candidate: refusal(target, candidate) is None,
        )
    found["minimised"] = {
        "case": msgspec.to_builtins(smallest.case),
        "summary": summary(smallest.verdict),
        "seconds": round(time.monotonic() - began, 1),
        "report": smallest.report(),
    }
    print(json.dumps(found["minimised"], indent=1))
    found["wrong"] = wrong
    for line in wrong:
        print(f"WRONG {line}", file=sys.stderr)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
