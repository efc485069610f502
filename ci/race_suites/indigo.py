"""Indigo: 590 kernels on graphs. The names of its files carry the labels; grid, block, graphs and data are those of
HiRace's artifact."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fuzz.devices.emulator import Cuda, emulated
from fuzz.devices.emulator.config import BLOCK_CHECKS
from race_suites.suite import ARCH, BOUNDS, RACE, SCHEDULES, Kernel, Run, Suite, found

RACE_BUGS = {"atomicBug", "guardBug", "raceBug", "syncBug"}
GRID, BLOCK = 1024, 256
CHECKS = {
    "Indigo, with the checks lanes and equal_writes": BLOCK_CHECKS | {"lanes", "equal_writes"},
    "Indigo, default checks": BLOCK_CHECKS,
}


@dataclass(frozen=True)
class Graph:
    """A directed graph as CSR: the neighbours of vertex v are edges[starts[v] : starts[v + 1]]."""

    name: str
    starts: torch.Tensor
    edges: torch.Tensor


def indigo(folder: Path) -> list[Suite]:
    """The suite in the folder `indigo` of the artifact, once for each set of checks."""
    inputs = [graph(file) for file in sorted((folder / "input").glob("*.egr"))]
    kernels = []
    for file in sorted((folder / "indigo_sources").rglob("*.cu")):
        words = set(file.stem.split("_"))
        kernels.append(Kernel(file.stem, file, {RACE: bool(words & RACE_BUGS), BOUNDS: "boundsBug" in words}))
    if not kernels or not inputs:
        raise SystemExit(f"{folder} has no indigo_sources/**/*.cu and input/*.egr")
    return [
        Suite(title, kernels, lambda kernel, checks=checks: launches(kernel, inputs, checks))  # type: ignore[misc]
        for title, checks in CHECKS.items()
    ]


def graph(file: Path) -> Graph:
    """A file of the ECL format: int32 vertices, edges, starts (vertices + 1), neighbours (edges)."""
    words = np.fromfile(file, np.int32)
    vertices, edges = words[:2].tolist()
    starts, neighbours = words[2 : 3 + vertices], words[3 + vertices :]
    if len(neighbours) != edges:
        raise ValueError(f"{file}: {len(neighbours)} neighbours, but {edges} edges")
    return Graph(file.stem, torch.from_numpy(starts), torch.from_numpy(neighbours))


def data(vertices: int, edges: int) -> tuple[torch.Tensor, torch.Tensor]:
    """data1 and data2 as the suite's driver fills them: random vertices, then random edges, by the C library's rand()
    from its first number on; the first element of each is 0."""
    library = ctypes.CDLL(None)
    library.srand(1)
    size = max(vertices, edges)
    data1, data2 = ([0, *(library.rand() % high for _ in range(1, size))] for high in (vertices, edges))
    return torch.tensor(data1, dtype=torch.int32), torch.tensor(data2, dtype=torch.int32)


def launches(kernel: Kernel, inputs: list[Graph], checks: frozenset[str]) -> Iterator[Run]:
    """The findings of each launch, which is made as the suite's driver does."""
    text = kernel.file.read_text()
    cuda = Cuda(text[: text.index("void serial_code")], headers={"indigo_cuda.h": ""}, file=kernel.file.name)
    for one in inputs:
        vertices = len(one.starts) - 1
        filled = data(vertices, max(len(one.edges), 1))
        for schedule in SCHEDULES:
            tensors = [tensor.clone() for tensor in filled]
            with emulated(ARCH, triton=False, strict=False, checks=checks, **schedule):
                report = cuda.kernel(GRID, BLOCK)(one.starts, one.edges, *tensors, vertices)
            yield one.name, found(report)
