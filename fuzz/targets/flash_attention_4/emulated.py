"""flash_attn.cute on the emulated GPU: the kernels that a GPU would run, on CPU tensors, without one.

Kernels are compiled ahead, as for a GPU. FlashAttention-4's tables of compiled kernels are replaced by ones whose
kernels run emulated; all else is FlashAttention-4's own host code.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuzz.compiling import obtain
from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.target import Device, DeviceError, Execution, Tensors
from fuzz.devices.emulator_schedules import contraction_of, schedule_of
from fuzz.devices.present import cuda_present
from fuzz.targets.flash_attention_4.calls import replaced
from fuzz.targets.flash_attention_4.compile_cache import INTERNALS, LAUNCHES, Launch, compiling_for, hash_of, owner
from fuzz.targets.flash_attention_4.compile_cache import unusable as import_fails
from fuzz.targets.flash_attention_4.target import FlashAttention4
from fuzz.targets.flash_attention_4.unsupported import options_of
from oracles.metamorphic.relations import Equality

Function = Callable[..., None]


class EmulatedFlashAttention4(FlashAttention4):
    """FlashAttention-4's kernels on the emulated GPU. Each repeat runs its warps and CTAs in another order."""

    device: Device = "emulator"
    pairs_per_second = 2e4
    session_size = Size(1 << 15, 4, 1 << 9, 1 << 17)
    relations: Mapping[str, Equality] = {**FlashAttention4.relations, "two_forwards": "off"}
    _repeat = 0

    def missing(self) -> str | None:
        """See Target."""
        if (why := self.uncompilable()) is not None:
            return why
        if cuda_present():
            return "kernels run on the GPU where there is one"
        return import_fails()

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches, and makes its mask and block lists."""
        from fuzz.devices.emulator import ready

        ready()
        for build in self.builds(case, self.arch()):
            options = json.loads(build.options)
            _functions()[options["kernel"], options["key"]] = _loaded(build)
        _replace_tables(self.arch())
        self._call(case, tensors)
        self._repeat = 0

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget. Raises DeviceError for what the emulated GPU finds, and for what it does not emulate."""
        with self._on_emulated_gpu(case):
            return super().run(case, tensors)

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget and `run`."""
        with self._on_emulated_gpu(case):
            return super().run_around(case, tensors, others)

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        p = case.problem
        tiles = p.heads_q * sum((q // 64 + 1) * (k // 64 + 1) for q, k in zip(p.lengths_q, p.lengths_k, strict=True))
        return 2.0 + 0.2 * tiles * (5 if p.backward else 1)

    @contextlib.contextmanager
    def _on_emulated_gpu(self, case: Case) -> Iterator[None]:
        """FlashAttention-4's host code takes CPU tensors for a GPU's here, and its launches run emulated."""
        from fuzz.devices.emulated_verdict import verdict_of
        from fuzz.devices.emulator import EmulationError, Unimplemented
        from fuzz.devices.emulator.config import BLOCK_CHECKS, LaunchConfig
        from fuzz.devices.emulator.frontends.cute_functions import Device as Gpu

        options = options_of(case)
        checks = BLOCK_CHECKS if options["exits"] else BLOCK_CHECKS - {"copies_at_exit"}
        schedule = schedule_of(self._repeat, contraction_of(case.inputs.seed))
        # its deterministic backward pass waits for CTAs of smaller indices, which a GPU starts first
        config = LaunchConfig(**{"checks": checks, **schedule, "dispatch": "in_order"})
        gpu = Gpu(config, lambda report: None, _unwritten(), None if options["edge"] else _extent)
        self._repeat += 1
        try:
            with taking_cpu_tensors(self.arch(), gpu):
                yield
        except EmulationError as error:
            raise DeviceError(*verdict_of(_short(error.report.kernel), error.report)) from error
        except Unimplemented as error:
            raise DeviceError("reject", (), {"emulator": f"the emulator does not know it yet: {error}"}) from error


@contextlib.contextmanager
def taking_cpu_tensors(arch: str, gpu: Any) -> Iterator[None]:
    """In it FlashAttention-4's host code takes CPU tensors for those of a GPU of `arch`, 'sm_90a' or 'sm_100a', and its
    launches run on `gpu`, a cute_functions.Device. Raises EmulationError for what the emulated GPU finds."""
    from fuzz.devices.emulator.frontends.cute_functions import on_emulated_gpu

    _replace_tables(arch)
    with on_emulated_gpu(arch, gpu), compiling_for(arch), replaced(torch.Tensor, is_cuda=True):
        yield


def _replace_tables(arch: str) -> None:
    for name in INTERNALS:
        owner(name).compile_cache = _Emulated(name, arch)


class _Emulated:
    """A table of FlashAttention-4's compiled kernels: those that were compiled ahead, and what it compiles itself."""

    def __init__(self, name: str, arch: str) -> None:
        self._name, self._arch = name, arch

    def __contains__(self, key: Any) -> bool:
        return (self._name, hash_of(key)) in _functions()

    def __setitem__(self, key: Any, function: Function) -> None:
        _functions()[self._name, hash_of(key)] = function

    def __getitem__(self, key: Any) -> Function:
        number = hash_of(key)
        return partial(_launch, f"{self._name} {self._arch} {number[:8]}", _functions()[self._name, number])


def _launch(name: str, function: Function, *arguments: Any) -> None:
    MASKS.update((mask.data_ptr(), mask) for mask in _masks_among(arguments))
    try:
        function(*arguments)
    finally:
        MASKS.clear()
    LAUNCHES.kept.append(Launch(name, None))


MASKS: dict[int, Tensor] = {}  # by address, of the launch under way


def _masks_among(x: Any) -> Iterator[Tensor]:
    """The tensors of masks among a launch's arguments."""
    if isinstance(x, Tensor) and x.dtype is torch.uint8:
        yield x
    elif isinstance(x, tuple | list):
        for one in x:
            yield from _masks_among(one)


@functools.cache
def _functions() -> dict[tuple[str, str], Function]:
    """Kernels of this process, by their table and the hash of their key."""
    return {}


@functools.cache
def _loaded(build: Any) -> Function:
    from fuzz.devices.emulator.frontends.cute_functions import EmulatedFunction

    artifact = obtain(build)
    return EmulatedFunction(artifact.object, artifact.header["prefix"], artifact.ptx.read_text())


@functools.cache
def _unwritten() -> Callable[[Tensor], Any]:
    """View of the memory that runs of this process have allocated: which of it is written."""
    from fuzz.devices.unwritten import Unwritten

    return Unwritten()


def _extent(tensor: Tensor) -> Tensor:
    """Memory that kernels may access: of a mask's tensor what lies behind it too, since a known bug reads that
    (`arguments.keep_tensor`), and would hide every other one. A kernel that FlashAttention-4 has compiled itself gets
    a view that does not know of it."""
    if tensor.dtype is not torch.uint8:
        return tensor
    whole = MASKS.get(tensor.data_ptr(), tensor)
    return whole.new_empty(0).set_(whole.untyped_storage())


def _short(kernel: str) -> str:
    """The name of one of FlashAttention-4's kernels without its arguments' types: 'flash_fwd_sm90'."""
    return kernel.partition("flash_attncute")[2].partition("Flash")[0] or kernel
