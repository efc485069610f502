"""ScoR: 32 microbenchmarks of scopes. The names of its files, `race_…` and `norace_…`, are the labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from fuzz.devices.emulator import Cuda, emulated
from fuzz.devices.emulator.config import DEFAULT_CHECKS
from race_suites.suite import ARCH, RACE, SCHEDULES, Kernel, Run, Suite, found

CHECKS = {
    "ScoR, volatile as in C++": DEFAULT_CHECKS | {"volatile"},
    "ScoR, volatile as in PTX": DEFAULT_CHECKS,
}


def scor(folder: Path) -> list[Suite]:
    """The suite in the folder `microbenchmarks/src`, once for each view of volatile accesses."""
    kernels = [Kernel(f.stem, f, {RACE: f.stem.startswith("race_")}) for f in sorted(folder.glob("*.cu"))]
    if not kernels:
        raise SystemExit(f"{folder} has no *.cu")
    return [
        Suite(title, kernels, lambda kernel, checks=checks: launches(kernel, checks))  # type: ignore[misc]
        for title, checks in CHECKS.items()
    ]


def launches(kernel: Kernel, checks: frozenset[str]) -> Iterator[Run]:
    """The findings of each launch, made as the suite's `main` does: one array of one zero."""
    text = kernel.file.read_text()
    grid, block = (int(re.search(rf"#define {name}\s+(\d+)", text)[1]) for name in ("NBLOCKS", "TPERBLK"))  # type: ignore[index]
    device = "\n".join(line for line in text.split("int main")[0].splitlines() if not line.startswith("#include"))
    host = re.search(r"void errCheck\(\)\s*\{.*?\n\}", device, re.S)
    assert host is not None, kernel.file
    for schedule in SCHEDULES:
        cuda = Cuda(device.replace(host[0], "\n" * host[0].count("\n")), file=kernel.file.name)  # its flags begin at 0
        with emulated(ARCH, triton=False, strict=False, checks=checks, **schedule):
            report = cuda.kernel(grid, block)(torch.zeros(1, dtype=torch.int32))
        yield "its own", found(report)
