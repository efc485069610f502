"""EmulatedFunctionTarget: a user's own function whose Triton kernels run on the emulated GPU; made by @target with
device="emulator"."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.process import triton_mode
from fuzz.targets.function_target import FunctionTarget
from fuzz.targets.triton_emulated import EmulatedTriton


class EmulatedFunctionTarget(EmulatedTriton, FunctionTarget):
    """A user's function on CPU tensors, whose Triton kernels are compiled for `arch` and run emulated."""

    def missing(self) -> str | None:
        """See Target."""
        return triton_mode.missing("emulated")

    def script_call(self, case: Case) -> Text:
        """See Target. Raises ScriptError: a script has PyTorch and Triton only."""
        raise ScriptError(
            f"target {self.name!r} runs on the emulated GPU: there is no script for it; use attnfuzz repro"
        )
