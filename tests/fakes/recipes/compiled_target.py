"""fake.compiled: an honest attention whose `prepare` compiles a toy kernel ahead; its key hangs on the head dim."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzz.compiling import Build, Compiled, obtain
from fuzz.core.case import Case
from fuzz.core.support import Support
from fuzz.core.target import Tensors
from fuzz.targets.autograd import AutogradTarget
from oracles.numerics import EXACT
from oracles.problem import dense_mask

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from honest import attention


class CompiledTarget(AutogradTarget, Compiled):
    """Compiles toy_kernels:add, or toy_kernels:raises for head dims above 192."""

    name = "fake.compiled"
    summary = "compiles ahead"
    numerics = EXACT
    support = Support(dtypes=("float32",), masks=frozenset({"full", "causal"}), dim_v_differs=False, max_pairs=1 << 14)

    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        recipe = "toy_kernels:raises" if case.problem.dim > 192 else "toy_kernels:add"
        return (Build.of(recipe, {"value": case.problem.dim // 64}, arch),)

    def arch(self) -> str:
        return "sm_100a"

    def prepare(self, case: Case, tensors: Tensors) -> None:
        for build in self.builds(case, self.arch()):
            obtain(build)

    def forward(self, case: Case, tensors: Tensors):
        p = case.problem
        return attention(tensors.q, tensors.k, tensors.v, dense_mask(p), p.scale_value, p.softcap, None)


TARGETS = [CompiledTarget()]
