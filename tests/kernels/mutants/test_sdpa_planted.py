"""Each mutant of kernels.sdpa fails under the harness on a small case that the correct kernel passes."""

import json
import os
from pathlib import Path

import pytest
import torch
import warm_start
from covering import daily
from msgspec.structs import replace
from sdpa_shown import SHOWN

from fuzz.judging.judge import execute
from fuzz.targets.sdpa.catalog import CLASSES
from kernels.mutants.sdpa.table import MUTANTS

DEVICE = "cuda" if torch.cuda.is_available() else "interpreter"


def verdict(name, case):
    target = CLASSES[DEVICE](name)
    return execute(replace(case, target=target.name), target, lambda phase, limit: None)


@pytest.mark.parametrize("name", daily(list(MUTANTS), list(MUTANTS)[::3]))
def test_wrong_where_the_correct_kernel_passes(name):
    case, told = SHOWN[name]
    found = verdict(name, case)
    assert found.outcome == "fail", found
    assert told & {f"{f.tensor} {f.kind}".strip() for f in found.findings}, found.findings
    assert verdict("", case).outcome == "pass"


def test_each_is_shown():
    assert set(SHOWN) == set(MUTANTS)


ROOT = Path(__file__).resolve().parents[3]
QUICK = ["unmasked_row_statistics"]


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param([name for name in MUTANTS if name not in QUICK], marks=pytest.mark.nightly)], ids=len
)
def test_wrong_on_the_emulated_gpu_where_the_correct_kernel_passes(names):
    """In a process of its own: this one interprets."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    command = [str(ROOT / "tests/support/kernels/emulated_sdpa.py"), *names]
    done = warm_start.run(command, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert set(found) == set(names)
    assert {name: (one["outcome"], one["right"]) for name, one in found.items()} == dict.fromkeys(
        names, ("fail", "pass")
    ), found
    seen = {"unmasked_row_statistics": "mLSE[0, 1, 0] race_two_writes", "dbias_scaled": "dbias wrong"}
    seen["row_state_tail_unwritten"] = "mState[0, 0, 40] read_of_uninitialised_memory"  # which no answer shows
    assert all(kind in found[name]["kinds"] for name, kind in seen.items() if name in found)
