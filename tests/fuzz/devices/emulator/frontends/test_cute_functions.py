"""CuTe DSL functions on the emulated GPU: what they compute, and what is found. They run in a process of their own."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm_start
from once import once

pytestmark = pytest.mark.skipif(
    find_spec("cutlass") is None or find_spec("tvm_ffi") is None, reason="needs nvidia-cutlass-dsl and apache-tvm-ffi"
)
ROOT = Path(__file__).resolve().parents[5]
SCRIPT = ROOT / "tests/support/emulator/emulated_cute.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def make() -> Any:
        done = warm_start.run([str(SCRIPT)], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return once(tmp_path_factory, __name__, make)


def test_a_compiled_function_runs_on_cpu_tensors(seen: dict[str, Any]) -> None:
    assert seen["axpy"] == {"equal": True, "ok": True, "launches": 1}


def test_a_finding_is_raised_as_such_and_names_the_source_line(seen: dict[str, Any]) -> None:
    line = next(n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "the store of the finding" in text)
    assert "out of bounds: CTA (0, 0, 0)" in seen["out of bounds"]
    assert "4 bytes at argument 1, 0 bytes past its end" in seen["out of bounds"]
    assert f"emulated_cute.py:{line}" in seen["out of bounds"]


def test_a_call_that_fails_before_the_launch_raises_its_own_error(seen: dict[str, Any]) -> None:
    name, words = seen["wrong argument"]
    assert name != "EmulationError" and "out of bounds" not in words


def test_outside_of_the_block_a_function_says_where_it_runs(seen: dict[str, Any]) -> None:
    assert "inside of `emulated`" in seen["outside of the block"]
