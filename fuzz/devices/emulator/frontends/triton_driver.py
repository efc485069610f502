"""A driver for Triton whose device is the emulated GPU: `kernel[grid](…)` takes CPU tensors and runs emulated.

Triton compiles as for a GPU, and asks the active driver to load and launch what came of it. This driver reads the PTX
from Triton's cache and launches that. Autotuning works: the time of a kernel is the number of its micro-operations.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler.compiler import compile as compile_kernel
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager

from fuzz.devices.emulator.api import run
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.frontends import tensor_descriptors
from fuzz.devices.emulator.frontends.tensor_descriptors import Argument, is_descriptor
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.report.report import Report
from fuzz.devices.emulator.state.global_memory import Memory, Written

SHARED_LIMIT = 227 << 10  # bytes of shared memory that a CTA may have
PROCESSORS = 132
SCRATCH_ALIGNMENT = 128  # bytes, as tensor maps need it
MOST_THREADS = 1024
_FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
_LONGEST_FILE = 150  # characters of a kernel's name in Triton's cache


def until_ptx(before: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A hook for `triton.knobs.runtime.add_stages_inspection_hook` with which compiling ends at PTX: the assembler
    would take a fifth of the time, and nothing reads its code here. Such kernels have keys of their own in Triton's
    cache, since no GPU could run them. before: the hook that was there, which is called too."""

    def hook(backend: Any = None, stages: dict[str, Any] | None = None, *more: Any) -> tuple[str, str] | None:
        if stages is None:
            key, number = before() if before is not None else ("", "")
            return f"{key} emulated", f"{number} emulated"
        if before is not None:
            before(backend, stages, *more)
        stages["cubin"] = lambda ptx, metadata: b""
        return None

    return hook


def hooks_have_keys() -> bool:
    """True if Triton keeps what a hook has changed under a key of its own. Triton 3.6 does not: a kernel without code
    would be given to the next process that runs it on a GPU."""
    return "inspect_stages_hash" in inspect.getsource(compile_kernel)


class Intercept(Protocol):
    """Stands between a launch and its kernel. key: of the kernel in Triton's cache; name: of its function."""

    def programs(self, name: str, key: str) -> Programs | None:
        """Kernels to run instead of those of that key; None: those."""

    def launching(self, config: LaunchConfig, launch: Launch, memory: Memory) -> None:
        """Hears of each launch before it begins."""

    def launched(self, name: str, key: str, report: Report) -> None:
        """Hears of each launch that ended, before a finding is raised."""


class EmulatedDriver(DriverBase):
    """Triton's active driver inside of `emulated`.

    arch       'sm_90a'
    config     settings of every launch
    watch      is called with every launch's report, and before a finding is raised
    written    tells of a tensor what has been written of the memory that it lies in; None: all of it
    intercept  chooses what each launch runs, and hears of its report
    """

    def __init__(
        self,
        arch: str,
        config: LaunchConfig,
        watch: Callable[[Report], None],
        written: Callable[[torch.Tensor], Written | None] | None = None,
        intercept: Intercept | None = None,
    ) -> None:
        self.target = GPUTarget("cuda", int("".join(filter(str.isdigit, arch))), 32)
        self.device = f"emulated {arch}"  # kernels compiled for it are no other device's
        self.config, self.watch, self.written, self.intercept = config, watch, written, intercept
        self.utils = _Utils()
        self.launcher_cls = _Launcher

    @classmethod
    def is_active(cls) -> bool:
        """It is, where it was set."""
        return True

    def get_current_target(self) -> GPUTarget:
        """See DriverBase."""
        return self.target

    def get_current_device(self) -> str:
        """See GPUDriver: the key of compiled kernels."""
        return self.device

    def set_current_device(self, device: str) -> None:
        """There is one device."""

    def get_current_stream(self, device: str) -> int:
        """Launches run one after the other."""
        return 0

    def get_device_capability(self, device: str | None = None) -> tuple[int, int]:
        """Major and minor number of the arch."""
        return divmod(self.target.arch, 10)

    def get_active_torch_device(self) -> torch.device:
        """Where tensors of its kernels lie."""
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        """See DriverBase; nothing is compiled from C++ here. Raises NotImplementedError."""
        raise NotImplementedError("the emulated GPU's launches have no C++ launcher")

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """A benchmark that runs a kernel once: its time is the number of its micro-operations."""

        def benchmark(call: Callable[[], Any], *, quantiles: Sequence[float] = (0.5,), **_: Any) -> list[float]:
            executed = [0]
            watch = self.watch
            self.watch = lambda report: executed.append(report.executed)
            try:
                call()
            finally:
                self.watch = watch
            return [float(sum(executed))] * len(quantiles)

        return benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """No cache is modelled."""
        return torch.empty(0)

    def clear_cache(self, cache: torch.Tensor) -> None:
        """No cache is modelled."""


