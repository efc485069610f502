"""What targets share whose Triton kernels run on the emulated GPU: the block around a run, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from fuzz.core.target import DeviceError, Execution, Tensors
from fuzz.devices.emulator.config import AS_WRITTEN, BLOCK_CHECKS
from fuzz.devices.emulator_schedules import contraction_of, schedule_of
from fuzz.targets.autograd import AutogradTarget

if TYPE_CHECKING:
    from fuzz.devices.emulator.frontends.triton_driver import Intercept

ROOT = Path(__file__).resolve().parents[2]
EMULATOR_PATH = f"sys.path.insert(0, {str(ROOT)!r})  # the folder that holds `fuzz`, which has the emulated GPU"
_IMPORT = "from fuzz.devices.emulator import emulated  # noqa: E402"


class EmulatedTriton(AutogradTarget):
    """Base of such targets, to stand before the class that makes the call. Each repeat runs its warps and CTAs in
    another order. Half of the cases have products fused into sums, as the compiler of the PTX may.

    arch       what kernels are compiled for
    checks     what is looked for while they run, see LaunchConfig
    budget     the most micro-operations of a launch, where there is such a limit
    intercept  chooses what a launch runs, and hears of its report: for kernels whose PTX is changed
    """

    arch: str = "sm_90a"
    checks: frozenset[str] = BLOCK_CHECKS
    budget: int | None = None
    intercept: Intercept | None = None
    _repeat = 0
    _contraction = AS_WRITTEN
    _blind = False

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """See Target. Subclasses compile what the case launches, within `compiling`."""
        from fuzz.devices.emulator import ready

        ready()
        self._begin(case)

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget. Raises DeviceError for what the emulated GPU finds, and for what it does not emulate."""
        with self._emulated():
            return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget and `run`."""
        with self._emulated():
            return super().run_around(case, tensors, others)

    def _begin(self, case: Case) -> None:
        """The repeats of a case are to come."""
        self._repeat, self._contraction = 0, contraction_of(case.inputs.seed)

    @contextmanager
    def blind(self) -> Iterator[None]:
        """See Target."""
        self._blind = True
        try:
            yield
        finally:
            self._blind = False

    def script_call(self, case: Case) -> Text:
        """See Target: the text of the class that makes the call, on the emulated GPU."""
        text = super().script_call(case)
        found, setup = f'emulated("{self.arch}", strict=False', [EMULATOR_PATH, _IMPORT]
        if more := self.checks - BLOCK_CHECKS:
            setup.append("from fuzz.devices.emulator.config import BLOCK_CHECKS  # noqa: E402")
            found += f", checks=BLOCK_CHECKS | {{{', '.join(map(repr, sorted(more)))}}}"
        if (fused := contraction_of(case.inputs.seed)) != AS_WRITTEN:
            found += f", contraction={fused!r}"
        imports = tuple({*text.imports, "import sys"})
        return replace(text, imports=imports, setup="\n".join([*setup, text.setup]), emulated=f"{found})")

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Block in which kernels are compiled, and none is launched."""
        from fuzz.devices.emulator import emulated

        with emulated(self.arch):
            yield

    @contextmanager
    def _emulated(self) -> Iterator[None]:
        from fuzz.devices.emulated_verdict import verdict_of
        from fuzz.devices.emulator import EmulationError, Unimplemented, emulated
        from fuzz.devices.unwritten import of_runs

        settings = schedule_of(self._repeat, self._contraction) | {"checks": self.checks, "strict": not self._blind}
        settings |= {"budget": self.budget} if self.budget else {}
        self._repeat += 1
        try:
            with emulated(self.arch, written=of_runs(), intercept=self.intercept, **settings):
                yield
        except EmulationError as error:
            raise DeviceError(*verdict_of(error.report.kernel, error.report)) from error
        except Unimplemented as error:
            raise DeviceError("reject", (), {"emulator": f"the emulator does not know it yet: {error}"}) from error
