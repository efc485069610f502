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


def program(dim: int, tma: int) -> list[tuple[int, str]]:
    """Four loops, one behind the other, and one around all of them."""
    loads, issued = 4 * dim // 8 + 1, dim // 8 + 24
    parts = [
        loop("MUFU.EX2 R1, R2", 64, 100),
        ["LDTM", "LDTM", *(loop("UBLKRED.G.S.ADD.F32.RN", dim // 16, 5) if tma else loop("REDG.E", dim // 4, 5))],
        loop("UTMALDG.4D", dim // 64, 9) if tma else loop("LDGSTS.E.128", loads, 9),
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
@pytest.mark.parametrize("tma", [0, 1])
def test_each_role_has_its_own_loop_without_padding(dim: int, tma: int) -> None:
    found = prediction.instructions_by_role(program(dim, tma), prediction.backward_marks(dim, tma, tma))
    assert found == {
        "softmax": 64 + 100 + 1,
        "dq": 2 + (dim // 16 if tma else dim // 4) + 5 + 1,
        "read dq": 2,
        "load": (dim // 64 if tma else 4 * dim // 8 + 1) + 9 + 1,
        "issue": dim // 8 + 24 + 3 + 1,
    }


def test_a_kernel_without_such_loops_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no loop with 64 MUFU\.EX2"):
        prediction.instructions_by_role([(0, "FADD"), (16, "BRA 0x0")], prediction.backward_marks(64, 1, 1))


def test_clocks_of_a_block() -> None:
    counts = {"softmax": 800, "dq": 80, "read dq": 40, "load": 500, "issue": 300}
    clocks = prediction.clocks_of(128, counts, 0, shares_dq=True)
    assert clocks["products"] == 5 * 2 * 128**3 // 8192 and clocks["exponentials"] == 1024
    assert clocks["issue slots"] == 2 * 800 + 80 + 500
    # 256 KiB that products read, 32 KiB of dS, 64 KiB of Q and dO, at 128 bytes; 256 reads of LSE and delta
    assert clocks["shared memory"] == (256 + 32 + 64) * 1024 // 128 + 256
    assert clocks["chain"] == 3 * 512 + 800 + 40 + 400
    by_bulk_adds = prediction.clocks_of(128, counts, 1, shares_dq=True)
    # dQ, 64 KiB, is written to shared memory and read from there
    assert by_bulk_adds["shared memory"] == clocks["shared memory"] + 2 * 64 * 1024 // 128


def test_clocks_of_a_block_of_each_cta_of_a_pair() -> None:
    counts = {"softmax": 800, "dq": 80, "read dq": 40, "load": 500, "issue": 600}
    clocks = prediction.pair_clocks(128, counts, shares_dq=False)
    assert clocks["products"] == 5 * 2 * 128**3 // 8192 and clocks["issue slots"] == 2 * 800 + 80 + 600
    # products read A whole and half of B (S and dP), half of B (dV and dK), dS and K (dQ); dS, Q and dO are written
    assert clocks["shared memory"] == (2 * 48 + 2 * 16 + 2 * 32 + 32 + 64) * 1024 // 128 + 256
    assert clocks["chain"] == 3 * 512 + 800 + 3 * 200
    assert prediction.pair_clocks(128, counts, shares_dq=True)["chain"] == clocks["chain"] + 40 + 200


def forward_program(dim: int, tma: int, exponentials: int = 128) -> list[tuple[int, str]]:
    """The loops of the forward kernel: one around a wait and a part that may be skipped, one with two ways to load a
    tile, one unrolled for two blocks."""
    load = "UTMALDG.4D [UR8], [UR6]" if tma else "LDGSTS.E.128"
    times = dim // 64 if tma else dim // 2
    softmax = [
        "@P0 BRA SKIP 51",
        *["FADD"] * 50,
        *["MUFU.EX2 R1, R2"] * exponentials,
        "NOP",
        *["FMUL"] * 10,
        "@P1 BRA BACK",
    ]
    loads = ["@!P0 BRA SKIP 202", *["IMAD"] * 200, "BRA SKIP 2", *[load] * times, *["MOV"] * 4, "@P1 BRA BACK"]
    issue = [*["UTCHMMA gdesc"] * 2 * (dim // 16 + 8), *["UMOV"] * 5, "BRA BACK"]
    code: list[tuple[int, str]] = []
    at = 0
    for part in (softmax, loads, issue):
        begin = at
        for what in part:
            head, _, skip = what.partition("SKIP ")
            to = f"{at + 16 * int(skip):#x}" if skip else ""
            code.append((at, (head + to).replace("BACK", f"{begin:#x}")))
            at += 16
    return [*code, (at, "BRA 0x0")]


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("tma", [0, 1])
def test_a_forward_role_takes_the_shortest_way_that_does_its_work(dim: int, tma: int) -> None:
    found = prediction.forward_instructions(forward_program(dim, tma), dim, tma, 0)
    assert found["softmax"] == 1 + 128 + 10 + 1
    a_quarter_by_polynomials = prediction.forward_instructions(forward_program(dim, tma, 96), dim, tma, 1)
    assert a_quarter_by_polynomials == found | {"softmax": 1 + 96 + 10 + 1}
    assert found["load"] == 1 + (dim // 64 if tma else dim // 2) + 4 + 1
    assert found["issue"] == dim // 16 + 8 + 3  # six others for two blocks


def test_a_forward_kernel_without_such_loops_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no loop with 128 MUFU\.EX2"):
        prediction.forward_instructions([(0, "FADD"), (16, "BRA 0x0")], 64, 1, 0)


def test_clocks_of_a_forward_block() -> None:
    clocks = prediction.forward_clocks(128, {"softmax": 600, "load": 40, "issue": 130}, 1, 0)
    assert clocks["products"] == 2 * 2 * 128**3 // 8192 and clocks["exponentials"] == 1024
    assert clocks["issue slots"] == 600 + 130  # those that load are less busy than the one that issues products
    # Q, K and V, which products read, and K and V, which come in: 32 KiB each
    assert clocks["shared memory"] == 5 * 32 * 1024 // 128
    shared = prediction.forward_clocks(128, {"softmax": 600, "load": 300, "issue": 130}, 2, 1)
    assert shared["exponentials"] == 1024 * 3 // 4
    assert shared["shared memory"] == 4 * 32 * 1024 // 128 and shared["issue slots"] == 600 + 150
    assert shared["products"] == clocks["products"]
    # K and V, once a block, or once for two
    assert clocks["L2"] == round(64 * 1024 / prediction.L2) and shared["L2"] == round(32 * 1024 / prediction.L2)


def test_the_next_tile_goes_to_the_multiprocessor_that_is_free_first() -> None:
    assert prediction.makespan([5, 4, 3, 3], 0, 2) == 8  # 5 and 3; 4 and 3
    assert prediction.makespan([7], 1, 2) == 8


def test_persistent_ctas_save_what_a_tile_costs_beside_its_steps() -> None:
    """16 heads of 8 tiles are fewer than the multiprocessors: each has one tile, and nothing is saved. With eight
    batches 7 go to one, the first of which costs as much as before."""
    alone = prediction.predict_persistent(64, "full", 2048, 1, 1000)
    assert (alone.tiles, alone.steps, alone.clocks) == (128, 128 * 16, (19500, 19500))
    full = prediction.predict_persistent(64, "full", 2048, 8, 1000)
    assert full.clocks == (7 * 19500, 7 * 17500 + 2000) and full.saved == round(12000 / (7 * 19500), 3)
    causal = prediction.predict_persistent(64, "causal", 2048, 8, 1000)
    assert causal.steps == 8 * 16 * sum(range(2, 17, 2)) and causal.clocks[1] < full.clocks[1]
