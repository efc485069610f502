"""dynamic_mask on a GPU."""

from __future__ import annotations

from dataclasses import replace

from fuzz.core.case import Case
from fuzz.core.target import Device, Tensors
from fuzz.targets.dynamic_mask.target import SUPPORT, BundledDynamicMask


class GpuDynamicMask(BundledDynamicMask):
    """kernels.dynamic_mask, or one of its mutants, on the GPU of this machine."""

    device: Device = "cuda"
    support = replace(SUPPORT, max_pairs=1 << 29)  # 16,384 tokens of two heads
    pairs_per_second = 1e9

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        self.compile(case, tensors)
