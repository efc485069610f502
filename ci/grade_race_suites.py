"""Data races and accesses out of bounds in labelled suites of others, found on the emulated GPU:

    python ci/grade_race_suites.py --indigo FOLDER --scor FOLDER --keep FILE.jsonl --out FILE.json

--indigo  the folder `indigo` of HiRace's artifact (JohnJacobsonIII/HiRace-Artifact-SC24): 590 kernels on graphs
--scor    the folder microbenchmarks/src of csl-iisc/ScoR: 32 kernels
--keep    a line of JSON for each kernel that was graded, written at once; kernels that the file has are not run again
--sample  so many kernels of each suite, drawn with --seed; --filter: those whose name has this

Every kernel runs on each input with each of four schedules. Printed are the kernels where label and findings differ,
with the reason where it was examined (race_suites/reasons.py), and a table; exits with 1 where it was not. Both suites
take about fifteen minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

from race_suites.indigo import indigo
from race_suites.reasons import reason
from race_suites.scor import scor
from race_suites.suite import SCHEDULES, Kernel, Suite

from fuzz.session.records import machine

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "cuda-bindings", "numba", "llvmlite", "numpy")
Record: TypeAlias = dict[str, Any]  # of a kernel: suite, kernel, labels, launches, seconds, found[input][what]


@dataclass
class Count:
    """Kernels with a bug, how many of them were found; kernels without it, how many of them were reported."""

    buggy: int = 0
    found: int = 0
    correct: int = 0
    alarms: int = 0

    def add(self, labelled: bool, seen: bool) -> None:
        self.buggy += labelled
        self.found += labelled and seen
        self.correct += not labelled
        self.alarms += seen and not labelled

    def __str__(self) -> str:
        return f"found {self.found} of {self.buggy}, false alarms {self.alarms} of {self.correct}"


@dataclass
class Grade:
    """Result of a suite. counts: by what was looked for, over all inputs; on_input: on each input alone; differs:
    kernel, what it is about, its label, what was found, and why."""

    kernels: int = 0
    launches: int = 0
    seconds: float = 0.0
    sources: str = ""
    counts: dict[str, Count] = field(default_factory=dict)
    on_input: dict[str, dict[str, Count]] = field(default_factory=dict)
    differs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.kernels += 1
        self.launches += record["launches"]
        self.seconds = round(self.seconds + record["seconds"], 1)
        for what, label in record["labels"].items():
            texts = [text for one in record["found"].values() for text in one[what]]
            self.counts.setdefault(what, Count()).add(label, bool(texts))
            for name, one in record["found"].items():
                self.on_input.setdefault(name, {}).setdefault(what, Count()).add(label, bool(one[what]))
            if label != bool(texts):
                why = reason(record["suite"], record["kernel"], label)
                self.differs.append(
                    {"kernel": record["kernel"], "what": what, "label": label, "found": texts[:2], "reason": why}
                )


def run(suite: Suite, kernel: Kernel) -> Record:
    """Launches a kernel on each input with each schedule; keeps two findings of each input."""
    found: dict[str, dict[str, list[str]]] = {}
    launches, start = 0, time.perf_counter()
    for name, more in suite.run(kernel):
        launches += 1
        here = found.setdefault(name, {what: [] for what in kernel.labels})
        for what, texts in here.items():
            here[what] = list(dict.fromkeys([*texts, *more[what]]))[:2]
    seconds = round(time.perf_counter() - start, 2)
    return {"suite": suite.title, "kernel": kernel.name, "labels": kernel.labels, "launches": launches,
            "seconds": seconds, "found": found}  # fmt: skip


def grade(suite: Suite, kernels: Iterable[Kernel], keep: Path | None) -> Grade:
    """Grades the kernels of a suite; those that `keep` has are taken from there."""
    result = Grade(sources=f"SHA-256 {suite.digest()}")
    lines = keep.read_text().splitlines() if keep and keep.exists() else []
    kept = {one["kernel"]: one for one in map(json.loads, lines) if one["suite"] == suite.title}
    for kernel in kernels:
        record = kept.get(kernel.name)
        if record is None:
            record = run(suite, kernel)
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        differed = len(result.differs)
        result.add(record)
        for one in result.differs[differed:]:
            finding = (one["found"] or ["nothing"])[0]
            print(f"\n{one['kernel']}: {one['what']}: labelled {one['label']}; found: {finding}")
            print(f"  {one['reason'] or 'not examined'}")
        print(f"\r{suite.title}: {result.kernels} kernels, {result.seconds:.0f} s", end="", flush=True)
    print()
    return result


def versions() -> dict[str, str]:
    """Versions of the packages that compiled and ran the kernels."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> int:
    """Grades the suites that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--indigo", type=Path, metavar="FOLDER")
    parser.add_argument("--scor", type=Path, metavar="FOLDER")
    parser.add_argument("--sample", type=int, metavar="N", help="N kernels of each suite at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--filter", default="", help="kernels whose name has this")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    suites = [*(indigo(given.indigo) if given.indigo else []), *(scor(given.scor) if given.scor else [])]
    grades = {}
    for suite in suites:
        kernels = [one for one in suite.kernels if given.filter in one.name]
        drawn = random.Random(given.seed).sample(kernels, min(given.sample or len(kernels), len(kernels)))
        grades[suite.title] = grade(suite, drawn if given.sample else kernels, given.keep)
    for title, one in grades.items():
        for what, count in one.counts.items():
            print(f"{title}, {what}: {count}")
        for name, counts in one.on_input.items():
            print(f"  {name} alone: {'; '.join(f'{what}: {count}' for what, count in counts.items())}")
    if given.out:
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
        command = " ".join(Path(word).name if "/" in word else word for word in sys.argv)
        result = {"commit": commit, "machine": machine() | versions() | {"command": command}, "schedules": SCHEDULES}
        result["suites"] = {title: asdict(one) for title, one in grades.items()}
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(not one["reason"] for grade in grades.values() for one in grade.differs))


if __name__ == "__main__":
    sys.exit(main())
