"""Data races and accesses out of bounds in labelled suites of others, found on the emulated GPU:

    python ci/grade_race_suites.py --indigo FOLDER --scor FOLDER --out ci/results/race_suites_host.json

--indigo  the folder indigo/indigo_sources of HiRace's artifact (JohnJacobsonIII/HiRace-Artifact-SC24): 590 kernels on
          graphs, whose file names carry their labels
--scor    the folder microbenchmarks/src of csl-iisc/ScoR: 32 kernels, `race_…` and `norace_…`

Every kernel runs on each input with each schedule; one run that finds something is enough. Printed are the kernels
where label and findings differ, and a table; exits with 1 where they differ. --sample N --seed S takes N kernels at
random.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from fuzz.devices.emulator import Cuda, Report, emulated
from fuzz.devices.emulator.config import DEFAULT_CHECKS
from fuzz.session.records import machine

RACE, BOUNDS = "data race", "out of bounds"
ARCH = "sm_80"
SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"warp_schedule": "random", "seed": 1, "dispatch": "permuted", "resident_ctas": 8},
    {"warp_schedule": "oldest_last"},
    {"warp_schedule": "greedy", "dispatch": "reversed", "resident_ctas": 2},
)
Found: TypeAlias = dict[str, list[str]]  # texts of findings, by what they are about
Run: TypeAlias = tuple[str, Found]  # the input's name, and what was found on it


@dataclass(frozen=True)
class Kernel:
    """A kernel of a suite. labels: is there a bug, by what it is about."""

    name: str
    file: Path
    labels: dict[str, bool]


# ---- Indigo -------------------------------------------------------------------------------------------------------
RACE_BUGS = {"atomicBug", "guardBug", "raceBug", "syncBug"}
INDIGO_GRID, INDIGO_BLOCK = 1024, 256


@dataclass(frozen=True)
class Graph:
    """A directed graph as CSR: the neighbours of vertex v are edges[starts[v] : starts[v + 1]]."""

    name: str
    starts: torch.Tensor
    edges: torch.Tensor


def indigo_kernels(folder: Path) -> list[Kernel]:
    """The suite's kernels with the labels that their names carry."""
    kernels = []
    for file in sorted(folder.rglob("*.cu")):
        words = set(file.stem.split("_"))
        kernels.append(Kernel(file.stem, file, {RACE: bool(words & RACE_BUGS), BOUNDS: "boundsBug" in words}))
    return kernels


