"""sdpa on the emulated GPU: kernels compiled for Hopper, with tensor descriptors (TMA) and wgmma, run on a CPU."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Execution, Tensors
from fuzz.devices.emulator.config import BLOCK_CHECKS
from fuzz.devices.present import cuda_present
from fuzz.targets.sdpa.target import BundledSdpa
from fuzz.targets.triton_emulated import on_emulated_gpu

ARCH = "sm_90a"
CHECKS = BLOCK_CHECKS | {"unordered_adds"}  # its gradients are bitwise the same in every run


class EmulatedSdpa(BundledSdpa):
    """kernels.sdpa, or one of its mutants, on the emulated GPU. Each repeat runs its warps and CTAs in another order."""

    device: Device = "emulator"
    pairs_per_second = 2e4
    session_size = Size(1 << 14, 6, 320)  # the interpreter's, so that a seed draws the same cases for both
    _repeat = 0

    def missing(self) -> str | None:
        """See Target."""
        if cuda_present():
            return "kernels run on the GPU where there is one"
        return super().missing()

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        from fuzz.devices.emulator import ready

        ready()
        with on_emulated_gpu(ARCH):
            self.compile(case, tensors)
        self._repeat = 0

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget. Raises DeviceError for what the emulated GPU finds."""
        with on_emulated_gpu(ARCH, self._repeat, checks=CHECKS):
            self._repeat += 1
            return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget and `run`."""
        with on_emulated_gpu(ARCH, self._repeat, checks=CHECKS):
            self._repeat += 1
            return super().run_around(case, tensors, others)

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        p = case.problem
        tiles = p.batch * p.heads_q * (p.len_q // 64 + 1) * (p.len_k // 64 + 1)
        return 0.5 + 0.05 * tiles * (4 if p.backward else 1)
