"""cudnn.nsa_selection: the selection attention of cuDNN's native sparse attention (CuTe DSL), on the emulated GPU.

`cudnn.NSA` (PyPI nvidia-cudnn-frontend): packed sequences, forward only; each query lists, for each KV head, the key
blocks that it sees (block_lists.py). Written for 1.32.0. One kernel per shape, stride and dtype, compiled for sm_90a
before it is run, and ahead of a session with `attnfuzz compile`. The package's own host code runs on CPU tensors.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch

from fuzz.compiling import Build, Compiled
from fuzz.core.case import Case, to_json
from fuzz.core.case_limits import Size
from fuzz.core.script_call import Text
from fuzz.core.support import Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Execution, Target, Tensors, Variant
from fuzz.devices.emulator_schedules import schedule_of
from fuzz.targets.cudnn_cute.emulated import loaded, unwritten, verdicts
from fuzz.targets.cudnn_cute.host import installed
from fuzz.targets.cudnn_nsa import unsupported
from fuzz.targets.cudnn_nsa.arguments import OPTIONS, Call, call_of
from fuzz.targets.cudnn_nsa.block_lists import BLOCKS, lists_of
from fuzz.targets.cudnn_nsa.package import planned, selection, taking_cpu_tensors, unusable
from fuzz.targets.cudnn_nsa.rounding import expressible
from fuzz.targets.cudnn_nsa.script import text_of
from fuzz.targets.cudnn_nsa.surface import CLASS, EXECUTE, WRAPPER
from fuzz.tensors.arena import build
from oracles.numerics import TENSOR_CORES
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, shapes

RECIPE = "fuzz.targets.cudnn_nsa.recipe:kernel"
SOURCES = ("cudnn.native_sparse_attention.selection",)
ARCH = "sm_90a"
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("packed",),
    cross=False,
    dim=(8, 256, 8),
    dim_often=128,
    lse=True,
    backward=False,
)


class CudnnNsaSelection(Target, Compiled):
    """cudnn.NSA's selection_attention_wrapper and SelectionAttention. Each repeat runs warps and CTAs in another
    order."""

    name = "cudnn.nsa_selection"
    device: Device = "emulator"
    summary = "cuDNN front end's native sparse attention: selected blocks"
    support = SUPPORT
    rules = unsupported.RULES
    numerics = TENSOR_CORES
    proof: tuple[str, ...] = ("selection",)
    pairs_per_second = 2e4
    session_size = Size(1 << 15, 16, 160, 1 << 17)
    _repeat = 0

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}  # what the package's wrapper keeps from repeat to repeat
        self._functions: dict[str, Callable[..., None]] = {}
        self._launched: list[str] = []  # kernels that the run at hand has launched

    def arch(self) -> str:
        """See Compiled."""
        return ARCH

    def uncompilable(self) -> str | None:
        """See Compiled."""
        return None if installed() else "needs nvidia-cudnn-frontend (pip install nvidia-cudnn-frontend)"

    def missing(self) -> str | None:
        """See Target."""
        return self.uncompilable() or unusable()

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return WRAPPER, CLASS, EXECUTE

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """A problem whose mask lists can say, in place of one that was drawn; see Target."""
        return expressible(problem)

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: what the problem has a use for, for each size of block and with causal or not."""
        found: list[Variant] = []
        for block in BLOCKS:
            for causal in (False, True):
                lists = lists_of(problem, block, causal) if problem.lengths_q == problem.lengths_k else None
                if lists is None:
                    continue
                scaled = problem.scale is not None
                offered: dict[str, Any] = {
                    "later": (True,) if causal else (),
                    "order": ("descending", "shuffled"),
                    "lists": ("wide", "shared"),
                    "api": ("class", "reused") if scaled else ("class",),
                    "longest": ("asked", "larger"),
                    "offsets": ("int64",),
                    "keys": ("none",),
                    "room": (False,),
                    "exits": (True,),
                }
                own: Variant = {"block": block} if block != BLOCKS[0] else {}
                own |= {"causal": True} if causal else {}
                own |= {"ends": "cut"} if lists.cut else {}
                drawn = [own | one for one in OPTIONS.draws(**offered)]
                found += drawn + [one | {"sums": "2d"} for one in drawn if "api" in one]
        return tuple(found) or ({},)

    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        """The kernel that a case launches; none where the package refuses it, or raises, before it compiles one."""
        if arch != ARCH or any(rule.kind == "cannot" and rule.applies(case) for rule in self.rules):
            return ()
        if unsupported.raises_early(case):
            return ()
        return _builds(case, arch)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles the kernel that the case launches."""
        from fuzz.devices.emulator import ready

        ready()
        self._functions = {json.loads(one.options)["key"]: loaded(one) for one in self.builds(case, ARCH)}
        self._kept, self._repeat = {}, 0

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See Target. Raises DeviceError for what the emulated GPU finds, and for what it does not emulate."""
        self._launched.clear()

        def kernel(key: str, compile_it: Callable[[], Any]) -> Callable[..., None]:
            return partial(_launch, self._launched, f"selection {key[:8]}", self._functions[key])

        call = call_of(case, tensors)
        with self._on_emulated_gpu(case, call, kernel):
            o, sums, maxima = selection(call)
        return Execution(Outputs(o, (maxima + sums.log()).T), ", ".join(self._launched))

    def script_call(self, case: Case) -> Text:
        """See Target."""
        return text_of(case, dry_call(case))

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of CTAs, one for each token and KV head, and of listed blocks."""
        p = case.problem
        return 2.0 + 0.01 * p.heads_kv * sum(n * (n // 16 + 1) for n in p.lengths_q)

    @contextlib.contextmanager
    def _on_emulated_gpu(self, case: Case, call: Call, kernel: Callable[..., Any]) -> Iterator[None]:
        from fuzz.devices.emulator.config import BLOCK_CHECKS, LaunchConfig
        from fuzz.devices.emulator.frontends.cute_functions import Device as Gpu

        off = set() if OPTIONS.of(case)["exits"] else {"copies_at_exit"}
        config = LaunchConfig(**{"checks": BLOCK_CHECKS - off, **schedule_of(self._repeat)})
        self._repeat += 1

        def extent(x: torch.Tensor) -> torch.Tensor:
            return call.room if x.data_ptr() == call.index.data_ptr() else x

        gpu = Gpu(config, lambda report: None, unwritten(), extent)
        with verdicts(_short), taking_cpu_tensors(ARCH, gpu, kernel, self._kept):
            yield


def _launch(launched: list[str], name: str, function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)
    launched.append(name)


def dry_call(case: Case) -> Call:
    """The call of a case with tensors of its shapes and strides on the CPU, whatever their numbers."""
    found = shapes(case.problem)
    zeros = {name: torch.zeros(found[name]) for name in ("q", "k", "v")}
    return call_of(case, build(case, "cpu", zeros).tensors())


_known: dict[tuple[str, str], Build] = {}  # one build for a kernel, whichever case it was met with first


@lru_cache(maxsize=1 << 12)
def _builds(case: Case, arch: str) -> tuple[Build, ...]:
    found = []
    for key in planned(dry_call(case), arch):
        if (key, arch) not in _known:
            options = {"key": key, "case": to_json(case, indent=0).replace("\n", "")}
            _known[key, arch] = Build.of(RECIPE, options, arch, SOURCES)
        found.append(_known[key, arch])
    return tuple(found)


def _short(kernel: str) -> str:
    """The name of the kernel without its arguments' types."""
    return "HopperSelectAttentionFwd" if "HopperSelectAttentionFwd" in kernel else kernel
