"""Planted deadlocks of the block-sparse backward pass, found, explained and minimised: on a GPU, or the emulated one.

    python ci/check_blocksparse_hang.py --device cuda --seconds 150 --out ci/results/blocksparse_hang_h100.json
    python ci/check_blocksparse_hang.py --device host        the same on the emulated GPU, smaller, to try the script

In this order, until the time is spent; what was left out is listed. The bug that was met for real, `lock_is_n_block`,
on the configuration in which it was met (ten packed segments of 1,024 tokens, `varlen_full_1k`), beside the correct
kernels: what the metadata foretells, the verdict, the seconds until it was there, what the semaphores said, whether the
next case on the same device passes. That one minimised. The same bug, and then all others, on a problem with more CTAs
than fit at once, and the others on the real configuration. Results are written after each. Exits with 1 where something
is not as it must be.
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
HANG_COSTS = 25.0  # seconds, at most, until a hang is a verdict and the next case has run
MINIMISING = 60.0
# Must be found on the larger problem; the others are reported as they are.
FOUND = (*HANGS, "tail_keys_not_masked", "sums_not_rescaled", "head_ignored", "last_partial_block_lost")


def large(device: str) -> Problem:
    """More CTAs than a GPU holds, different masks per head, lengths that fill no tile; as many pairs as targets take.

    On a GPU 8 KV heads of 32 tiles of 64 keys: 256 CTAs of 256 threads with some 200 registers each, one of which a
    multiprocessor holds at a time; an H100 has 132.
    """
    if device == "host":
        mask = PerHead((Window(100, 20), Causal()))
        return Problem((260,), (200,), 2, 1, 64, 64, "float16", mask=mask)
    mask = PerHead((Window(500, 1700), Causal("bottom_right")))
    return Problem((500,), (2040,), 16, 8, 64, 64, "float16", mask=mask)


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


class Check:
    """Runs steps while there is time, and keeps what they found on disk."""

    def __init__(self, runner: Runner, device: str, seconds: float, out: Path | None) -> None:
        self.runner, self.device, self.out = runner, device, out
        self.until = time.monotonic() + seconds
        self.wrong: list[str] = []
        self.found: dict[str, Any] = {"machine": machine(), "device": device, "bugs": {}, "left_out": []}

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def run(self, mutant: str, problem: Problem, chosen: dict[str, Any]) -> tuple[dict[str, Any], Verdict]:
        """One case: what is kept of it, and its verdict."""
        name, began = "blocksparse" + f"!{mutant}" * bool(mutant), time.monotonic()
        verdict = self.runner.run(Case(name, problem, variant=chosen, repeats=3))
        return {**told(verdict), "wall_seconds": round(time.monotonic() - began, 2)}, verdict

    def bug(self, title: str, mutant: str, problem: Problem, chosen: dict[str, Any]) -> Verdict | None:
        """One planted bug, or "" for the correct kernels, and the correct kernels after it; None where there is no
        time."""
        name = f"{title} blocksparse" + f"!{mutant}" * bool(mutant)
        if self.left < HANG_COSTS:
            self.found["left_out"].append(name)
            return None
        entry, verdict = self.run(mutant, problem, chosen)
        if mutant:
            after, next_one = self.run("", problem, chosen)
            entry["next_case"] = {"outcome": after["outcome"], "wall_seconds": after["wall_seconds"]}
            if next_one.outcome != "pass":
                self.wrong.append(f"{title}: after {mutant} the correct kernels: {after['summary']}")
        elif verdict.outcome != "pass":
            self.wrong.append(f"{title}: the correct kernels: {entry['summary']}")
        if mutant in FOUND and title == "large" and not verdict.bad:
            self.wrong.append(f"{title}: {mutant} was not found")
        if mutant in HANGS and verdict.bad and title == "large" and verdict.outcome != "hang":
            self.wrong.append(f"{title}: {mutant} should hang: {entry['summary']}")
        told_by = "explained" if self.device == "cuda" else "foretold"
        if mutant == HANGS[0] and verdict.outcome == "hang" and told_by not in entry:
            self.wrong.append(f"{title}: {mutant} hangs, and nothing explains it")
        self.found["bugs"][name] = entry
        self.write()
        line = entry["summary"][:140]
        print(f"{name:60} {entry['outcome']:6} {entry['wall_seconds']:5.1f} s  {line}", flush=True)
        for kept in ("explained", "foretold"):
            if mutant == HANGS[0] and kept in entry:
                print(f"    {kept}: {entry[kept][:600]}", flush=True)
        return verdict

    def minimise(self, problem: Problem, chosen: dict[str, Any], verdict: Verdict) -> None:
        """The smallest case in which the real bug hangs."""
        target = load(f"blocksparse!{HANGS[0]}", device="cuda" if self.device == "cuda" else "host")
        case, began = Case(target.name, problem, variant=chosen, repeats=1), time.monotonic()
        smallest = minimize(
            case,
            self.runner.run,
            verdict=verdict,
            max_runs=60,
            max_seconds=max(1.0, min(MINIMISING, self.left - HANG_COSTS)),
            allowed=lambda candidate: refusal(target, candidate) is None,
        )
        self.found["minimised"] = {
            "case": msgspec.to_builtins(smallest.case),
            "summary": summary(smallest.verdict),
            "evidence": told(smallest.verdict),
            "seconds": round(time.monotonic() - began, 1),
            "report": smallest.report(),
        }
        if smallest.verdict.outcome != verdict.outcome:
            self.wrong.append(f"minimised: {summary(smallest.verdict)}")
        print(json.dumps(self.found["minimised"], indent=1)[:3000], flush=True)
        self.write()

    def write(self) -> None:
        """What there is so far."""
        self.found["wrong"] = self.wrong
        if self.out:
            self.out.write_text(json.dumps(self.found, indent=2) + "\n")


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=150, help="no step is started that would end later")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    host = options.device == "host"
    problem, chosen = large(options.device), {"tile_m": 64, "tile_n": 64} | ({"slots": 2} if host else {})
    with Runner("host" if host else "cuda:0") as runner:
        check = Check(runner, options.device, options.seconds, options.out)
        if host:
            titles = {"large": (problem, chosen)}
        else:
            titles = {"varlen_full_1k": (VARLEN_FULL_1K, {}), "large": (problem, chosen)}
        real = next(iter(titles))
        check.bug(real, "", *titles[real])
        verdict = check.bug(real, HANGS[0], *titles[real])
        if verdict is not None and verdict.bad:
            check.minimise(*titles[real], verdict)
        else:
            check.wrong.append(f"{real}: {HANGS[0]} was not found")
        first = () if host else (("large", ""), ("large", HANGS[0]))
        rest = [*HANGS[1:], *(mutant for mutant in MUTANTS if mutant not in HANGS)]
        others = [(title, mutant) for mutant in rest for title in reversed(titles)]
        for title, mutant in (*first, *others):
            check.bug(title, mutant, *titles[title])
    check.write()
    for line in check.wrong:
        print(f"WRONG {line}", file=sys.stderr)
    print(f"{len(check.found['bugs'])} run, {len(check.found['left_out'])} left out, {len(check.wrong)} wrong")
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
