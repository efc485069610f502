"""Outputs: the tensors that an operation returns, from the reference or from a target, in the problem's own layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

TITLES = {"o": "O", "lse": "LSE", "dq": "dQ", "dk": "dK", "dv": "dV", "dbias": "dBias"}  # as texts name them
TITLES |= {"dw_k": "dW_k", "dw_v": "dW_v", "dw_gate": "dW_gate"}
NAMES = tuple(TITLES)
OF_WEIGHTS = ("dw_k", "dw_v", "dw_gate")  # (heads, rows, dim) in every layout
CHOICES = ("blocks", "groups")  # integers, which no budget measures


@dataclass(frozen=True)
class Outputs:
    """Shapes as in `problem.shapes`. None: not asked for (no backward, no bias, no weight) or not offered by the target
    (lse). `blocks` and `groups` are what an operation chose (`problem.choices`)."""

    o: Tensor
    lse: Tensor | None = None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dbias: Tensor | None = None
    dw_k: Tensor | None = None
    dw_v: Tensor | None = None
    dw_gate: Tensor | None = None
    blocks: Tensor | None = None
    groups: Tensor | None = None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of numbers that are there, by name, in the order of NAMES."""
        for name in NAMES:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def choices(self) -> dict[str, Tensor]:
        """The choices that are there, by name."""
        return {name: x for name in CHOICES if (x := getattr(self, name)) is not None}
