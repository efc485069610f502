"""Errors of the fp32 sums of a GPU's tensor cores, which cut low bits where fp32 arithmetic rounds.

    python ci/benchmarks/tensor_core_sums.py --out ci/results/tensor_core_sums_h200.json

Products of two half precision matrices by torch.mm with fp32 results, against fp64: mean and standard deviation of the
error as a share of the sum of the terms' sizes, in units of 2^-24, by the number of terms, for terms of one sign and of
both. Numerics.dot (oracles/numerics.py) follows from it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "ci"))

from summarise_sessions import publish  # noqa: E402

from fuzz.session.records import machine  # noqa: E402

SIDE = 256
TERMS = (16, 32, 64, 128, 256, 512, 2048)


def errors(dtype: torch.dtype, terms: int, *, both_signs: bool, device: str) -> dict[str, Any]:
    """Errors of SIDE x SIDE sums of `terms` products of normal numbers, or of their sizes, in units of 2^-24."""
    torch.manual_seed(0)
    a, b = torch.randn(SIDE, terms, device=device).to(dtype), torch.randn(terms, SIDE, device=device).to(dtype)
    if not both_signs:
        a, b = a.abs(), b.abs()
    error = torch.mm(a, b, out_dtype=torch.float32).double() - a.double() @ b.double()
    error /= (a.double().abs() @ b.double().abs()) * 2.0**-24
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "signs": "both" if both_signs else "one",
        "terms": terms,
        "mean": round(error.mean().item(), 2),
        "std": round(error.std().item(), 2),
        "largest": round(error.abs().max().item(), 2),
    }


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        errors(dtype, terms, both_signs=both, device=options.device)
        for dtype in (torch.float16, torch.bfloat16)
        for both in (False, True)
        for terms in TERMS
    ]
    publish({"what": "errors of fp32 sums of tensor cores, in 2^-24 of the sum of the terms' sizes",
             "machine": machine(), "rows": rows}, options.out)  # fmt: skip


if __name__ == "__main__":
    main()
