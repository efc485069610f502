"""Drawn cases of blocksparse on the emulated GPU, by the loop and translated: verdicts and reports must be the same.

    python ci/check_translation.py [--cases 1000] [--kernels 40] [--numbers 10] [--seed 1] [--out RESULT.json]

A case's launches are compared by status, micro-operations, how often each was reached, findings, deadlock, and the
bytes of every tensor afterwards; its verdict by everything but its seconds. Each kernel takes seconds to compile: cases
that need one more than `--kernels` that the cache has not are left out, and the others run with `--numbers` seeds of
their inputs. Runs that look for leaks are left out: a process whose memory grows has more of them. Ends with 1 where a
case differs, and names it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.compiling.cache import Cache
from fuzz.core.case import Case, to_json
from fuzz.devices import emulated
from fuzz.devices.emulator import api
from fuzz.generate.cases import MEDIUM, cases
from fuzz.judging import leaks
from fuzz.judging.judge import execute
from fuzz.session.records import machine
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse

WAYS = ("never", "always")
leaks.Watch.suspects = lambda self: False  # type: ignore[method-assign]  # its runs depend on the process's memory


class TooManyKernels(BaseException):
    """A case that needs one kernel more; no judge takes it for a case's failure."""


class Watched:
    """Keeps the outcome of launches, in place of `api.run`; limits the kernels, in place of `emulated.obtain`."""

    def __init__(self, kernels: int) -> None:
        self.kernels = kernels
        self.builds: set[str] = set()
        self.launches: list[Any] = []
        self._run, self._obtain = api.run, emulated.obtain
        api.run, emulated.obtain = self.run, self.obtain

    def obtain(self, build: Any) -> Any:
        if build.key not in self.builds:
            if Cache(None).load(build) is None:
                self.kernels -= 1
            if self.kernels < 0:
                raise TooManyKernels
            self.builds.add(build.key)
        return self._obtain(build)

    def run(self, config: Any, programs: Any, launches: Any, memory: Any, *rest: Any) -> Any:
        try:
            report = self._run(config, programs, launches, memory, *rest)
        except api.EmulationError as error:
            self.note(error.report, memory)
            raise
        self.note(report, memory)
        return report

    def note(self, report: Any, memory: Any) -> None:
        digest = hashlib.sha256()
        for segment in memory.segments.values():
            storage = segment.tensor.untyped_storage()
            if storage.nbytes() < 1 << 28:  # not reserved for an index at 2,000,000 tokens
                digest.update(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes())
        reached = [counts.tobytes() for _, counts in report.executions]
        found = [str(finding) for finding in report.findings], str(report.deadlock), report.notes
        self.launches.append((report.status, report.executed, reached, found, digest.hexdigest()))


def judged(case: Case, target: Any, watched: Watched, way: str) -> tuple[Any, list[Any]]:
    """(verdict without its seconds, what its launches did)"""
    os.environ["ATTNFUZZ_TRANSLATE"] = way
    watched.launches = []
    verdict = msgspec.to_builtins(execute(case, target, lambda phase, limit: None))
    verdict.pop("seconds", None)
    return verdict, watched.launches


def with_seeds(case: Case, count: int) -> Iterator[Case]:
    """The case with `count` seeds of its inputs."""
    for i in range(count):
        yield msgspec.structs.replace(case, inputs=msgspec.structs.replace(case.inputs, seed=case.inputs.seed + i))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--numbers", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = EmulatedBlockSparse()
    drawn: list[Case] = []

    @seed(options.seed)
    @settings(max_examples=20 * options.cases, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases(target, MEDIUM, repeats=1))
    def draw(case: Case) -> None:
        drawn.append(case)

    draw()
    watched = Watched(options.kernels)
    compared = launches = different = 0
    outcomes: dict[str, int] = {}
    for case in (another for one in drawn for another in with_seeds(one, options.numbers)):
        if compared == options.cases:
            break
        try:
            first, second = (judged(case, target, watched, way) for way in WAYS)
        except TooManyKernels:
            continue
        if not first[1]:  # refused, or nothing to launch
            continue
        compared += 1
        launches += len(first[1])
        outcomes[str(first[0]["outcome"])] = outcomes.get(str(first[0]["outcome"]), 0) + 1
        if first != second:
            different += 1
            print("differs:", to_json(case), flush=True)
    kernels = len(watched.builds)
    print(f"{compared} cases ({outcomes}), {launches} launches of {kernels} kernels: {different} differ")
    if options.out:
        found = {"cases": compared, "outcomes": outcomes, "launches": launches, "kernels": kernels}
        found |= {"differ": different, "machine": machine()}
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
