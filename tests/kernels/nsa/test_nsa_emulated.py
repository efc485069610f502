"""kernels.nsa whole on the emulated GPU, Triton kernels too, which the other tests here interpret."""

import os
from pathlib import Path

import pytest
import torch
import warm_start

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the other tests run compiled kernels")
def test_calls_are_right_and_nothing_is_found():
    """In a process of its own: this one interprets."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    done = warm_start.run([str(ROOT / "tests/support/emulated_nsa.py")], env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
