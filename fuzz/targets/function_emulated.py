"""EmulatedFunctionTarget: a user's own function whose Triton kernels run on the emulated GPU; made by @target with
device="emulator"."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.target import Execution, Tensors
from fuzz.process import triton_mode
from fuzz.targets.function_target import FunctionTarget
from fuzz.targets.triton_emulated import on_emulated_gpu


class EmulatedFunctionTarget(FunctionTarget):
    """A user's function on CPU tensors, whose Triton kernels are compiled for `arch` and run emulated. Each repeat runs
    its warps and CTAs in another order."""

    arch: str = "sm_90a"
    _repeat = 0

    def missing(self) -> str | None:
        """See Target."""
        return triton_mode.missing("emulated")

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """See Target."""
        from fuzz.devices.emulator import ready

        ready()
        self._repeat = 0

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget. Raises DeviceError for what the emulated GPU finds, and for what it does not emulate."""
        with on_emulated_gpu(self.arch, self._repeat):
            self._repeat += 1
            return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget and `run`."""
        with on_emulated_gpu(self.arch, self._repeat):
            self._repeat += 1
            return super().run_around(case, tensors, others)

    def script_call(self, case: Case) -> Text:
        """See Target. Raises ScriptError: a script has PyTorch and Triton only."""
        raise ScriptError(
            f"target {self.name!r} runs on the emulated GPU: there is no script for it; use attnfuzz repro"
        )
