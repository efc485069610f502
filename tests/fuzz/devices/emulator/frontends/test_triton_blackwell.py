"""Triton kernels compiled for sm_100a (tcgen05) on the emulated GPU. They run in a process of their own."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm_start
from once import once

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
ROOT = Path(__file__).resolve().parents[5]
SCRIPT = ROOT / "tests/support/emulator/emulated_triton_blackwell.py"


def run(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = warm_start.run([str(SCRIPT), *arguments], env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, __name__, run)


def test_products_of_every_type_with_masked_edges_are_exact(seen: dict[str, Any]) -> None:
    assert len(seen["products"]) == 5 and all(seen["products"].values()), seen["products"]


def test_mma_wgmma_and_tcgen05_give_the_same_bits(seen: dict[str, Any]) -> None:
    for one in seen["same bits"].values():
        assert one["equal"] == [True, True] and one["error in units of the bound"] < 1


def test_products_with_block_scales_are_exact(seen: dict[str, Any]) -> None:
    """mxf8f6f4 with and without packed operands, mxf4, mxf4nvf4."""
    assert len(seen["scaled"]) == 4 and all(seen["scaled"].values()), seen["scaled"]


def test_an_attention_forward_is_right(seen: dict[str, Any]) -> None:
    """P goes through tensor memory, sums are rescaled there. Errors are in units of the last place of P's type."""
    assert len(seen["attention"]) == 2 and max(seen["attention"].values()) < 1


@pytest.mark.parametrize(
    "removed,expected",
    [
        ("", []),
        ("proxy fence", ["shared memory read by tcgen05 without fence.proxy.async"]),
        (
            "wait for the product",
            [
                "shared memory overwritten before a tcgen05.commit was waited for",
                "tensor memory used before a tcgen05.commit was waited for",
            ],
        ),
        ("wait for loads", ["tensor memory overwritten before tcgen05.wait::ld"]),
        ("wait for stores", ["tensor memory used before tcgen05.wait::st"]),
        ("dealloc", ["tensor memory never freed"]),
        ("commit", ["deadlock"]),
    ],
)
def test_lines_missing_in_the_ptx_of_a_product(seen: dict[str, Any], removed: str, expected: list[str]) -> None:
    assert seen["planted"][removed] == expected


@pytest.mark.nightly
def test_products_and_attention_of_more_shapes() -> None:
    found = run("many")
    assert len(found["products"]) == 46 and all(found["products"].values()), found["products"]
    assert len(found["attention"]) == 4 and max(found["attention"].values()) < 1
    assert len(found["scaled"]) == 6 and all(found["scaled"].values()), found["scaled"]
