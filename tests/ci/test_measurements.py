"""Results of benchmarks and scoreboards as points of the ledger."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from ci import measurements
from fuzz.ledger.query import read
from fuzz.ledger.tables.database import Ledger

RESULTS = Path(__file__).resolve().parents[2] / "ci" / "results"
SCORE = {
    "machine": {"date": "2026-11-23 21:08 UTC", "cpu": "model", "cpus": 2, "torch": "2.13.0"},
    "settings": {"cases": 200, "limits": {}},
    "mutants": 4, "found": 3, "median": 2.5, "worst": 90, "by": {}, "bugs": [],
}  # fmt: skip


def put(folder: Path, name: str, result: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(result))
    return path


def test_a_scoreboard_is_three_points_and_counts_once(tmp_path: Path) -> None:
    ledger, path = tmp_path / "ledger.sqlite", put(tmp_path, "score_b200.json", SCORE)
    for _ in range(2):
        assert measurements.main([str(path), "--ledger", str(ledger)]) == 0
    with Ledger(str(ledger), create=False) as opened:
        found = read.measurements(opened)
    assert dict(zip(found["series"], found["value"], strict=True)) == {
        "scoreboard, 200 cases: share of mutants found [b200]": 0.75,
        "scoreboard, 200 cases: cases until found, median mutant [b200]": 2.5,
        "scoreboard, 200 cases: cases until found, worst mutant [b200]": 90.0,
    }
    assert set(found["at"]) == {1795468080.0}  # 2026-11-23 21:08 UTC


def test_a_result_without_a_machine_in_its_name_was_measured_here(tmp_path: Path) -> None:
    (point, *_) = measurements.read(put(tmp_path, "score.json", SCORE))
    assert point.series.endswith(f"[{platform.node()}]") and point.toolchain["torch"]


@pytest.mark.parametrize("result", [{"other": 1}, [1, 2]])
def test_files_of_other_kinds_are_named_and_left_out(tmp_path: Path, capsys, result) -> None:
    path = put(tmp_path, "other_host.json", result)
    assert measurements.main([str(path), "--dry-run"]) == 0 and "no figures of a kind" in capsys.readouterr().out


def test_a_file_that_has_not_the_form_of_its_kind_is_an_error(tmp_path: Path, capsys) -> None:
    bad = put(tmp_path, "score_host.json", SCORE | {"found": "many"})
    good = put(tmp_path, "score_b200.json", SCORE)
    assert measurements.main([str(bad), str(good), "--dry-run"]) == 2
    told = capsys.readouterr()
    assert "score_host.json: has not the form of its kind" in told.err and "share of mutants found [b200]" in told.out


def test_committed_versions_of_a_file_are_earlier_points(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, env=os.environ | names)

    git("init", "--quiet")
    for found in (2, 2, 3):  # the second commit changes what is no figure
        path = put(
            tmp_path,
            "score_host.json",
            SCORE | {"found": found, "bugs": [found], "machine": {"note": os.urandom(4).hex()}},
        )
        git("add", ".")
        git("commit", "--quiet", "-m", "x")
    shares = [p.value for p in measurements.read(path, history=True) if "share" in p.series]
    assert shares == [0.5, 0.75]
    assert [p.value for p in measurements.read(path) if "share" in p.series] == [0.75]


def test_every_reader_reads_a_committed_result() -> None:
    read_by = set()
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        if isinstance(result, dict):
            kind = next((one for one in measurements.READERS if one.keys <= result.keys()), None)
            if kind is not None and measurements.points(result, path.stem, 1.0):
                read_by.add(kind.figures)
    # no B200 has run the kernels by tcgen05 yet
    assert read_by == {one.figures for one in measurements.READERS} - {measurements.blackwell}


def test_speed_on_a_b200_is_a_point_for_each_rate_and_nothing_of_an_emulated_run(tmp_path: Path) -> None:
    rates = {"tcgen05 backward": 900.0, "FlashAttention-4 backward": 1000.0}
    row = {"mask": "causal", "tokens": 8192, "dim": 128, "heads": [16, 2], "tflops": rates}
    result = {"machine": SCORE["machine"], "emulated": False, "tcgen05": [row], "left_out": []}
    found = {point.series: point.value for point in measurements.read(put(tmp_path, "speed_b200.json", result))}
    where = "causal 8192, dim 128, 16/2 heads [b200]"
    assert found == {f"tcgen05 backward: {where}": 900.0, f"FlashAttention-4 backward: {where}": 1000.0}
    assert not measurements.read(put(tmp_path, "speed_b200.json", result | {"emulated": True}))
