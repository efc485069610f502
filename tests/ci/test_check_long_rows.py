"""ci/check_long_rows.py: its cases, and what it says of processes that do not end."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))

import check_long_rows

from fuzz.core.refusal import refusal
from fuzz.targets.registry import load

CASES = [check_long_rows.drawn(1, number) for number in range(150)]


def test_every_case_has_runs_of_tiles_and_is_accepted():
    target = load("blocksparse", device="cuda")
    assert all(refusal(target, case) is None for case in CASES)
    assert all(min(case.problem.lengths_q) >= 5 * check_long_rows.TILE for case in CASES)
    assert {case.variant["mask"] for case in CASES} == {"none", "band", "intervals", "bits"}
    assert {case.variant["deterministic"] for case in CASES} == {False, True}
    assert CASES[7] == check_long_rows.drawn(1, 7) != check_long_rows.drawn(2, 7)


def options(**values):
    given = {"cases": 4, "jobs": 2, "seed": 1, "seconds": 60.0, "device": "cuda", "draw": check_long_rows.drawn}
    return argparse.Namespace(**given | values)


def test_a_case_that_nobody_told_of_is_lost():
    rows = [{"number": 0, "outcome": "pass", "ratio": 0.5}, {"number": 2, "outcome": "fail", "ratio": 3.0}]
    found = check_long_rows.summary(options(), rows)
    assert found["lost"] == [1, 3] and found["outcomes"] == {"pass": 1, "fail": 1} and found["largest_ratio"] == 3.0
    assert [one["number"] for one in found["not_passed"]] == [2] and json.dumps(found)


def test_full_masks_are_of_kernels_in_clusters_or_with_split_tiles():
    """Clusters take whole pairs of tiles, but where they are many."""
    cases = [check_long_rows.drawn_full(1, number) for number in range(120)]
    assert {case.problem.dim for case in cases} == set(check_long_rows.FULL_DIMS)
    assert all(check_long_rows.clustered(case) == (case.problem.dim > 96) for case in cases)
    split = [case for case in cases if check_long_rows.splits_forward(case)]
    assert len(split) >= 10 and {check_long_rows.clustered(case) for case in split} == {False, True}
    assert {bool(case.variant.get("wide")) for case in split} == {False, True}
    split = [case for case in cases if check_long_rows.splits_backward(case)]
    assert len(split) >= 3 and all(64 < case.problem.dim <= 128 for case in split)
    assert not any(case.variant["deterministic"] for case in split)
    tiles = {-(-case.problem.len_q // check_long_rows.TILE) for case in cases}
    assert all(number % 2 == 0 or number >= 32 for number in tiles) and any(number % 2 for number in tiles)
    others = [case for case in CASES[:40] if case.variant["mask"] != "none"]
    assert not any(map(check_long_rows.clustered, others))


def test_nested_rows_are_of_kernels_in_clusters():
    target = load("blocksparse", device="cuda")
    cases = [check_long_rows.drawn_nested(1, number) for number in range(120)]
    assert all(refusal(target, case) is None for case in cases)
    assert {case.problem.dim for case in cases} == set(check_long_rows.NESTED_DIMS)
    assert all(map(check_long_rows.clustered, cases))
    tiles = {-(-case.problem.len_q // check_long_rows.TILE) % 2 for case in cases}
    assert tiles == {0, 1} and {case.problem.backward for case in cases} == {False, True}


def test_a_process_that_does_not_end_is_killed_and_what_it_told_counts(tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    script.write_text(
        "import sys, time\n"
        "i = int(sys.argv[-1])\n"
        'print(\'{"number": %d, "outcome": "pass", "ratio": 0.1}\' % i, flush=True)\n'
        "time.sleep(600 * i)\n"
    )
    monkeypatch.setattr(check_long_rows, "__file__", str(script))
    monkeypatch.setattr(sys, "argv", ["check_long_rows.py"])
    monkeypatch.setattr(check_long_rows, "compile_for", lambda target, cases, console: None)
    rows = check_long_rows.gathered(options(seconds=3.0))
    assert [one["number"] for one in rows] == [0, 1]


@pytest.mark.nightly
def test_a_long_case_passes_on_the_emulated_gpu():
    assert check_long_rows.told(check_long_rows.drawn(1, 0), "emulator")["outcome"] == "pass"


@pytest.mark.parametrize("device", ["cuda", "emulator"])
def test_the_kernels_of_all_cases_are_compiled_before_any_runs(device, monkeypatch):
    asked = []
    monkeypatch.setattr(check_long_rows, "compile_for", lambda target, cases, console: asked.append((target, cases)))
    assert check_long_rows.gathered(options(cases=5, jobs=0, device=device)) == []
    [(target, cases)] = asked
    assert target.name == "blocksparse" and len(cases) == 5
    products = {case.variant.get("products") for case in cases}
    assert products == ({"wgmma"} if device == "emulator" else {None})
    assert all(target.builds(case, "sm_90a") for case in cases)
