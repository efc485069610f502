"""Each mutant of kernels.dynamic_mask fails under the harness on a small case that the correct kernel passes."""

import json
import os
from pathlib import Path

import pytest
import torch
import warm_start
from covering import daily
from dynamic_mask_shown import SHOWN
from msgspec.structs import replace

from fuzz.judging.judge import execute
from fuzz.targets.dynamic_mask.catalog import CLASSES, MACHINE_ONLY
from kernels.mutants.dynamic_mask.edited_launch import without_barriers_before_writes
from kernels.mutants.dynamic_mask.table import MUTANTS

DEVICE = "cuda" if torch.cuda.is_available() else "interpreter"
ROOT = Path(__file__).resolve().parents[3]


def verdict(name, case):
    target = CLASSES[DEVICE](name)
    return execute(replace(case, target=target.name), target, lambda phase, limit: None)


INTERPRETED = tuple(name for name in MUTANTS if name not in MACHINE_ONLY)


@pytest.mark.parametrize("name", daily(INTERPRETED, ("dbias_of_one_head", "flag_of_the_first_warp", "never_skips")))
def test_wrong_where_the_correct_kernel_passes(name):
    case, told = SHOWN[name]
    found = verdict(name, case)
    assert found.outcome == "fail", found
    assert told & {f"{f.tensor} {f.kind}".strip() for f in found.findings}, found.findings
    assert verdict("", case).outcome == "pass"


def test_each_is_shown():
    assert set(SHOWN) == set(MUTANTS) and set(MACHINE_ONLY) < set(MUTANTS)


@pytest.mark.parametrize("guard", ["", "@%p3 "])
def test_a_barrier_is_dropped_before_a_write_to_shared_memory_alone(guard):
    read, write = f"\t{guard}ldmatrix.sync [%r1];", f"\t{guard}st.shared.b32 [%r1], %r2;"
    lines = ["\tbar.sync 0;", "\tmov.b32 %r1, 1;", read, "\tbar.sync \t0;", write, "\tbarrier.cta.sync 0;"]
    kept = without_barriers_before_writes("\n".join(lines)).splitlines()
    assert kept == [*lines[:3], "\t;", *lines[4:]]


@pytest.mark.nightly
def test_wrong_on_the_emulated_gpu_where_the_correct_kernel_passes():
    """In a process of its own: this one interprets."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    command = [str(ROOT / "tests/support/emulated_dynamic_mask.py"), *MUTANTS]
    done = warm_start.run(command, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {name: (one["outcome"], one["right"]) for name, one in found.items()} == dict.fromkeys(
        MUTANTS, ("fail", "pass")
    ), found
