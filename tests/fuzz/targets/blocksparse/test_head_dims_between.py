"""Cases at head dims between those of Hopper's backward kernels, with all checks of the emulated GPU: among them that
nothing reads memory which nothing has written, as the sums of dQ behind the head dim."""

from __future__ import annotations

import pytest
from covering import nightly_unless
from needs import needs_emulator

from fuzz.core.case import Case
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.masks import Causal
from oracles.problem import Problem


@needs_emulator
@pytest.mark.parametrize(
    ("dim", "tile_n", "deterministic"),
    [
        (192, 64, True),
        *(
            nightly_unless(False, *case)
            for case in [(160, 64, False), (136, 64, True), (96, 128, True), (24, 128, True)]
        ),
    ],
)
def test_cases_pass(dim: int, tile_n: int, deterministic: bool) -> None:
    problem = Problem((200,), (150,), 2, 1, dim, dim, "bfloat16", mask=Causal("bottom_right"))
    variant = {"mask": "band", "tile_n": tile_n, "deterministic": deterministic, "products": "wgmma"}
    verdict = execute(Case("blocksparse", problem, variant=variant), load("blocksparse"), lambda phase, limit: None)
    assert (verdict.outcome, verdict.findings) == ("pass", ())
