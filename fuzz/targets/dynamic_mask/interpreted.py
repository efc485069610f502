"""dynamic_mask in Triton's interpreter, which runs a program of the grid after the other in NumPy."""

from __future__ import annotations

import os

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Tensors
from fuzz.devices.present import cuda_present
from fuzz.process import triton_mode
from fuzz.targets.dynamic_mask.target import BundledDynamicMask
from fuzz.targets.triton_interpreter import patch_interpreter
from oracles.numerics import FUSED


class InterpretedDynamicMask(BundledDynamicMask):
    """kernels.dynamic_mask, or one of its mutants, in Triton's interpreter."""

    device: Device = "interpreter"
    numerics = FUSED
    pairs_per_second = 2e4
    session_size = Size(1 << 14, 6, 1100)  # so few pairs, but lists of up to 18 tiles
    script_setup = f'os.environ["{triton_mode.VARIABLE}"] = "1"  # no GPU\n'

    def missing(self) -> str | None:
        """See Target."""
        if cuda_present():
            return "Triton's interpreter is used on machines without a GPU"
        return triton_mode.missing("interpreted") or super().missing()

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Nothing is compiled."""
        _interpret()

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """See BundledDynamicMask."""
        _interpret()
        return super().forward(case, tensors)

    def expected_seconds(self, case: Case) -> float:
        """The interpreter's time goes with the number of tiles, however few tokens they hold."""
        p = case.problem
        return 0.05 + 0.05 * p.batch * p.heads_q * (p.len_q // 64 + 1) * (p.len_k // 64 + 1)


def _interpret() -> None:
    os.environ[triton_mode.VARIABLE] = "1"
    patch_interpreter()
