"""The CUDA device of compiled CuTe functions: loads artifacts, runs them, times them, and looks into one that hangs.

`source` gives kernels.blocksparse its compiled functions out of the artifact cache. Each is wrapped so that its
launches are known by what they were given: which kernel, and where a deterministic backward pass keeps its semaphores.
Those can be read while the kernel spins: a copy on a second stream needs neither the first one nor the host thread that
waits for it (49 µs while spinning, on an H100). All that the copy needs is allocated before anything hangs.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fuzz.compiling import Artifact, Build, obtain
from kernels.blocksparse.spec.signature import ARGUMENTS
from kernels.blocksparse.spec.variant import Injection, Variant

RECIPE = "fuzz.compiling.recipes:blocksparse"
# What is compiled imports nothing else of kernels/blocksparse: a change of its host code leaves compiled kernels valid.
SOURCES = tuple(
    f"kernels.blocksparse.{name}" for name in ("backward", "common", "compile", "dq_by_queries", "forward", "spec")
)
KEPT = 4096  # launches that are remembered: more than the repeats of a case make
LIMIT = 1.0  # seconds that a copy out of a hanging device may take


@dataclass(frozen=True)
class Launch:
    """One launch: which kernel, the values of its arguments by name, and an event behind it on its stream."""

    variant: Variant
    arch: str
    kernel: str
    values: dict[str, int | float]
    done: torch.cuda.Event

    @property
    def semaphores(self) -> tuple[int, int, int] | None:
        """Shape (batch, heads_q, m_blocks) where the kernel orders its adds by semaphores."""
        if self.variant.kind != "backward" or not self.variant.deterministic:
            return None
        return tuple(int(self.values[name]) for name in ("batch", "heads_q", "m_blocks"))  # type: ignore[return-value]


class _Launches:
    """The launches of this process, the last KEPT of them, and a mark among them."""

    def __init__(self) -> None:
        self._kept: deque[Launch] = deque(maxlen=KEPT)
        self._count = 0
        self._mark = 0

    def add(self, launch: Launch) -> None:
        """One more."""
        self._kept.append(launch)
        self._count += 1

    def mark(self) -> None:
        """From here on they count as `since_mark`."""
        self._mark = self._count

    def since_mark(self) -> list[Launch]:
        """Those after the mark, in order."""
        kept = list(self._kept)
        return kept[max(0, len(kept) - (self._count - self._mark)) :]

    def hanging(self) -> Launch | None:
        """The first one that has not ended: it hangs, where something hangs. None where all have ended."""
        return next((one for one in list(self._kept) if not one.done.query()), None)


LAUNCHES = _Launches()


def build_of(variant: Variant, arch: str, injection: Injection) -> Build:
    """The Build of a block-sparse kernel, or of a mutant of it."""
    options = {**asdict(variant), "mutant": injection.name}
    modules = sorted({replaced.__module__ for replaced in injection.replacements.values()})
    return Build.of(RECIPE, options, arch, (*SOURCES, *modules))


def source(variant: Variant, arch: str, injection: Injection) -> Any:
    """A compiled function from the artifact cache, for `kernels.blocksparse.compile.runtime.use_source`; compiled now
    where the cache has none. Raises CompileError."""
    artifact = obtain(build_of(variant, arch, injection))
    return Loaded(artifact, variant)


class Loaded:
    """An artifact as a compiled function: `to(None)` gives its executor on the current device."""

    def __init__(self, artifact: Artifact, variant: Variant) -> None:
        self.artifact, self.variant = artifact, variant
        self._compiled = load(artifact)

    def to(self, device: Any = None) -> Executor:
        """Loads it into the device."""
        return Executor(self._compiled.to(device), self.variant, self.artifact)


def load(artifact: Artifact) -> Any:
    """The function of an artifact's object file."""
    from cutlass.cute.runtime import load_module

    return load_module(str(artifact.object))[artifact.header["prefix"]]


class Executor:
    """Calls a compiled function and notes the launch."""

    def __init__(self, executor: Any, variant: Variant, artifact: Artifact) -> None:
        self._executor, self._variant = executor, variant
        self._arch, self._kernel = str(artifact.header["arch"]), str(artifact.header["entries"][0])

    def capi_func(self, packed: Any) -> None:
        """Launches with the addresses of the arguments, then of the stream and of the result."""
        event = torch.cuda.Event()
        launch = Launch(self._variant, self._arch, self._kernel, unpacked(self._variant, packed), event)
        if (shape := launch.semaphores) is not None:
            Reader.here().reserve(shape[0] * shape[1] * shape[2])  # before anything can hang
        self._executor.capi_func(packed)
        event.record()
        LAUNCHES.add(launch)


_TYPES: dict[str, Any] = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float}


def unpacked(variant: Variant, packed: Any) -> dict[str, int | float]:
    """The arguments by name; pointers as addresses."""
    found = {}
    for address, (name, kind) in zip(packed, ARGUMENTS[variant.kind], strict=False):
        found[name] = _TYPES.get(kind, ctypes.c_uint64).from_address(address).value
    return found


class Reader:
    """Copies device memory by address while the device is busy: a stream and a pinned buffer of its own, made early."""

    _here: Reader | None = None

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pinned = torch.empty(0, dtype=torch.int32)
        self._done = torch.cuda.Event()

    @classmethod
    def here(cls) -> Reader:
        """This process's reader of the current device."""
        if cls._here is None:
            cls._here = cls()
        return cls._here

    def reserve(self, count: int) -> None:
        """Makes room for `count` int32; to be called while nothing hangs (pinning memory may wait for the device)."""
        if self._pinned.numel() < count:
            self._pinned = torch.empty(max(count, 4096), dtype=torch.int32, pin_memory=True)

    def read(self, address: int, count: int) -> Tensor:
        """int32 (count,) from device memory. Raises TimeoutError where even that does not come back."""
        if self._pinned.numel() < count:
            raise ValueError(f"count: room is reserved for {self._pinned.numel()} numbers, got {count}")
        there = torch.as_tensor(_Memory(address, count), device="cuda")
        until = time.monotonic() + LIMIT
        with torch.cuda.stream(self._stream):
            self._pinned[:count].copy_(there, non_blocking=True)
            self._done.record(self._stream)
        while not self._done.query():
            if time.monotonic() > until:
                raise TimeoutError(f"a copy on a second stream did not come back within {LIMIT:g} s")
            time.sleep(0.0005)
        return self._pinned[:count].clone()


class _Memory:
    """Device memory by its address, as torch takes it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
            "stream": None,
        }


def semaphores(launch: Launch) -> Tensor:
    """int32 (batch, heads_q, m_blocks) of a launch, also while it hangs."""
    shape = launch.semaphores
    if shape is None:
        raise ValueError(f"launch: {launch.variant.name} has no semaphores")
    count = shape[0] * shape[1] * shape[2]
    return Reader.here().read(int(launch.values["semaphores"]), count).view(shape)


def timed(call: Callable[[], Any], repeats: int = 10, warm_up: int = 3) -> list[float]:
    """Milliseconds of each of `repeats` calls on the current stream, by events, after `warm_up` calls that are not
    timed. Waits for the device once, at the end."""
    for _ in range(warm_up):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) for first, second in pairwise(marks)]
