"""nsa on a GPU."""

from __future__ import annotations

from dataclasses import replace

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import import_operators
from fuzz.targets.nsa.target import SUPPORT, BundledNativeSparse


class GpuNativeSparse(BundledNativeSparse):
    """kernels.nsa, or one of its mutants, on the GPU of this machine."""

    device: Device = "cuda"
    support = replace(SUPPORT, dim=(8, 256, 8), max_pairs=1 << 29)
    long_size = Size(1 << 26, 4, 1 << 13, 1 << 22)
    pairs_per_second = 1e9

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        from kernels.nsa import prepare

        import_operators()
        prepare(*self.tokens(case, tensors), backward=case.problem.backward, **self.settings(case, tensors))
