"""dynamic_mask on a GPU."""

from __future__ import annotations

import random
from dataclasses import replace

from fuzz.core.case import Case
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import import_operators
from fuzz.targets.dynamic_mask import long_lists
from fuzz.targets.dynamic_mask.fewer_kernels import with_fewer_kernels
from fuzz.targets.dynamic_mask.target import SUPPORT, BundledDynamicMask
from oracles.problem import AnyProblem


class GpuDynamicMask(BundledDynamicMask):
    """kernels.dynamic_mask, or one of its mutants, on the GPU of this machine."""

    device: Device = "cuda"
    support = replace(SUPPORT, max_pairs=1 << 29)  # 16,384 tokens of two heads
    pairs_per_second = 1e9

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        import_operators()
        self.compile(case, tensors)

    def draw_long_lists(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target and long_lists.py."""
        return long_lists.draw_case(draw, self, repeats)

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """See fewer_kernels.py: with all constants free, a case took 9 s to compile on an H200's machine."""
        return with_fewer_kernels(problem)
