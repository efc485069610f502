"""blocksparse on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from fuzz.core.target import Device, Execution, Tensors
from fuzz.devices.present import cuda_present
from fuzz.targets.autograd import import_operators
from fuzz.targets.blocksparse.case_blocks import CaseBlocks, case_blocks
from fuzz.targets.blocksparse.devices import arch_with_gpu, connect
from fuzz.targets.blocksparse.hang_report import hanging_on_gpu
from fuzz.targets.blocksparse.script import blocksparse_text
from fuzz.targets.blocksparse.target import SUPPORT, BlockSparseTarget

OVERSUBSCRIBED = 320  # tiles of 128 keys: a GPU of 148 multiprocessors holds two CTAs on each at most


class GpuBlockSparse(BlockSparseTarget):
    """kernels.blocksparse, or one of its mutants, on the GPU of this machine."""

    device: Device = "cuda"
    executable = True
    # Of what a session draws this limits nothing; a case of the corpus may be larger on a GPU.
    support = replace(SUPPORT, max_pairs=1 << 29)
    oversubscribed = OVERSUBSCRIBED
    pairs_per_second = 1e9
    _prepared: CaseBlocks | None = None

    def arch(self) -> str:
        """What its kernels are compiled for on this machine."""
        return arch_with_gpu()

    def fits(self, case: Case) -> bool:
        """As the base says; everything where there is no GPU: for another machine, `builds` is told its arch."""
        return not cuda_present() or super().fits(case)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles or loads every kernel that the case launches; keeps what explains a hang."""
        super().prepare(case, tensors)
        connect(self.device)
        self._load(case)
        self._prepared = case_blocks(case, self.mutant)
        self._prepared.calls(tensors.q.device)
        _ = self._prepared.expected_visits  # now, since `look` has no time for it

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget."""
        _mark()
        return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget."""
        _mark()
        return super().run_around(case, tensors, others)

    def launched(self) -> Iterable[str]:
        """See BlockSparseTarget."""
        from fuzz.devices import cuda

        return [f"{one.variant.name} {one.arch}" for one in cuda.LAUNCHES.since_mark()]

    def script_call(self, case: Case) -> Text:
        """`forward` as text; the lists' layout is left at CSR."""
        return blocksparse_text(case, self.mutant)

    def look(self) -> dict[str, Any]:
        """The semaphores of a backward pass that hangs, and why it does."""
        if self._prepared is None:
            return hanging_on_gpu(None)
        return hanging_on_gpu(self._prepared.expected_visits, self._prepared.ctas_of_tile)

    def _load(self, case: Case) -> None:
        """Into the GPU: importing the toolchain and loading a module take seconds, which are not the kernel's."""
        import_operators()
        from kernels.blocksparse.compile.runtime import function

        arch = self.arch()
        for variant, injection in self.kernels(case, arch):
            function(variant, arch, injection).load()


def _mark() -> None:
    from fuzz.devices import cuda

    cuda.LAUNCHES.mark()
