"""Numerics that would explain a failure: a kernel that rounds at another place than it declares looks wrong.

A proposal is words in the finding, and evidence; no verdict changes by it. Whether the kernel does round there is for
its source to say: a small mistake may look like a rounding too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from oracles.finding import Finding
from oracles.numerics import Numerics

FARTHEST = 200.0  # error / budget up to which a rounding may be the reason
Changes = dict[str, Any]

# From the least permissive on: the first one that explains a case is proposed.
CANDIDATES: tuple[tuple[str, Changes], ...] = (
    ("k scaled in the backward pass, in fp32", {"rescored": "k", "folded": "float32"}),
    ("k scaled, in fp32", {"scaled": "k", "folded": "float32"}),
    ("O normalised by its LSE at the end", {"renormalised": "end"}),
    ("O normalised by the LSE with each tile", {"renormalised": "tiles"}),
    ("keys split between CTAs", {"splits": True}),
    ("dS scaled before it is rounded", {"dscaled": "dscores"}),
    ("the rounded P used for dS", {"weights": "input"}),
    ("k scaled and rounded in the backward pass", {"rescored": "k", "folded": "input"}),
    ("q scaled and rounded", {"scaled": "q"}),
    ("k scaled and rounded", {"scaled": "k", "folded": "input"}),
    ("dK and dV rounded for each query head", {"heads": "input"}),
    ("gradients rounded after each tile", {"sums": "input"}),
    ("scores rounded to the input dtype", {"scores": "input"}),
)


def propose(
    findings: Sequence[Finding], ratio: float, declared: Numerics, judge: Callable[[Numerics], Sequence[Finding]]
) -> tuple[list[Finding], Changes]:
    """`findings` of a case, the first one with a proposal where there is one, and the proposed change ({}: none).

    ratio  largest error / budget;  judge  findings of the same answers under other Numerics
    """
    found = list(findings)
    if not found or ratio > FARTHEST or any(f.oracle not in ("accuracy", "exact") for f in found):
        return found, {}
    for title, changes in CANDIDATES:
        numerics = replace(declared, **changes)
        if numerics == declared or judge(numerics):
            continue
        given = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        message = f"{found[0].message}; it looks like {title}: with Numerics({given}) all is within its budget"
        return [structs.replace(found[0], message=message), *found[1:]], changes
    return found, {}
