"""CUDA C++ kernels on CPU tensors: compiled by NVRTC, run on the emulated GPU of the `emulated` block.

with emulated("sm_90a") as gpu:
    Cuda(source).kernel(grid, block)(x, y, n)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fuzz.devices.emulator.api import run
from fuzz.devices.emulator.frontends import cuda_signature
from fuzz.devices.emulator.frontends.emulated import EmulatedGpu, active_gpu
from fuzz.devices.emulator.frontends.nvrtc import compile_cuda
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.report.report import Report
from fuzz.devices.emulator.state.global_memory import Memory, contents

SHARED_LIMIT = 227 << 10  # bytes of shared memory that a CTA may have
Sizes: TypeAlias = int | Sequence[int]


class Cuda:
    """CUDA C++ text, compiled when a kernel of it is first used.

    source   the text, or the path of a file with it
    arch     'sm_80', 'sm_90a', 'sm_100a'; None: that of the `emulated` block
    options  NVRTC's, beside the arch and -lineinfo: ('-DTILE=64', '--use_fast_math')
    headers  texts by the name that #include gives
    file     the source's name in errors and findings; None: the path's, or 'kernel.cu'
    """

    def __init__(
        self,
        source: str | Path,
        *,
        arch: str | None = None,
        options: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> None:
        self.source = source.read_text() if isinstance(source, Path) else source
        self.file = file or (source.name if isinstance(source, Path) else "kernel.cu")
        self.arch, self.options, self.headers = arch, tuple(options), dict(headers or {})
        self._modules: dict[tuple[str, str | None], _Module] = {}
        self._variables: dict[str, torch.Tensor] = {}

    def kernel(
        self, grid: Sizes, block: Sizes, *, name: str | None = None, shared: int = 0, cluster: Sizes | None = None
    ) -> CudaKernel:
        """A kernel that is ready to be called with its arguments.

        grid, block  CTAs of the grid and threads of a CTA: up to three numbers each
        name         of the kernel, where the source has several, as C++ writes it: 'scale', 'ns::scale<float, 4>'
        shared       bytes of dynamic shared memory
        cluster      CTAs of a cluster, as an attribute of the launch; None: what `__cluster_dims__` says, or one

        Raises ValueError for sizes out of range.
        """
        sizes = _sizes("grid", grid), _sizes("block", block)
        if not 0 <= shared <= SHARED_LIMIT:
            raise ValueError(f"shared: {shared} bytes; a CTA has 0 to {SHARED_LIMIT}")
        return CudaKernel(self, name, *sizes, shared, None if cluster is None else _sizes("cluster", cluster))

    def variable(self, name: str, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A `__device__` or `__constant__` variable of the source, as a tensor of one dimension that shares its memory:
        to read and write between launches. Raises ValueError where no kernel that was used has it."""
        if name not in self._variables:
            for module in self._modules.values() or [self._module(self._arch(), None)]:
                for one in module.programs.module.variables:
                    if one.space in ("global", "const") and one.name not in self._variables:
                        self._variables[one.name] = contents(one)
        if name not in self._variables:
            raise ValueError(f"{self.file} has no variable {name!r}; it has {', '.join(self._variables) or 'none'}")
        return self._variables[name].view(dtype)

    def _arch(self) -> str:
        return self.arch or active_gpu("Cuda").arch

    def _module(self, arch: str, name: str | None) -> _Module:
        """What was compiled for a kernel; templates exist only where they are named."""
        key = (arch, name)
        if key not in self._modules:
            names = () if name is None else (name,)
            made = compile_cuda(
                self.source, arch, file=self.file, options=self.options, headers=self.headers, expressions=names
            )
            symbol = None if name is None else made.lowered[name]
            self._modules[key] = _Module(Programs(made.ptx), symbol, self.source, self.file)
        return self._modules[key]


@dataclass(frozen=True)
class CudaKernel:
    """A kernel with its grid; call it with the kernel's arguments."""

    cuda: Cuda
    name: str | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] | None = None

    def __call__(self, *args: Any) -> Report:
        """Launches the kernel: CPU tensors or None for pointers, numbers for scalars, bytes or a ctypes structure for
        structs. Returns what was found; raises EmulationError for that where the block is strict.

        Raises ValueError outside of an `emulated` block and for arguments that do not fit, CudaCompileError for a
        source that does not compile, Unimplemented for what is not emulated.
        """
        gpu = active_gpu("Cuda")
        module = self.cuda._module(self.cuda.arch or gpu.arch, self.name)
        memory = Memory(variables=self.cuda._variables)
        name, params = module.kernel()
        if len(args) != len(params):
            names = ", ".join(f"{p.type} {p.name}".strip() for p in params)
            raise ValueError(f"kernel {name} takes {len(params)} arguments ({names}), got {len(args)}")
        block = b""
        for parameter, value in zip(params, args, strict=True):
            block = block.ljust(parameter.offset, b"\0") + _bytes(parameter, value, memory, gpu)
        launch = Launch(name, self.grid, self.block, self.shared, block, self.cluster)
        return run(gpu.config, module.programs, [launch], memory, watch=gpu.add)


@dataclass
class _Module:
    """Compiled source.

    symbol   of the kernel that was asked for; None: the only one
    known    parameters of the kernels that have run, by the name that C++ has for them
    aliases  of those names the ones that are no symbols of the source
    """

    programs: Programs
    symbol: str | None
    source: str
    file: str
    known: dict[str, tuple[cuda_signature.Parameter, ...]] = field(default_factory=dict)
    aliases: set[str] = field(default_factory=set)

    def only_kernel(self) -> str:
        """The symbol of the kernel to run. Raises ValueError where it is not clear which."""
        kernels = [one for one in self.programs.module.kernels if one not in self.aliases]
        if self.symbol is not None:
            return self.symbol
        if len(kernels) != 1:
            names = ", ".join(map(cuda_signature.short_name, kernels)) or "none (templates have to be named)"
            raise ValueError(f"{self.file}: name the kernel; it has {names}")
        return kernels[0]

    def kernel(self) -> tuple[str, tuple[cuda_signature.Parameter, ...]]:
        """(name, parameters) of the kernel to run, under the name that C++ has for it."""
        symbol = self.only_kernel()
        name = cuda_signature.short_name(symbol)
        if name not in self.known:
            kernels = self.programs.module.kernels
            self.known[name] = cuda_signature.parameters(kernels[symbol].params, symbol, self.source)
            if name != symbol:
                kernels[name] = replace(kernels[symbol], name=name)
                self.aliases.add(name)
        return name, self.known[name]


def _bytes(parameter: cuda_signature.Parameter, value: Any, memory: Memory, gpu: EmulatedGpu) -> bytes:
    """An argument as the parameter block has it; a tensor becomes part of `memory`."""
    if not isinstance(value, torch.Tensor):
        return cuda_signature.scalar_bytes(parameter, value)
    cuda_signature.check_tensor(parameter, value)
    written = gpu.written(value) if gpu.written is not None else None
    return memory.add(parameter.name, value, written or True).to_bytes(8, "little")


def _sizes(what: str, given: Sizes) -> tuple[int, int, int]:
    """Three sizes. Raises ValueError for others than one to three positive integers."""
    sizes = tuple(given) if isinstance(given, Sequence) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(f"{what}: wants one to three positive integers, got {given!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
