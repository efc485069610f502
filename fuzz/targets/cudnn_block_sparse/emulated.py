"""cudnn.block_sparse on the emulated GPU: the kernels that a GPU would run, on CPU tensors, without one.

Kernels are compiled ahead, as for a GPU. The package's tables of compiled kernels are replaced by ones whose kernels
run emulated; all else is the package's own host code.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, Execution, Tensors
from fuzz.devices.emulator_schedules import schedule_of
from fuzz.devices.present import cuda_present
from fuzz.targets.cudnn_block_sparse.arguments import OPTIONS, block_of
from fuzz.targets.cudnn_block_sparse.package import LAUNCHED, taking_cpu_tensors, unusable
from fuzz.targets.cudnn_block_sparse.target import CudnnBlockSparse
from fuzz.targets.cudnn_cute.emulated import loaded, unwritten, verdicts
from fuzz.targets.cudnn_cute.host import hash_of
from oracles.metamorphic.relations import Equality

Function = Callable[..., None]


class EmulatedCudnnBlockSparse(CudnnBlockSparse):
    """The package's kernels on the emulated GPU. Each repeat runs its warps and CTAs in another order."""

    device: Device = "emulator"
    pairs_per_second = 2e4
    session_size = Size(1 << 17, 4, 1 << 10, 1 << 18)
    relations: Mapping[str, Equality] = {**CudnnBlockSparse.relations, "two_forwards": "off"}
    _repeat = 0

    def missing(self) -> str | None:
        """See Target."""
        if (why := self.uncompilable()) is not None:
            return why
        return "kernels run on the GPU where there is one" if cuda_present() else unusable()

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        from fuzz.devices.emulator import ready

        ready()
        for build in self.builds(case, self.arch()):
            options = json.loads(build.options)
            _functions()[options["kernel"], options["key"]] = loaded(build)
        self._repeat = 0

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See Target. Raises DeviceError for what the emulated GPU finds, and for what it does not emulate."""
        with self._on_emulated_gpu(case):
            return self._run(case, tensors)

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        p = case.problem
        tiles = p.heads_q * sum((q // 64 + 1) * (k // 64 + 1) for q, k in zip(p.lengths_q, p.lengths_k, strict=True))
        return 2.0 + 0.2 * tiles * (5 if p.backward else 1)

    @contextlib.contextmanager
    def _on_emulated_gpu(self, case: Case) -> Iterator[None]:
        from fuzz.devices.emulator.config import BLOCK_CHECKS, LaunchConfig
        from fuzz.devices.emulator.frontends.cute_functions import Device as Gpu

        options = OPTIONS.of(case)
        off = set() if options["products"] == "own" else {"wgmma_warps"}
        hidden = case.problem.backward and (self.family == 10 or block_of(case, self.family) == 64)
        off |= {"copies_at_exit"} if hidden and not options["exits"] else set()
        config = LaunchConfig(**{"checks": BLOCK_CHECKS - off, **schedule_of(self._repeat)})
        gpu = Gpu(config, lambda report: None, unwritten())
        self._repeat += 1
        with verdicts(_short), taking_cpu_tensors(self.arch(), gpu, _Emulated):
            yield


class _Emulated:
    """A table of the package's compiled kernels: those that were compiled ahead."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __contains__(self, key: Any) -> bool:
        return (self._name, hash_of(key)) in _functions()

    def __setitem__(self, key: Any, function: Function) -> None:
        raise RuntimeError(f"{self._name}: a kernel was not compiled ahead, with the key {key}")

    def __getitem__(self, key: Any) -> Function:
        number = hash_of(key)
        return partial(_launch, f"{self._name} {number[:8]}", _functions()[self._name, number])


def _launch(name: str, function: Function, *arguments: Any) -> None:
    function(*arguments)
    LAUNCHED.append(name)


@functools.cache
def _functions() -> dict[tuple[str, str], Function]:
    """Kernels of this process, by their table and the hash of their key."""
    return {}


def _short(kernel: str) -> str:
    """The name of one of the package's kernels without its arguments' types."""
    name = kernel.partition("block_sparse_attentioncsrc")[2] or kernel
    return name.partition("_object_at")[0]
