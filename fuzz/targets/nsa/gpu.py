"""nsa on a GPU."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import import_operators
from fuzz.targets.blocksparse.devices import connect
from fuzz.targets.blocksparse.hang_report import hanging_on_gpu
from fuzz.targets.nsa import long_lists
from fuzz.targets.nsa.fewer_kernels import GPU_DIMS, with_fewer_kernels
from fuzz.targets.nsa.target import SUPPORT, BundledNativeSparse


class GpuNativeSparse(BundledNativeSparse):
    """kernels.nsa, or one of its mutants, on the GPU of this machine."""

    device: Device = "cuda"
    support = replace(SUPPORT, dim=(8, 256, 8), max_pairs=1 << 29)
    long_size = Size(1 << 26, 4, 1 << 13, 1 << 22)
    pairs_per_second = 1e9

    def draw_long_lists(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target and long_lists.py."""
        return long_lists.draw_case(draw, self)

    def with_fewer_kernels(self, problem: Any) -> Any:
        """See Target: six head dims, each with one dtype for a layout, and tiles of 64 and 128 queries."""
        return with_fewer_kernels(problem, GPU_DIMS)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches, or loads it from the artifact cache."""
        from kernels.nsa import prepare

        connect(self.device)
        import_operators()
        prepare(*self.tokens(case, tensors), backward=case.problem.backward, **self.settings(case, tensors))

    def look(self) -> dict[str, Any]:
        """The semaphores of a block-sparse backward pass that hangs."""
        found = hanging_on_gpu(None)
        return found if "kernel" in found else {"explained": "no block-sparse kernel runs; one of Triton's may"}
