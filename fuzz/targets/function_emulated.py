"""EmulatedFunctionTarget: a user's own function whose Triton kernels run on the emulated GPU; made by @target with
device="emulator"."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.target import DeviceError, Execution, Tensors
from fuzz.devices.emulator_schedules import schedule_of
from fuzz.targets import triton_mode
from fuzz.targets.function_target import FunctionTarget


@functools.cache
def _unwritten() -> Callable[[Tensor], Any]:
    """View of the memory that runs of this process have allocated: which of it is written."""
    from fuzz.devices.unwritten import Unwritten

    return Unwritten()


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
        from fuzz.devices.emulated_verdict import verdict_of
        from fuzz.devices.emulator import EmulationError, Unimplemented, emulated

        schedule = schedule_of(self._repeat)
        self._repeat += 1
        try:
            with emulated(self.arch, written=_unwritten(), **schedule):
                return super().run(case, tensors)
        except EmulationError as error:
            raise DeviceError(*verdict_of(error.report.kernel, error.report)) from error
        except Unimplemented as error:
            raise DeviceError("reject", (), {"emulator": f"the emulator does not know it yet: {error}"}) from error

    def script_call(self, case: Case) -> Text:
        """See Target. Raises ScriptError: a script has PyTorch and Triton only."""
        raise ScriptError(
            f"target {self.name!r} runs on the emulated GPU: there is no script for it; use attnfuzz repro"
        )
