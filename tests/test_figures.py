"""Figures that documents repeat are those of the results that they name: speed, planted bugs, the error budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SPEED = (ROOT / "docs/performance/log.md").read_text()
EMULATOR = (ROOT / "fuzz/devices/emulator/README.md").read_text()
STANDS_OUT = {("forward", "causal", 32768, 128, 16): "portable"}  # direction, mask, tokens, dim, KV heads: whose


def results(name: str) -> dict:
    return json.loads((ROOT / "ci/results" / name).read_text())


ROWS = [row for row in results("blocksparse_speed_h200.json")["rows"] if row["direction"] != "memory"]


def over_flex(row: dict, whose: str) -> float:
    return row["flex_ms"] / row["ms"][whose]


def over_atomic(row: dict, whose: str) -> float:
    return min(row["ms"][way] for way in ("default", "planned") if way in row["ms"]) / row["ms"][whose]


def over_flash_2(row: dict, whose: str) -> float:
    return row["flash_2_ms"] / row["ms"][whose]


def spread(
    direction: str,
    whose: str,
    dim: int | None = None,
    ratio: Callable[[dict, str], float] = over_flex,
    rows: Iterable[dict] = ROWS,
) -> str:
    """'least to most', without what stands out, by the note of the file."""
    found = [
        ratio(row, whose)
        for row in rows
        if row["direction"] == direction
        and dim in (None, row["dim"])
        and STANDS_OUT.get((row["direction"], row["mask"], row["tokens"], row["dim"], row["heads"][1])) != whose
    ]
    return f"{min(found):.2f} to {max(found):.2f}"


@pytest.mark.parametrize(
    "said",
    [
        f"forward {spread('forward', 'forward', 128)} times its speed at dim 128, "
        f"{spread('forward', 'forward', 64)} at dim 64; backward {spread('backward', 'atomic')}",
        f"| {spread('backward', 'atomic', ratio=over_atomic)}, none above 1.25",
        f"forward {spread('forward', 'portable')} times FlexAttention's speed",
        f"backward {spread('backward', 'portable')}, none below 0.8",
    ],
)
def test_speed_of_the_readme_is_that_of_its_file(said):
    assert said in README, said


@pytest.mark.parametrize(
    "said",
    [
        f"| forward | {spread('forward', 'forward', 64)} | {spread('forward', 'forward', 128)} |",
        f"| backward, atomic | {spread('backward', 'atomic', 64)} | {spread('backward', 'atomic', 128)} |",
        f"| portable, backward, atomic | {spread('backward', 'portable', 64)} |",
    ],
)
def test_speed_of_its_own_document_too(said):
    rows = [line.split(";")[0] for line in SPEED.splitlines()]
    assert any(row.startswith(said.removesuffix(" |")) for row in rows), said


def portable(rows: Iterable[dict]) -> list[float]:
    return [over_flex(row, "portable") for row in rows]


def test_so_are_the_counts_of_the_portable_kernels():
    sparse = portable(row for row in ROWS if row["mask"] not in ("full", "causal"))
    fast = f"{sum(ratio >= 1 for ratio in sparse)} of {len(sparse)} sparse rows at least 1.0"
    assert fast in README
    every = portable(ROWS)
    assert f"{sum(ratio >= 0.8 for ratio in every)} of {len(every)} rows have 0.8" in SPEED


def test_so_is_what_they_are_beside_flash_attention_2():
    rows = [row for row in ROWS if "flash_2_ms" in row]
    forward, backward = (spread(way, "portable", ratio=over_flash_2, rows=rows) for way in ("forward", "backward"))
    assert f"on full and causal masks, forward {forward}, backward {backward}" in README


def test_planted_bugs_of_the_emulated_gpu_are_those_of_their_file():
    found = results("planted_emulator_host.json")
    assert f"of commit {found['commit']}" in EMULATOR
    for bug in found["bugs"]:
        row = f"| `{bug['bug']}` | {bug['cases']} | {bug['seconds']} s | {bug['compiling']} s | {bug['minimised']} s, "
        assert row + f"{bug['runs']} runs |" in EMULATOR, bug["bug"]


def test_the_largest_error_of_pytorchs_cpu_kernels_is_that_of_its_file():
    largest = [
        ratio
        for kernel in results("accuracy_cpu_20000.json")["kernels"]
        for ratio, *_ in kernel["nearest"]
        if ratio <= 1  # above: bugs of theirs
    ]
    assert f"largest error / budget {max(largest):.2f}," in README