def graphs(seed: int) -> list[Graph]:
    """Graphs of the suite's families. The last vertex of the first one has no neighbour, so that a kernel that reads
    the first neighbour of each vertex leaves the list of edges."""
    rng = np.random.default_rng(seed)

    def graph(name: str, vertices: int, pairs: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> Graph:
        rows = sorted(set(pairs))
        degrees = np.bincount([v for v, _ in rows], minlength=vertices)
        starts = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
        return Graph(name, torch.from_numpy(starts), torch.tensor([w for _, w in rows], dtype=torch.int32))

    def two(n: int) -> tuple[int, int]:
        v, w = rng.choice(n, 2, replace=False).tolist()
        return v, w

    power = rng.zipf(1.6, 2000) % 200
    uneven = [(int(a), b) for a, b in zip(power, rng.integers(0, 200, 2000).tolist(), strict=True)]
    return [
        graph("DAG of 200 vertices", 200, [(min(p), max(p)) for p in (two(200) for _ in range(400))]),
        graph("reversed DAG of 200 vertices", 200, [(max(p), min(p)) for p in (two(200) for _ in range(1000))]),
        graph("power law, 200 vertices", 200, uneven[:1000]),
        graph("DAG of 5 vertices", 5, [(min(p), max(p)) for p in (two(5) for _ in range(5))]),
    ]  # fmt: skip


def run_indigo(kernel: Kernel, seed: int) -> Iterator[Run]:
    """Findings of each run, as the suite's driver launches it: data1 and data2 hold random vertices and edges."""
    text = kernel.file.read_text()
    cuda = Cuda(text[: text.index("void serial_code")], headers={"indigo_cuda.h": ""}, file=kernel.file.name)
    for graph in graphs(seed):
        vertices, edges = len(graph.starts) - 1, max(len(graph.edges), 1)
        rng = np.random.default_rng(seed)
        size = max(vertices, edges)
        data = [rng.integers(0, high, size).astype(np.int32) for high in (vertices, edges)]
        data[0][0] = data[1][0] = 0
        for schedule in SCHEDULES:
            tensors = [torch.from_numpy(one.copy()) for one in data]
            with emulated(ARCH, triton=False, strict=False, checks=DEFAULT_CHECKS, **schedule):
                report = cuda.kernel(INDIGO_GRID, INDIGO_BLOCK)(graph.starts, graph.edges, *tensors, vertices)
            yield graph.name, found(report)


# ---- ScoR ---------------------------------------------------------------------------------------------------------
def scor_kernels(folder: Path) -> list[Kernel]:
    """The suite's kernels with the labels that their names carry."""
    return [Kernel(f.stem, f, {RACE: f.stem.startswith("race_")}) for f in sorted(folder.glob("*.cu"))]


def run_scor(kernel: Kernel, checks: frozenset[str]) -> Iterator[Run]:
    """Findings of each run, as the suite's `main` launches it: one array of one zero."""
    text = kernel.file.read_text()
    grid, block = (int(re.search(rf"#define {name}\s+(\d+)", text)[1]) for name in ("NBLOCKS", "TPERBLK"))  # type: ignore[index]
    device = "\n".join(line for line in text.split("int main")[0].splitlines() if not line.startswith("#include"))
    host = re.search(r"void errCheck\(\)\s*\{.*?\n\}", device, re.S)
    assert host is not None, kernel.file
    cuda = Cuda(device.replace(host[0], "\n" * host[0].count("\n")), file=kernel.file.name)
    for schedule in SCHEDULES:
        with emulated(ARCH, triton=False, strict=False, checks=checks, **schedule):
            report = cuda.kernel(grid, block)(torch.zeros(1, dtype=torch.int32))
        yield "", found(report)


# ---- both ---------------------------------------------------------------------------------------------------------
def found(report: Report) -> Found:
    """A run's findings by what they are about. Raises RuntimeError for a run that did not end."""
    if report.status != "finished":
        raise RuntimeError(str(report))
    races = [str(one) for one in report.findings if one.kind.startswith("race")]
    bounds = [str(one) for one in report.findings if one.kind.startswith("out of bounds")]
    return {RACE: races, BOUNDS: bounds}


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
    """Result of a suite. counts: by what was looked for, over all inputs; on_input: the same of each input alone;
    differs: kernel, what it is about, its label, and what was found."""

    kernels: int = 0
    launches: int = 0
    seconds: float = 0.0
    counts: dict[str, Count] = field(default_factory=dict)
    on_input: dict[str, dict[str, Count]] = field(default_factory=dict)
    differs: list[dict[str, Any]] = field(default_factory=list)


def grade(title: str, kernels: Sequence[Kernel], run: Callable[[Kernel], Iterator[Run]]) -> Grade:
    """Runs every kernel until all its labels are found, or to its last run."""
    result, start = Grade(len(kernels)), time.perf_counter()
    for n, kernel in enumerate(kernels, 1):
        seen: dict[str, Found] = {}
        for name, more in run(kernel):
            result.launches += 1
            for what, texts in more.items():
                for place in (name, ""):
                    seen.setdefault(place, {}).setdefault(what, []).extend(texts)
        for what, label in kernel.labels.items():
            for name, one in seen.items():
                counts = result.on_input.setdefault(name, {}) if name else result.counts
                counts.setdefault(what, Count()).add(label, bool(one[what]))
            texts = list(dict.fromkeys(seen[""][what]))
            if label != bool(texts):
                result.differs.append({"kernel": kernel.name, "what": what, "label": label, "found": texts[:2]})
                print(f"\n{kernel.name}: {what}: labelled {label}; found: {(texts or ['nothing'])[0]}")
        print(f"\r{title}: {n} of {len(kernels)}, {time.perf_counter() - start:.0f} s", end="", flush=True)
    print()
    result.seconds = round(time.perf_counter() - start, 1)
    return result


def main() -> int:
    """Grades the suites that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--indigo", type=Path, metavar="FOLDER")
    parser.add_argument("--scor", type=Path, metavar="FOLDER")
    parser.add_argument("--sample", type=int, metavar="N", help="N kernels of each suite at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample, the graphs and their data (0)")
    parser.add_argument("--filter", default="", help="kernels whose name has this")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()

    def chosen(kernels: list[Kernel]) -> list[Kernel]:
        kernels = [one for one in kernels if given.filter in one.name]
        return random.Random(given.seed).sample(kernels, min(given.sample or len(kernels), len(kernels)))

    grades = {}
    if given.indigo:
        kernels = chosen(indigo_kernels(given.indigo))
        grades["Indigo"] = grade("Indigo", kernels, lambda one: run_indigo(one, given.seed))
    if given.scor:
        kernels = chosen(scor_kernels(given.scor))
        for title, checks in SCOR_CHECKS.items():
            grades[title] = grade(title, kernels, lambda one, checks=checks: run_scor(one, checks))  # type: ignore[misc]
    for title, one in grades.items():
        for what, count in one.counts.items():
            print(f"{title}, {what}: {count}")
        for name, counts in one.on_input.items():
            print(f"  {name} alone: {'; '.join(f'{what}: {count}' for what, count in counts.items())}")
    if given.out:
        given.out.write_text(json.dumps({"machine": machine(), **{k: asdict(g) for k, g in grades.items()}}, indent=1))
    return int(any(one.differs for one in grades.values()))


SCOR_CHECKS = {
    "ScoR, volatile as in C++": DEFAULT_CHECKS | {"volatile"},
    "ScoR, volatile as in PTX": DEFAULT_CHECKS,
}

if __name__ == "__main__":
    sys.exit(main())
