"""Deadlocking mutants of the block-sparse backward pass, found, explained and minimised: on a GPU, or the emulated one.

    python ci/check_blocksparse_hang.py --device cuda --seconds 90 --out ci/results/blocksparse_hang_h200.json
    python ci/check_blocksparse_hang.py --device host        the same on the emulated GPU, smaller, to try the script

Two problems: the one in which such a deadlock was met for real (ten packed segments of 1,024 tokens, `varlen_full_1k`),
and one with more CTAs than fit at once. The most telling steps come first, until the time is spent; what was left out
is listed. The correct kernels; the bug that was met for real, `lock_is_n_block`, and its minimisation; the other bugs
that hang, those that must be found, all others. Of each: the verdict, the seconds until it was there, what the metadata
predicts and what the semaphores said; for those that hang by intention, whether the next case on that device passes.

Several children take turns on the GPU, so that one compiles while another hangs; hangs of one do not keep the others
from the device, only make them slower. One of them is asked for GPU core dumps, which take 4 s each. Results are
written after each step. Exits with 1 where something is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuzz.compiling import Build, Cache, Pool  # noqa: E402
from fuzz.core.case import Case  # noqa: E402
from fuzz.core.refusal import refusal  # noqa: E402
from fuzz.core.verdict import Verdict, summary  # noqa: E402
from fuzz.minimize import minimize  # noqa: E402
from fuzz.runner import Runner  # noqa: E402
from fuzz.session.records import machine  # noqa: E402
from fuzz.targets.blocksparse.catalog import MUTANTS  # noqa: E402
from fuzz.targets.registry import load  # noqa: E402
from oracles.masks import Causal, Documents, PerHead, Window  # noqa: E402
from oracles.problem import Problem  # noqa: E402

SEGMENTS = (366, 391, 471, 835, 984, 1005, 1017, 1020, 1023)
VARLEN_FULL_1K = Problem((1024,), (1024,), 8, 1, 128, 128, "bfloat16", mask=Documents(SEGMENTS))
HANGS = ("lock_is_n_block", "release_missing", "release_twice", "semaphores_not_cleared", "rank_direction")
# Not on a GPU: they read and write far outside of their tensors.
AVOIDED = ("packed_keys_begin_with_queries", "padded_dim_for_dim")
HANG_COSTS = 14.0  # seconds until a hang is a verdict and the next case has run
MINIMISING = 40.0
# Must be found on the larger problem; the others are reported as they are.
FOUND = (*HANGS, "tail_keys_not_masked", "sums_not_rescaled", "head_ignored", "last_partial_block_lost")


Step: TypeAlias = tuple[str, str]  # title of the problem, mutant ("" for none)
Chosen: TypeAlias = tuple[Problem, dict[str, Any]]  # a problem, and the variant


def large(device: str) -> Problem:
    """More CTAs than a GPU holds, different masks per head, lengths that fill no tile; as many pairs as targets take.

    On a GPU 8 KV heads of 32 tiles of 64 keys: 256 CTAs of 256 threads with some 200 registers each, one of which a
    multiprocessor holds at a time; an H100 has 132.
    """
    if device == "host":
        mask = PerHead((Window(100, 20), Causal()))
        return Problem((260,), (200,), 2, 1, 64, 64, "float16", mask=mask)
    mask = PerHead((Window(100, 1700), Causal("bottom_right")))  # rows of the first see no key of the first tiles
    return Problem((500,), (2040,), 16, 8, 64, 64, "float16", mask=mask)


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """Row of the results for a verdict."""
    kept = (
        "explained",
        "predicted",
        "python_stack",
        "resident_ctas",
        "kernel",
        "looks",
        "look_trouble",
        "shape",
        "emulator",
    )
    found: dict[str, Any] = {
        "outcome": verdict.outcome,
        "summary": summary(verdict)[:600],
        "findings": [f"{f.oracle}:{f.kind}:{f.tensor}" for f in verdict.findings],
        "seconds": {phase: round(spent, 3) for phase, spent in verdict.seconds.items()},
    }
    return found | {name: str(verdict.evidence[name])[:3000] for name in kept if name in verdict.evidence}


class Check:
    """Runs steps while there is time, several at once, and keeps what they found on disk."""

    def __init__(self, device: str, seconds: float, out: Path | None, problems: dict[str, Chosen]) -> None:
        self.device, self.out, self.problems = device, out, problems
        self.until = time.monotonic() + seconds
        self.wrong: list[str] = []
        self.found: dict[str, Any] = {"machine": machine(), "device": device, "bugs": {}, "left_out": []}
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def work(self, steps: queue.SimpleQueue[Step], core_dump: bool) -> None:
        """Takes steps until there are none, with one child."""
        with Runner("host" if self.device == "host" else "cuda:0", core_dump=core_dump) as runner:
            while True:
                try:
                    title, mutant = steps.get_nowait()
                except queue.Empty:
                    return
                if self.left < HANG_COSTS:
                    with self._lock:
                        self.found["left_out"].append(called(title, mutant))
                    continue
                verdict = self.bug(runner, title, mutant)
                if mutant == HANGS[0] and title == next(iter(self.problems)):
                    if verdict.bad:
                        self.minimise(runner, *self.problems[title], verdict)
                    else:
                        self.wrong.append(f"{title}: {mutant} was not found")

    def run(self, runner: Runner, title: str, mutant: str) -> tuple[dict[str, Any], Verdict]:
        """One case: what is kept of it, and its verdict."""
        problem, chosen = self.problems[title]
        name, began = "blocksparse" + f"!{mutant}" * bool(mutant), time.monotonic()
        verdict = runner.run(Case(name, problem, variant=chosen, repeats=3))
        return {**verdict_row(verdict), "wall_seconds": round(time.monotonic() - began, 2)}, verdict

    def bug(self, runner: Runner, title: str, mutant: str) -> Verdict:
        """Runs one mutant, or "" for the correct kernels; after a hang or a crash the correct kernels."""
        entry, verdict = self.run(runner, title, mutant)
        with self._lock:
            self._look(title, mutant, entry, verdict)
        if mutant in FOUND and verdict.outcome in ("hang", "crash"):
            after, next_one = self.run(runner, title, "")
            entry["next_case"] = {"outcome": after["outcome"], "wall_seconds": after["wall_seconds"]}
            if next_one.outcome != "pass":
                self.wrong.append(f"{title}: after {mutant} the correct kernels: {after['summary']}")
        with self._lock:
            self.found["bugs"][called(title, mutant)] = entry
            self.write()
        return verdict

    def _look(self, title: str, mutant: str, entry: dict[str, Any], verdict: Verdict) -> None:
        """Adds to `wrong` what is not as it must be."""
        if not mutant and verdict.outcome != "pass":
            self.wrong.append(f"{title}: the correct kernels: {entry['summary']}")
        if mutant in FOUND and title == "large" and not verdict.bad:
            self.wrong.append(f"{title}: {mutant} was not found")
        if mutant in HANGS and verdict.bad and title == "large" and verdict.outcome != "hang":
            self.wrong.append(f"{title}: {mutant} should hang: {entry['summary']}")
        evidence_key = "explained" if self.device == "cuda" else "predicted"
        if mutant == HANGS[0] and verdict.outcome == "hang" and evidence_key not in entry:
            self.wrong.append(f"{title}: {mutant} hangs, and nothing explains it")
        if mutant in HANGS and verdict.outcome == "hang" and self.device == "cuda" and "kernel" not in entry:
            self.wrong.append(f"{title}: {mutant} took too long, but no kernel hangs: {entry['summary']}")
        line = entry["summary"][:100]
        print(f"{called(title, mutant):58} {entry['outcome']:6} {entry['wall_seconds']:5.1f} s  {line}", flush=True)
        for kept in ("explained", "predicted"):
            if mutant == HANGS[0] and kept in entry:
                print(f"    {kept}: {entry[kept][:600]}", flush=True)

    def minimise(self, runner: Runner, problem: Problem, chosen: dict[str, Any], verdict: Verdict) -> None:
        """The smallest case in which the real bug hangs."""
        target = load(f"blocksparse!{HANGS[0]}", device="cuda" if self.device == "cuda" else "host")
        case, began = Case(target.name, problem, variant=chosen, repeats=1), time.monotonic()
        smallest = minimize(
            case,
            runner.run,
            verdict=verdict,
            max_runs=60,
            max_seconds=max(1.0, min(MINIMISING, self.left - HANG_COSTS)),
            allowed=lambda candidate: refusal(target, candidate) is None,
        )
        self.found["minimised"] = {
            "case": msgspec.to_builtins(smallest.case),
            "summary": summary(smallest.verdict),
            "evidence": verdict_row(smallest.verdict),
            "seconds": round(time.monotonic() - began, 1),
            "report": smallest.report(),
        }
        if smallest.verdict.outcome != verdict.outcome:
            self.wrong.append(f"minimised: {summary(smallest.verdict)}")
        print(json.dumps({k: self.found["minimised"][k] for k in ("summary", "seconds", "report")}), flush=True)
        with self._lock:
            self.write()

    def write(self) -> None:
        """Writes the results so far."""
        self.found["wrong"] = self.wrong
        if self.out:
            self.out.write_text(json.dumps(self.found, indent=2) + "\n")


def called(title: str, mutant: str) -> str:
    """A step's name."""
    return f"{title} blocksparse" + f"!{mutant}" * bool(mutant)


