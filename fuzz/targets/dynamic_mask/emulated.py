"""dynamic_mask on the emulated GPU: kernels compiled for Hopper, run on a CPU."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Hashable

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Execution, Tensors
from fuzz.devices.emulator.config import BLOCK_CHECKS
from fuzz.devices.present import cuda_present
from fuzz.targets.dynamic_mask import long_lists
from fuzz.targets.dynamic_mask.call import OPTIONS
from fuzz.targets.dynamic_mask.fewer_kernels import FAMILIES, family, with_fewer_kernels
from fuzz.targets.dynamic_mask.target import SUPPORT, BundledDynamicMask
from fuzz.targets.triton_emulated import EmulatedTriton
from oracles.problem import AnyProblem


class EmulatedDynamicMask(EmulatedTriton, BundledDynamicMask):
    """kernels.dynamic_mask, or one of its mutants, on the emulated GPU."""

    device: Device = "emulator"
    support = dataclasses.replace(SUPPORT, max_pairs=1 << 25)  # 4,096 tokens of two heads: about a minute
    pairs_per_second = 2e4
    follow_ups = 2
    kernel_families = FAMILIES
    session_size = Size(1 << 16, 6, 1100)  # with one head four tiles on a side

    def missing(self) -> str | None:
        """See Target."""
        if cuda_present():
            return "kernels run on the GPU where there is one"
        return super().missing()

    def draw_long_lists(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target and long_lists.py."""
        return long_lists.draw_case(draw, self, repeats)

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """See fewer_kernels.py."""
        return with_fewer_kernels(problem)

    def kernel_family(self, case: Case) -> Hashable:
        """See Target."""
        return family(case)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        super().prepare(case, tensors)
        with self.compiling():
            self.compile(case, tensors)

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See EmulatedTriton."""
        self.checks = _checks(case)
        return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See EmulatedTriton."""
        self.checks = _checks(case)
        return super().run_around(case, tensors, others)

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        p = case.problem
        tiles = p.batch * p.heads_q * (p.len_q // 64 + 1) * (p.len_k // 64 + 1)
        return 0.5 + 0.05 * tiles * (4 if p.backward else 1)


def _checks(case: Case) -> frozenset[str]:
    """Gradients are bitwise the same in every run, unless the case says that they need not be."""
    return BLOCK_CHECKS | {"unordered_adds"} if OPTIONS.of(case)["deterministic"] else BLOCK_CHECKS
