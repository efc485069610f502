"""CPU milliseconds of one case by phase, in one process: where a session's cores spend their time.

    python ci/benchmarks/case_cost.py --target torch.sdpa.math --cases 200
    python ci/benchmarks/case_cost.py --device cuda --target blocksparse --cases 100 --profile 40

CPU time and not the clock's, so that other programs on the machine do not change it. draw is Hypothesis, the rest are
the phases of the judge (fuzz/judging/execution.py), without the messages between client and child: those are in the
figures of a session (ci/benchmarks/harness.py).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections import Counter, defaultdict

import msgspec
import torch

from fuzz.core.case import Case
from fuzz.core.target import Device, Target
from fuzz.core.verdict import Verdict
from fuzz.judging import execution
from fuzz.judging.judge import execute
from fuzz.runner.wire import Start
from fuzz.runner.worker import Workshop
from fuzz.session.draw import drawer_of, explore
from fuzz.session.plan import Settings, plan
from fuzz.targets.registry import load

WARM_UP = 20  # cases that are run first and not counted: they load what is loaded once


def drawn(settings: Settings) -> tuple[list[Case], float]:
    """The cases of a session, and the CPU seconds that drawing them took."""
    cases = list[Case]()
    began = time.process_time()
    for shard in plan(settings):
        explore(shard, drawer_of(load(shard.target, (), settings.device), settings), cases.append)
    return cases, time.process_time() - began


class PhaseTimes:
    """CPU seconds by phase of the judge, by what it announces and books. On the host those of the judge's own thread: a
    thread beside it only keeps a core busy (fuzz/judging/perturb.py)."""

    def __init__(self, device: Device) -> None:
        self.seconds = defaultdict[str, float](float)
        self._device, self._clock = device, time.thread_time if device == "host" else time.process_time
        self._targets: dict[str, Target] = {}

    def run(self, case: Case) -> Verdict:
        """Judges a case."""
        if case.target not in self._targets:
            self._targets[case.target] = load(case.target, (), self._device)
        before, began = execution.time.perf_counter, self._clock()
        execution.time.perf_counter = self._clock
        try:
            verdict = execute(case, self._targets[case.target], lambda phase, limit: None)
        finally:
            execution.time.perf_counter = before
        self.seconds["all"] += self._clock() - began
        for phase, spent in verdict.seconds.items():
            self.seconds[phase] += spent
        return verdict


def main() -> None:
    """Draws, runs and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--size", default="small")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", type=int, default=0, help="so many rows of a profile by function")
    parser.add_argument("--verdicts", help="a file for each case's outcome and ratios, to compare two versions with")
    parser.add_argument("--out", help="a JSON file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    targets = tuple(options.target or ["torch.sdpa.math"])
    Workshop(Start(options.device, 1, (), "fuzz.judging.judge:execute", "fuzz.targets.registry:load"))
    settings = Settings(
        targets=targets, device=options.device, cases=options.cases, size=options.size, seed=options.seed
    )
    cases, drawing = drawn(settings)
    for case in cases[:: max(len(cases) // WARM_UP, 1)]:
        PhaseTimes(options.device).run(case)
    profile, times = cProfile.Profile(), PhaseTimes(options.device)
    if options.profile:
        profile.enable()
    verdicts = [times.run(case) for case in cases]
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    profile.disable()
    count = len(cases)
    most = sorted(times.seconds.items(), key=lambda entry: -entry[1])
    each = {name: round(1e3 * spent / count, 2) for name, spent in most}
    each = {"all": each.pop("all"), "draw": round(1e3 * drawing / count, 2)} | each
    result = {"targets": targets, "device": options.device, "cases": count, "outcomes": outcomes, "cpu_ms": each}
    print(json.dumps(result))
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    if options.verdicts:
        with open(options.verdicts, "w") as file:
            for verdict in verdicts:
                row = {
                    "id": verdict.case_id,
                    "outcome": verdict.outcome,
                    "ratio": verdict.ratio,
                    "worst": verdict.worst,
                }
                row["findings"] = [finding.message for finding in verdict.findings]
                file.write(msgspec.json.encode(row).decode() + "\n")
    if options.out:
        with open(options.out, "w") as file:
            file.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
