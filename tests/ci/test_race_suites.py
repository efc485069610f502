"""ci/grade_race_suites.py on a suite of two kernels that carry their labels as Indigo's do."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import warm_start

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia.cu13") is None, reason="needs NVRTC: pip install 'attnfuzz[cuda]'"
)
ROOT = Path(__file__).resolve().parents[2]
KERNEL = """typedef int data_t;
#include "indigo_cuda.h"

__global__ void test_kernel(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv)
{
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < numv) ADD
}

void serial_code(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv) {}
"""
KERNELS = {
    "add": "atomicAdd(data1, nindex[i + 1] - nindex[i]);",
    "add_atomicBug": "data1[0] += nindex[i + 1] - nindex[i];",
    "add_boundsBug": "atomicAdd(data1, nindex[i + 2] - nindex[i + 1]);",
    "add_raceBug": "atomicAdd(data1, 1);",  # a wrong label
}


def test_kernels_are_graded_by_their_labels_on_each_input(tmp_path: Path) -> None:
    folder, keep, out = tmp_path / "indigo", tmp_path / "kept.jsonl", tmp_path / "result.json"
    (folder / "indigo_sources/add").mkdir(parents=True)
    (folder / "input").mkdir()
    for name, add in KERNELS.items():
        (folder / f"indigo_sources/add/{name}.cu").write_text(KERNEL.replace("ADD", add))
    for n in (5, 100):  # vertices; each has one neighbour
        np.array([n, n, *range(n + 1), *([0] * n)], np.int32).tofile(folder / f"input/{n}.egr")
    command = ["ci/grade_race_suites.py", "--indigo", str(folder), "--keep", str(keep), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = [warm_start.run(command, cwd=ROOT, env=environment, timeout=280) for _ in range(2)]
    assert [one.returncode for one in done] == [1, 1], done[0].stderr
    assert "add_raceBug: data race: labelled True; found: nothing" in done[0].stdout
    suites = json.loads(out.read_text())["suites"]
    for title, on_5 in (("Indigo, with the checks lanes and equal_writes", 1), ("Indigo, default checks", 0)):
        grade = suites[title]
        races = {"buggy": 2, "found": 1, "correct": 2, "alarms": 0}
        bounds = {"buggy": 1, "found": 1, "correct": 3, "alarms": 0}
        assert grade["counts"] == grade["on_input"]["100"] == {"data race": races, "out of bounds": bounds}
        assert grade["on_input"]["5"] == {"data race": races | {"found": on_5}, "out of bounds": bounds}  # one warp
        assert [one["kernel"] for one in grade["differs"]] == ["add_raceBug"]
    assert len(keep.read_text().splitlines()) == 2 * len(KERNELS)  # the second call has run none again
