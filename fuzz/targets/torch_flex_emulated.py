"""torch.flex on the emulated GPU: the Triton kernels that PyTorch's compiler makes of FlexAttention for an H200,
forward and backward, without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import Text
from fuzz.core.target import Tensors
from fuzz.devices.present import cuda_present
from fuzz.process import triton_mode
from fuzz.targets.torch_flex import TorchFlex
from fuzz.targets.triton_emulated import EmulatedTriton


class EmulatedFlex(EmulatedTriton, TorchFlex):
    """Compiled FlexAttention on the emulated GPU."""

    def __init__(self) -> None:
        super().__init__("emulator")
        self.pairs_per_second = 2e4
        self.start_seconds = 1.0
        self.session_size = Size(1 << 14, 4, 512)  # compiling takes seconds, whatever the size

    def missing(self) -> str | None:
        """See Target."""
        if cuda_present():
            return "kernels run on the GPU where there is one"
        return triton_mode.missing("emulated")

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """One whole run, which compiles for this case's shapes and options."""
        EmulatedTriton.prepare(self, case, tensors)
        with self.blind():
            self.run(case, tensors)
        self._repeat = 0

    def script_call(self, case: Case) -> Text:
        """See EmulatedTriton."""
        text = super().script_call(case)
        setup = "from fuzz.devices.emulator.frontends.inductor import gpu_kernels  # noqa: E402"
        return replace(text, setup=f"{text.setup}\n{setup}", emulated=f'gpu_kernels("{self.arch}"), {text.emulated}')

    @contextmanager
    def _emulated(self) -> Iterator[None]:
        from fuzz.devices.emulator.frontends.inductor import gpu_kernels

        with gpu_kernels(self.arch), super()._emulated():
            yield


def targets() -> list[EmulatedFlex]:
    """The one target."""
    return [EmulatedFlex()]
