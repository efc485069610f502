"""sdpa on a GPU."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import import_operators
from fuzz.targets.sdpa.target import BundledSdpa


class GpuSdpa(BundledSdpa):
    """kernels.sdpa, or one of its mutants, on the GPU of this machine."""

    device: Device = "cuda"
    pairs_per_second = 1e9

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        import_operators()
        self.compile(case, tensors)