class _Utils:
    """The part of a driver that loads binaries and knows the device."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: str) -> tuple[None, str, int, int, int]:
        """(module, function, registers, spills, most threads); the launcher has the PTX, and no module is unloaded, by
        whom it may be when no driver is active."""
        return None, name, 0, 0, MOST_THREADS

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: str) -> dict[str, int]:
        """The limits of an H200."""
        limits = {"max_shared_mem": SHARED_LIMIT, "multiprocessor_count": PROCESSORS}
        return limits | {"max_num_regs": 1 << 16, "warpSize": 32}


class _Launcher:
    """Launches one compiled kernel. src and metadata are Triton's of it."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.metadata = metadata
        self.ctas = getattr(metadata, "num_ctas", 1)  # of a cluster, which runs one program of the grid
        self.kinds = list(src.signature.items())
        self.name = src.name
        self.programs = _programs(src.name, metadata.hash)

    def __call__(self, x: int, y: int, z: int, *rest: Any) -> None:
        """`rest`: stream, function, packed metadata, launch metadata, two hooks, then the arguments as they were given.
        Raises EmulationError for a finding, Unimplemented for an instruction that is not emulated."""
        _, _, _, launch_metadata, enter, leave, *given = rest
        if enter is not None:
            enter(launch_metadata)
        active = driver.active  # not the one of when the kernel was compiled: Triton keeps kernels
        memory = Memory()
        scratch = [self._scratch(x * y * z * self.ctas, self.metadata.global_scratch_size), 0]
        metas = iter(getattr(self.metadata, "tensordesc_meta", None) or ())
        values = [*_flat(zip(self.kinds, given, strict=True), metas), *(("*i8", "scratch", one) for one in scratch)]
        intercept = active.intercept
        programs = self.programs
        if intercept is not None:
            programs = intercept.programs(self.name, self.metadata.hash) or programs
        kernel = programs.kernel(self.metadata.name)
        params = b""
        for param, (kind, name, value) in zip(kernel.params, values, strict=True):
            params = params.ljust(param.offset, b"\0")
            params += _bytes(memory, kind, name, value, param.size, active.written)
        threads = 32 * self.metadata.num_warps
        cluster = (self.ctas, 1, 1) if self.ctas > 1 else None
        launch = Launch(
            self.metadata.name, (x * self.ctas, y, z), (threads, 1, 1), self.metadata.shared, params, cluster
        )

        def watch(report: Report) -> None:
            active.watch(report)
            if intercept is not None:
                intercept.launched(self.name, self.metadata.hash, report)

        if intercept is not None:
            intercept.launching(active.config, launch, memory)
        run(active.config, programs, [launch], memory, watch=watch)
        if leave is not None:
            leave(launch_metadata)

    @staticmethod
    def _scratch(ctas: int, size: int) -> torch.Tensor | int:
        """Global memory that Triton wants for a launch, at a multiple of SCRATCH_ALIGNMENT bytes; 0: none."""
        if not size:
            return 0
        memory = torch.zeros(ctas * size + SCRATCH_ALIGNMENT, dtype=torch.int8)
        return memory[-memory.data_ptr() % SCRATCH_ALIGNMENT :][: ctas * size]


def compiled_ptx(name: str, key: str) -> str:
    """The PTX of the kernel `name` that Triton has compiled, by its key in Triton's cache. Raises ValueError where the
    cache has lost it."""
    path = get_cache_manager(key).get_file(f"{name[:_LONGEST_FILE]}.ptx")
    if path is None:
        raise ValueError(f"{name}: Triton's cache has no PTX of it; remove the cache's folder and run again")
    return Path(path).read_text()


@functools.cache
def _programs(name: str, key: str) -> Programs:
    """The kernel that Triton has compiled, read."""
    return Programs(compiled_ptx(name, key))


def _flat(given: Any, metas: Iterator[dict[str, Any]]) -> Iterator[Argument]:
    """The arguments that the kernel has; tuples and tensor descriptors are taken apart, constants left out. metas: what
    is known of each descriptor's tensor map, nothing where the kernel uses none."""
    for (name, kind), value in given:
        if isinstance(kind, tuple):
            inner = enumerate(zip(kind, value, strict=True))
            yield from _flat((((f"{name}[{i}]", k), v) for i, (k, v) in inner), metas)
        elif is_descriptor(kind):
            yield from tensor_descriptors.arguments(kind, name, value, next(metas, None))
        elif kind != "constexpr":
            yield kind, name, value


def _bytes(
    memory: Memory,
    kind: str,
    name: str,
    value: Any,
    size: int,
    written: Callable[[torch.Tensor], Written | None] | None,
) -> bytes:
    """An argument as the parameter block has it; a tensor becomes part of `memory`. Raises ValueError for a pointer
    that is no CPU tensor."""
    if kind == tensor_descriptors.TENSOR_MAP:
        descriptor, meta = value
        address = int.from_bytes(_bytes(memory, "*", name, descriptor.base, 8, written), "little")
        return tensor_descriptors.tensor_map(name, descriptor, meta, address).encode()
    if kind.startswith("*"):
        value = getattr(value, "base", value)  # of a TensorWrapper
        if isinstance(value, torch.Tensor):
            kept = written(value) if written is not None else None
            return memory.add(name, value, kept or True).to_bytes(8, "little")
        if value is None or value == 0:
            return bytes(8)
        raise ValueError(f"{name}: wants a CPU tensor, got {type(value).__name__}")
    if kind in _FLOATS:
        return bytes(torch.tensor([float(value)], dtype=_FLOATS[kind]).view(torch.uint8).tolist()).ljust(size, b"\0")
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")
