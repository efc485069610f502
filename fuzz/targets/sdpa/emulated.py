"""sdpa on the emulated GPU: kernels compiled for Hopper, with tensor descriptors (TMA) and wgmma, run on a CPU."""

from __future__ import annotations

from collections.abc import Hashable

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Tensors
from fuzz.devices.emulator.config import BLOCK_CHECKS
from fuzz.devices.present import cuda_present
from fuzz.targets.sdpa.fewer_kernels import FAMILIES, family, with_fewer_kernels
from fuzz.targets.sdpa.target import OPTIONS, BundledSdpa
from fuzz.targets.triton_emulated import EmulatedTriton
from oracles.problem import AnyProblem


class EmulatedSdpa(EmulatedTriton, BundledSdpa):
    """kernels.sdpa, or one of its mutants, on the emulated GPU."""

    device: Device = "emulator"
    checks = BLOCK_CHECKS | {"unordered_adds"}  # its gradients are bitwise the same in every run
    pairs_per_second = 2e4
    kernel_families = FAMILIES
    follow_ups = 1  # a run is quick; one mutant in 39 shows in a follow-up case alone
    session_size = Size(1 << 14, 6, 320)  # the interpreter's, so that a seed draws the same problems for both

    def missing(self) -> str | None:
        """See Target."""
        if cuda_present():
            return "kernels run on the GPU where there is one"
        return super().missing()

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """See Target."""
        return with_fewer_kernels(problem)

    def kernel_family(self, case: Case) -> Hashable:
        """See Target."""
        return family(case, str(OPTIONS.of(case)["mask"]))

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        super().prepare(case, tensors)
        with self.compiling():
            self.compile(case, tensors)

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        p = case.problem
        tiles = p.batch * p.heads_q * (p.len_q // 64 + 1) * (p.len_k // 64 + 1)
        return 0.5 + 0.05 * tiles * (4 if p.backward else 1)
