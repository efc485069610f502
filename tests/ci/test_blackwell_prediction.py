"""The prediction from SASS: which loop is whose, and arithmetic that a reader can do by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

PATH = Path(__file__).resolve().parents[2] / "ci" / "benchmarks" / "blackwell_prediction.py"
_spec = importlib.util.spec_from_file_location("blackwell_prediction", PATH)
assert _spec is not None and _spec.loader is not None
prediction = importlib.util.module_from_spec(_spec)
sys.modules["blackwell_prediction"] = prediction
_spec.loader.exec_module(prediction)


def loop(mark: str, times: int, others: int) -> list[str]:
    return [*[mark] * times, *["FADD R0, R1, R2"] * others, "NOP", "BRA BACK"]


def program(dim: int) -> list[tuple[int, str]]:
    """Four loops, one behind the other, and one around all of them."""
    loads, issued = 4 * dim // 8 + 1, dim // 8 + 24
    parts = [
        loop("MUFU.EX2 R1, R2", 64, 100),
        loop("REDG.E.ADD.F32x4", dim // 4, 5),
        loop("LDGSTS.E.128", loads, 9),
        loop("UTCHMMA gdesc", issued, 3),
    ]
    code, at = [], 0
    for part in parts:
        begin = at
        for what in part:
            code.append((at, what.replace("BACK", f"{begin:#x}")))
            at += 16
    return [*code, (at, "BRA 0x0")]


@pytest.mark.parametrize("dim", [64, 128])
def test_each_role_has_its_own_loop_without_padding(dim: int) -> None:
    found = prediction.instructions_by_role(program(dim), dim)
    assert found == {
        "softmax": 64 + 100 + 1,
        "dq": dim // 4 + 5 + 1,
        "load": 4 * dim // 8 + 1 + 9 + 1,
        "issue": dim // 8 + 24 + 3 + 1,
    }


def test_a_kernel_without_such_loops_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no loop with 64 MUFU\.EX2"):
        prediction.instructions_by_role([(0, "FADD"), (16, "BRA 0x0")], 64)


def test_clocks_of_a_block() -> None:
    counts = {"softmax": 800, "dq": 80, "load": 500, "issue": 300}
    clocks = prediction.clocks_of(128, counts, shares_dq=True)
    assert clocks["products"] == 5 * 2 * 128**3 // 8192 and clocks["exponentials"] == 1024
    assert clocks["issue slots"] == 2 * 800 + 80 + 500
    # 256 KiB that products read, 32 KiB of dS, 64 KiB of Q and dO, at 128 bytes; 256 reads of LSE and delta
    assert clocks["shared memory"] == (256 + 32 + 64) * 1024 // 128 + 256
    assert clocks["chain"] == 3 * 512 + 800 + 40 + 400
