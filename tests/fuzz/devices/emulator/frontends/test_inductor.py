"""PyTorch's compiled FlexAttention on the emulated GPU. It runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_compiled_flex_attention_runs_as_the_kernels_of_a_gpu() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(ROOT / "tests/support/emulator/emulated_flex.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    block = found.pop("block")
    assert any("flex_attention" in name for name in block["kernels"]) and block["error"] < 0.01
    assert "NoValidChoicesError" in found.pop("known bug")  # of PyTorch 2.13, met on an H200
    assert found == dict.fromkeys(found, "pass") and len(found) == 2
