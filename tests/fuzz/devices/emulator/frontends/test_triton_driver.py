"""Triton kernels on the emulated GPU: what they compute, and what is found. They run in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm_start
from once import once

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
ROOT = Path(__file__).resolve().parents[5]
SCRIPT = ROOT / "tests/support/emulator/emulated_triton.py"


def run(*, interpreted: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    return warm_start.run([str(SCRIPT)], env=environment, timeout=300)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def make() -> Any:
        done = run(interpreted=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return once(tmp_path_factory, __name__, make)


def test_numbers_pointers_and_constants_reach_the_kernel(seen: dict[str, Any]) -> None:
    assert seen["sums"] == {"equal": True, "ok": True, "launches": 1}


def test_matrix_products_by_mma_and_wgmma(seen: dict[str, Any]) -> None:
    assert len(seen["products"]) == 4 and max(seen["products"].values()) < 1e-4


def test_autotuning_takes_the_kernel_of_fewer_operations(seen: dict[str, Any]) -> None:
    assert seen["tuned"] == {"N": 256, "equal": True}


def test_findings_name_the_argument_and_the_source_line(seen: dict[str, Any]) -> None:
    line = next(
        n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "mask of the store is missing" in text
    )
    assert "out of bounds: CTA (0, 0, 0)" in seen["out of bounds"]
    assert "writes 4 bytes at o, 0 bytes past its end" in seen["out of bounds"]
    assert f"kernel too_far, emulated_triton.py:{line}, PTX line" in seen["out of bounds"]
    assert "race: two writes" in seen["race"] and " o[0]" in seen["race"]


def test_an_endless_loop_is_named_by_its_source_line(seen: dict[str, Any]) -> None:
    line = next(n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "nothing writes it" in text)
    assert "endless: CTA (0, 0, 0) warp" in seen["endless"]
    assert f"of kernel endless does not leave its loop (emulated_triton.py:{line}, PTX lines" in seen["endless"]


def test_writes_of_one_value_are_a_race_where_that_is_asked_for(seen: dict[str, Any]) -> None:
    assert seen["race of equal values"] == ""
    assert "race: two writes" in seen["race of equal values, asked for"]


@pytest.mark.parametrize("schedule", ["in_order", "random"])
def test_descriptors_of_the_host_and_of_the_kernel_copy_tiles(seen: dict[str, Any], schedule: str) -> None:
    assert seen["descriptors"][schedule] == {"equal": [True, True], "found": []}


def test_arguments_that_cannot_be_emulated_are_refused(seen: dict[str, Any]) -> None:
    assert seen["tensor elsewhere"] == "ValueError: o: the emulator runs on CPU tensors, got one on meta"


def test_the_driver_of_before_comes_back(seen: dict[str, Any]) -> None:
    assert seen["after"] in ("none", "CudaDriver", "HIPDriver")


def test_triton_that_interprets_is_refused() -> None:
    done = run(interpreted=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: TRITON_INTERPRET: was set when triton was imported, so kernels are interpreted; unset it"
    )


def test_where_a_gpu_would_find_the_kernel_too_it_has_code(tmp_path: Path) -> None:
    script = ROOT / "tests/support/emulator/cache_of_emulated_triton.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = warm_start.run([str(script)], env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["with keys"] == [0]
    (size,) = found["without"]
    assert size > 1000
