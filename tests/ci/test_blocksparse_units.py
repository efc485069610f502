"""ci/benchmarks/blocksparse_units.py reads what ncu prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "ci" / "benchmarks"


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import blocksparse_units

    return sys.modules[blocksparse_units.__name__]


def table(units: ModuleType, kernels: Sequence[tuple[str, float, float]]) -> str:
    """What ncu prints for (name, microseconds, percent of the tensor cores) of kernels."""
    columns = ["ID", "Kernel Name", units.TIME, units.UNITS["tensor"], units.STALLS["wait"], units.STALLS["gmma"]]
    rows = [columns, ["", "", "nsecond", "%", "", ""]]
    for place, (name, us, share) in enumerate(kernels):
        rows.append([str(place), name, f"{us * 1000:,.0f}", str(share), "1.5", "0.5"])
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 1", *lines, "==PROF== Disconnected"])


def test_kernels_after_a_mark_are_one_pass(units: ModuleType) -> None:
    kernels = [("spin_kernel(long)", 1, 0), ("kernel_cutlass_HopperForward", 800, 70.25), ("spin_kernel(long)", 1, 0)]
    kernels += [
        ("kernel_cutlass_Preprocess", 60, 1),
        ("kernel_cutlass_Backward", 2000, 66),
        ("kernel_cutlass_Post", 40, 0),
    ]
    labels = ["causal 8192 | ours | forward", "causal 8192 | ours | backward"]
    forward, backward = units.pass_rows(table(units, kernels), labels)
    assert (forward["problem"], forward["name"], forward["pass"]) == ("causal 8192", "ours", "forward")
    assert forward["us"] == forward["all_us"] == 800.0 and forward["units"]["tensor"] == 70.2
    assert (backward["us"], backward["all_us"], backward["units"]["tensor"]) == (2000.0, 2100.0, 66.0)
    assert backward["stalls"] == {"wait": 0.75, "gmma": 0.25}
    assert units.as_line(backward).startswith("causal 8192, ours, backward: 2000 of 2100 us; tensor 66 %")


def test_a_run_that_was_cut_off_leaves_the_passes_it_counted(units: ModuleType) -> None:
    kernels = [("spin_kernel(long)", 1, 0), ("kernel_cutlass_HopperForward", 800, 70), ("spin_kernel(long)", 1, 0)]
    rows = units.pass_rows(table(units, kernels), ["a | ours | forward", "a | ours | backward"])
    assert [row["pass"] for row in rows] == ["forward"]
    assert units.pass_rows("==ERROR== no kernels were profiled", ["a | ours | forward"]) == []
