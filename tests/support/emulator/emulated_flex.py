"""Compiled FlexAttention on the emulated GPU, in a process of its own: Triton decides at its import whether it
interprets. Prints a JSON object: the names of the kernels that ran, and the verdicts of some cases.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import flex_attention

from fuzz.core.case import Case, Inputs
from fuzz.corpus.store import load
from fuzz.devices.emulator import emulated
from fuzz.devices.emulator.frontends.inductor import gpu_kernels
from fuzz.judging.judge import execute
from fuzz.targets.torch_flex_emulated import EmulatedFlex
from oracles.masks import Causal
from oracles.problem import Problem

CORPUS = Path(__file__).resolve().parents[3] / "corpus/regressions"


def _block() -> dict[str, Any]:
    """The block as a user writes it."""
    q, k, v = (torch.randn(1, 2, 130, 64).bfloat16() for _ in "qkv")
    with emulated("sm_90a") as gpu, gpu_kernels("sm_90a"):
        o = torch.compile(flex_attention, fullgraph=True)(q, k, v)
    right = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    return {"kernels": [report.kernel for report in gpu.reports], "error": float((o - right).abs().max())}


def _outcome(problem: Problem) -> str:
    target = EmulatedFlex()
    verdict = execute(Case(target.name, problem, Inputs(), repeats=2), target, lambda phase, limit: None)
    return verdict.findings[0].message if verdict.findings else verdict.outcome


def main() -> None:
    """Runs all scenarios."""
    cases = {
        "causal, forward and backward": Problem((70,), (130,), 1, 1, 64, 64, "bfloat16", mask=Causal("bottom_right")),
        "known bug": load(CORPUS / "torch.flex_raised_no_choices_gqa.json").case.problem,
        "softcap, forward": Problem((140,), (70,), 1, 1, 32, 32, "float16", softcap=2.0, backward=False),
    }
    json.dump({"block": _block(), **{name: _outcome(one) for name, one in cases.items()}}, sys.stdout)


if __name__ == "__main__":
    main()
