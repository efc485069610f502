"""Long cases of nsa on the emulated GPU: they choose groups of 128 compressed blocks."""

from __future__ import annotations

import random

import pytest
import torch

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.generate.cases import drawer
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.native_sparse.problem import GROUP, NativeSparse

pytest.importorskip("triton")
pytest.importorskip("cutlass")


@pytest.mark.parametrize("device", ["emulator", "cuda"])
def test_one_case_in_twelve_chooses_groups(device, monkeypatch):
    target = load("nsa", device=device)
    monkeypatch.setattr(target, "draws_long_lists", False, raising=False)
    found = [drawer(target)(random.Random(seed)) for seed in range(600)]
    long = [c for c in found if max(c.problem.lengths) > GROUP * c.problem.compress_block_size]
    assert 30 <= len(long) <= 70
    assert all(c.problem.num_cmp_selected_blocks == 1 and not c.problem.backward for c in long)
    many = [c for c in found if 512 < max(c.problem.lengths) <= 1024 and c.problem.compress_block_size == 16]
    assert device == "cuda" or all(max(c.problem.lengths) <= 320 for c in found if c not in long + many)
    assert sum(refusal(target, c) is None for c in long) > len(long) / 2


def test_one_case_in_ten_chooses_among_33_to_64_blocks_and_one_in_ten_ends_in_its_first_tile(monkeypatch):
    target = load("nsa", device="emulator")
    monkeypatch.setattr(target, "draws_long_lists", False, raising=False)
    found = [drawer(target)(random.Random(seed)) for seed in range(600)]
    many = [c for c in found if 32 * 16 < c.problem.len_q <= 64 * 16 and c.problem.compress_block_size == 16]
    assert 35 <= len(many) <= 90 and all(refusal(target, c) is None and c.repeats == 1 for c in many)
    assert {c.problem.num_selected_blocks for c in many} >= {1, 16, 33}
    assert sum(c.inputs.distribution in ("integers", "constant") for c in many) > len(many) / 3
    small = [c for c in found if len(c.problem.lengths) == 1 and c.problem.len_q <= 48]
    assert len(small) >= 35 and {c.problem.backward for c in small} == {True, False}


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_the_last_group_by_the_full_size_is_found():
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU")
    problem = NativeSparse(
        (2120,), 1, 1, 16, "bfloat16", compress_block_size=16, num_selected_blocks=1, window_size=16,
        num_cmp_selected_blocks=1, backward=False,
    )  # fmt: skip
    name = "nsa!last_group_by_the_full_size"
    verdict = execute(Case(name, problem, Inputs(seed=3), repeats=1), load(name, device="emulator"), lambda p, s: None)
    assert ("selection", "groups") in {(f.oracle, f.tensor) for f in verdict.findings}