def steps_of(titles: list[str], device: str) -> list[Step]:
    """Problems with every mutant, the most telling first; the real one is first among `titles`."""
    real, large = titles[0], titles[-1]
    others = [name for name in MUTANTS if name not in FOUND and not (device == "cuda" and name in AVOIDED)]
    steps = [(real, ""), (real, HANGS[0]), (large, ""), *((large, name) for name in FOUND)]
    steps += [(real, name) for name in HANGS[1:]]
    steps += [(large, name) for name in others]
    steps += [(real, name) for name in (*FOUND[len(HANGS) :], *others)]
    return list(dict.fromkeys(steps))


def builds_of(steps: list[Step], problems: dict[str, Chosen], device: str) -> list[Build]:
    """Builds that the steps compile, in their order."""
    found: dict[str, Build] = {}
    for title, mutant in steps:
        problem, chosen = problems[title]
        target = load("blocksparse" + f"!{mutant}" * bool(mutant), device=device)  # type: ignore[arg-type]
        case = Case(target.name, problem, variant=chosen, repeats=3)
        found |= {build.key: build for build in target.builds(case, target.arch())}  # type: ignore[attr-defined]
    return list(found.values())


def compile_all(builds: list[Build], jobs: int, enough: threading.Event) -> None:
    """Ahead of the children, which wait for what is being compiled; until it is `enough`."""
    with Pool(Cache(), jobs) as pool:
        for ended in pool.build(builds):
            if enough.is_set():
                return
            if ended.status == "failed":
                print(f"FAILED {ended.build.name}: {ended.why}", file=sys.stderr, flush=True)


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=150, help="no step is started that would end later")
    parser.add_argument("--workers", type=int, default=6, help="children at a time; 1 on the emulated GPU")
    parser.add_argument("--jobs", type=int, default=10, help="kernels compiled at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    host = options.device == "host"
    chosen: dict[str, Any] = {"tile_m": 64, "tile_n": 64} | ({"slots": 2} if host else {})
    problems: dict[str, Chosen] = {} if host else {"varlen_full_1k": (VARLEN_FULL_1K, {})}
    problems["large"] = (large(options.device), chosen)
    check = Check(options.device, options.seconds, options.out, problems)
    steps = steps_of(list(problems), options.device)
    todo: queue.SimpleQueue[Step] = queue.SimpleQueue()
    for step in steps:
        todo.put(step)
    builds = builds_of(steps, problems, options.device)
    enough = threading.Event()
    ahead = threading.Thread(target=compile_all, args=(builds, 1 if host else options.jobs, enough))
    ahead.start()
    threads = [threading.Thread(target=check.work, args=(todo, i == 1)) for i in range(1 if host else options.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    enough.set()
    check.write()
    for line in check.wrong:
        print(f"WRONG {line}", file=sys.stderr)
    print(f"{len(check.found['bugs'])} run, {len(check.found['left_out'])} left out, {len(check.wrong)} wrong")
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
