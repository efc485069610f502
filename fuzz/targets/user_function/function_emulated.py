"""EmulatedFunctionTarget: a user's own function whose Triton kernels run on the emulated GPU; made by @target with
device="emulator"."""

from __future__ import annotations

from fuzz.process import triton_mode
from fuzz.targets.triton_emulated import EmulatedTriton
from fuzz.targets.user_function.function_target import FunctionTarget


class EmulatedFunctionTarget(EmulatedTriton, FunctionTarget):
    """A user's function on CPU tensors, whose Triton kernels are compiled for `arch` and run emulated."""

    def missing(self) -> str | None:
        """See Target."""
        return triton_mode.missing("emulated")
