"""Outputs: the tensors that attention returns, from the reference or from a target, in the problem's own layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

TITLES = {"o": "O", "lse": "LSE", "dq": "dQ", "dk": "dK", "dv": "dV", "dbias": "dBias"}  # as texts name them
NAMES = tuple(TITLES)


@dataclass(frozen=True)
class Outputs:
    """Shapes as in `problem.shapes`. None: not asked for (no backward, no bias) or not offered by the target (lse)."""

    o: Tensor
    lse: Tensor | None = None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dbias: Tensor | None = None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are there, by name, in the order of NAMES."""
        for name in NAMES:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor
