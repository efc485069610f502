"""Host code of nvidia-cudnn-frontend on a machine without a GPU: what it asks of PyTorch, and how it refuses."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from torch import Tensor

PROCESSORS = {90: 132, 100: 148}  # streaming multiprocessors of an H100, a B200
SHARED_MEMORY = 228 << 10  # bytes of a multiprocessor of both
ALIGNMENT = 256  # bytes, of what a GPU's allocator hands out


class Refused(ValueError):
    """The package said no. It says so with `assert` too, which elsewhere in this program is a fault of our own."""


def installed() -> bool:
    """True if its packages are there; found without importing them."""
    return all(find_spec(name) is not None for name in ("cudnn", "cutlass", "tvm_ffi"))


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turns the package's assertions into Refused."""
    try:
        yield
    except AssertionError as error:
        raise Refused(str(error) or "assertion failed without a word") from error


def nothing(*arguments: Any) -> None:
    """A kernel that is not launched."""


def hash_of(key: Any) -> str:
    """A short hash of a compile key: tuples of numbers, names, dtypes and types."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def number_of(arch: str) -> int:
    """90 for 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


class FakeGpu:
    """Answers of torch.cuda about a GPU that is not there."""

    L2_cache_size = 50 << 20
    total_memory = 80 << 30
    cuda_stream = 0  # of its current stream

    def __init__(self, arch: str) -> None:
        number = number_of(arch)
        self.capability, self.multi_processor_count = divmod(number, 10), PROCESSORS[number]
        self.major, self.minor = self.capability

    def functions(self) -> dict[str, Any]:
        """Functions of torch.cuda by name."""
        return {
            "get_device_capability": lambda device=None: self.capability,
            "get_device_properties": lambda device=None: self,
            "current_device": lambda: 0,
            "current_stream": lambda device=None: self,
            "device": lambda device: contextlib.nullcontext(),
            "mem_get_info": lambda device=None: (self.total_memory, self.total_memory),
            "memory_reserved": lambda device=None: 0,
            "memory_allocated": lambda device=None: 0,
            "nvtx": _Nvtx,
        }


class _Nvtx:
    """torch.cuda.nvtx without a GPU."""

    @staticmethod
    def range(name: str) -> contextlib.AbstractContextManager[None]:
        """Nothing."""
        return contextlib.nullcontext()


def aligned(make: Callable[..., Tensor], empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.empty or torch.empty_like whose memory begins where a GPU's would."""

    def made(*args: Any, **options: Any) -> Tensor:
        found = make(*args, **options)
        if found.is_meta or not found.numel() or found.data_ptr() % ALIGNMENT == 0:
            return found
        span = 1 + sum((n - 1) * s for n, s in zip(found.shape, found.stride(), strict=True))
        room = empty(span + ALIGNMENT // found.element_size(), dtype=found.dtype)
        skipped = -room.data_ptr() % ALIGNMENT // found.element_size()
        return room.as_strided(found.shape, found.stride(), room.storage_offset() + skipped)

    return made
