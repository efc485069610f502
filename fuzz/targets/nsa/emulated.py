"""nsa on the emulated GPU: its block-sparse kernels and its Triton kernels, compiled for a GPU, run on a CPU."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import Text
from fuzz.core.target import Device, Execution, Tensors
from fuzz.core.verdict import Finding
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator.config import DEFAULT_CHECKS
from fuzz.devices.present import cuda_present
from fuzz.targets.blocksparse.devices import arch_without_gpu, connect, emulated, emulator_of
from fuzz.targets.nsa import long_lists
from fuzz.targets.nsa.fewer_kernels import EMULATED_DIMS, FAMILIES, PADDED_DIMS, family, with_fewer_kernels
from fuzz.targets.nsa.target import OPTIONS, SUPPORT, BundledNativeSparse
from fuzz.targets.triton_emulated import EmulatedTriton
from kernels.blocksparse.spec.variant import NO_INJECTION, arch_for_products

LISTS_SECONDS = 10.0  # of a case that makes lists alone, with what is compiled
# Mutants of kernels that the selected branch launches on a Hopper GPU only: tensors of a CPU take products by mma.sync
# (`kernels.blocksparse.launch.backward.fastest_products`), beside which no dQ is separate.
HOPPER_ALONE = frozenset(
    {
        *("dq_statistics_exchanged", "dq_tail_keys_not_masked", "dq_keys_released_when_scored", "dq_not_scaled"),
        *("queries_released_when_scored", "sums_added_before_they_are_there"),
    }
)


class EmulatedNativeSparse(EmulatedTriton, BundledNativeSparse):
    """kernels.nsa, or one of its mutants, on the emulated GPU."""

    device: Device = "emulator"
    support = dataclasses.replace(SUPPORT, max_pairs=1 << 25)
    session_size = Size(1 << 17, 4, 320, 1 << 18)
    long_size: Size | None = Size(1 << 23, 1, 2200, 1 << 19)  # two groups of 128 blocks of 16 tokens
    kernel_families = FAMILIES
    follow_ups = 4

    def missing(self) -> str | None:
        """See Target."""
        if cuda_present():
            return "kernels run on the GPU where there is one"
        if self.mutant in HOPPER_ALONE:
            return "changes kernels that only a Hopper GPU launches"
        return super().missing()

    def draw_long_lists(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target and long_lists.py."""
        return long_lists.draw_case(draw, self)

    def with_fewer_kernels(self, problem: Any) -> Any:
        """See Target: kernels of three head dims, each with one dtype, and tiles of 64 and 128 queries."""
        return with_fewer_kernels(problem, EMULATED_DIMS, PADDED_DIMS)

    def kernel_family(self, case: Case) -> Hashable:
        """See Target."""
        return family(case, runs=self.runs(case), deterministic=bool(OPTIONS.of(case)["deterministic"]))

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        from kernels.nsa import plan
        from kernels.sdpa.launch import compile_launches

        super().prepare(case, tensors)
        connect(self.device)
        found = plan(*self.tokens(case, tensors), backward=case.problem.backward, **self.settings(case, tensors))
        device = emulated()
        for variant in found.variants:
            device.load(build_of(variant, arch_for_products(variant.products, device.arch), NO_INJECTION))
        with self.compiling():
            compile_launches(found.launches)

    @contextmanager
    def _emulated(self) -> Iterator[None]:
        connect(self.device)
        emulated().begin(emulator_of(self._options, self._repeat))
        with super()._emulated():
            yield

    def inspect(self, case: Case) -> list[Finding]:
        """See Target. Raises DeviceError for what the emulated GPU finds."""
        if self.runs(case):
            return []
        from fuzz.devices.emulator import ready

        ready()
        self._options = OPTIONS.of(case)
        self._begin(case)
        with self._emulated():
            return super().inspect(case)

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See EmulatedTriton. Raises DeviceError for what the emulated GPU finds."""
        self._options = OPTIONS.of(case)
        return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See EmulatedTriton and `run`."""
        self._options = OPTIONS.of(case)
        return super().run_around(case, tensors, others)

    def script_call(self, case: Case) -> Text:
        """See Target: the block-sparse kernels run on one emulated GPU, Triton's on another one."""
        text = super().script_call(case)
        made = emulator_of(OPTIONS.of(case))
        settings = "".join(f", {name}={getattr(made, name)!r}" for name in ("resident_ctas", "warp_schedule", "seed"))
        setup = [text.setup, "from fuzz.devices.emulated import on_emulated_gpu  # noqa: E402"]
        if more := sorted(made.checks - DEFAULT_CHECKS):
            setup.append("from fuzz.devices.emulator.config import DEFAULT_CHECKS  # noqa: E402")
            settings += f", checks=DEFAULT_CHECKS | {{{', '.join(map(repr, more))}}}"
        both = f'{text.emulated} as triton_gpu, on_emulated_gpu("{arch_without_gpu(self.device)}"{settings})'
        call = ("gpus.append(triton_gpu)", *text.call)
        return dataclasses.replace(text, call=call, setup="\n".join(setup), emulated=both)

    @contextmanager
    def blind(self) -> Iterator[None]:
        """See Target."""
        emulated().blind = True
        try:
            with super().blind():
                yield
        finally:
            emulated().blind = False

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        if not self.runs(case):
            return LISTS_SECONDS
        p = case.problem
        tiles = p.heads_q * sum((n // 64 + 1) ** 2 for n in p.lengths_q)
        return 2.0 + 0.3 * tiles * (5 if p.backward else 1)
