"""Poison and guard bands around what a kernel allocates itself.

Three layers, since an allocation is made in different places:
    Guarded          torch.empty & co. called from Python (Triton and CuTe kernels' wrappers): each becomes a window in
                     a larger poisoned buffer whose guard bands are checked after the run
    poisoned_malloc  while a target runs, glibc fills what malloc returns (PyTorch's own CPU kernels) with 0xFF bytes,
                     which is NaN
    poison_cuda      blocks of the caching allocator are filled with 0xFF and freed, so that PyTorch's own CUDA kernels
                     get poisoned memory
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fuzz.core.verdict import WROTE_OUTSIDE
from oracles.finding import Finding, Location

GUARD_BYTES = 8192
POISON = 0xFF
_ALIGNMENT = 256
_M_PERTURB, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -6, -1, -3
KEPT_BYTES = 64 << 20
_EMPTY: tuple[tuple[Any, str, Callable[..., Tensor]], ...] = tuple(
    (owner, name, getattr(owner, name))
    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (Tensor, "new_empty"),
        (Tensor, "new_empty_strided"),
    )
)

_active: Guarded | None = None


class Guarded:
    """While active, every torch.empty & co. called from Python gets poisoned memory between guard bands.

    The functions themselves are replaced (not a TorchFunctionMode, which is off inside custom operators and on
    autograd's threads), so one at a time in a process. `check` looks at the bands afterwards; until then every buffer
    is held, so the allocations of one run never alias.
    """

    def __init__(self, poison: int = POISON) -> None:
        self.poison = poison
        self._held: list[tuple[Tensor, int, int, Tensor]] = []

    def __enter__(self) -> Guarded:
        global _active
        _active = self
        for owner, name, guarded in _GUARDED:
            setattr(owner, name, guarded)
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        _active = None
        for owner, name, original in _EMPTY:
            setattr(owner, name, original)

    def allocated(self) -> list[tuple[Tensor, int]]:
        """Memory allocated so far, and the byte that every tensor of it was filled with."""
        return [(window, self.poison) for *_, window in self._held]

    def touched(self, device: torch.device) -> Tensor:
        """True if any guard band was written to: a bool scalar on `device`, without synchronising."""
        bands = [(_band(b, start, stop) != POISON).any().to(device) for b, start, stop, _ in self._held]
        return torch.stack(bands).any() if bands else torch.zeros((), dtype=torch.bool, device=device)

    def touched_here(self) -> bool:
        """`touched`, of a run on the CPU."""
        return bool(self._held) and bool(self.touched(torch.device("cpu")))

    def check(self) -> list[Finding]:
        """Findings for every guard band that a run has written to; forgets the buffers."""
        held, self._held = self._held, []
        return [_explain(*entry) for entry in held if bool((_band(*entry[:3]) != POISON).any())]

    def guard(self, made: Tensor) -> Tensor:
        """Tensor between guard bands, in place of a fresh allocation."""
        if torch.compiler.is_compiling() or type(made) is not Tensor or made.layout is not torch.strided:
            return made
        return self._guard(made) if made.device.type in ("cpu", "cuda") else made

    def _guard(self, made: Tensor) -> Tensor:
        span = 0 if made.numel() == 0 else 1 + sum((n - 1) * s for n, s in zip(made.shape, made.stride(), strict=True))
        size = span * made.element_size()
        if not size:
            return made
        stop = GUARD_BYTES + size
        whole = -(-(stop + GUARD_BYTES) // _ALIGNMENT) * _ALIGNMENT
        buffer = torch.full((whole,), POISON, dtype=torch.uint8, device=made.device)
        if self.poison != POISON:
            buffer[GUARD_BYTES:stop] = self.poison
        window = buffer[GUARD_BYTES:stop].view(made.dtype)
        window = window.as_strided(made.shape, made.stride(), window.storage_offset())
        self._held.append((buffer, GUARD_BYTES, stop, window))
        return window.requires_grad_(made.requires_grad) if made.requires_grad else window


def _wrap(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Tensor:
        made = original(*args, **kwargs)
        return made if _active is None else _active.guard(made)

    return guarded


_GUARDED = tuple((owner, name, _wrap(original)) for owner, name, original in _EMPTY)


def active() -> Guarded | None:
    """The one that guards allocations just now."""
    return _active


def poison_malloc(poison: int = POISON) -> bool:
    """Makes glibc fill fresh allocations of this process with that byte. False where malloc is not glibc's."""
    mallopt = _mallopt()
    return mallopt is not None and bool(mallopt(_M_PERTURB, 0x100 | (poison ^ 0xFF)))


@contextmanager
def poisoned_malloc(poison: int = POISON) -> Iterator[None]:
    """Poisons malloc inside. Not for the harness's own work: each of its hundreds of small tensors would be written
    twice more, when it is made and when it goes."""
    poison_malloc(poison)
    try:
        yield
    finally:
        mallopt = _mallopt()
        if mallopt is not None:
            mallopt(_M_PERTURB, 0)


@functools.cache
def keep_pages() -> None:
    """Makes malloc keep memory that the system gave it, up to some size: handing pages back and faulting them in again
    would cost a small case a tenth of its time."""
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES // 4)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    try:
        return ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return None


def poison_cuda(sizes: tuple[int, ...], device: torch.device | str, poison: int = POISON) -> None:
    """Leaves that byte in the caching allocator's free blocks of about the given sizes in bytes; two launches in
    all."""
    words = [max(-(-size // 8), 64) for size in sizes for _ in range(2)]
    blocks = [torch.empty(count, dtype=torch.int64, device=device) for count in words]
    torch._foreach_zero_(blocks)
    torch._foreach_add_(blocks, int.from_bytes(bytes([poison] * 8), "little", signed=True))
    del blocks


def _band(buffer: Tensor, start: int, stop: int) -> Tensor:
    return torch.cat([buffer[:start], buffer[stop:]])


def _explain(buffer: Tensor, start: int, stop: int, window: Tensor) -> Finding:
    where = (buffer != POISON).nonzero()[:, 0]
    outside = where[(where < start) | (where >= stop)]
    first = int(outside[0])
    side = "before" if first < start else "after"
    distance = start - first if side == "before" else first - stop
    message = (
        f"the kernel wrote outside an output of shape {list(window.shape)} ({window.dtype}): "
        f"{outside.numel()} bytes, the first {distance} bytes {side} it"
    )
    return Finding("memory", WROTE_OUTSIDE, message, "output", Location(pattern=side), {"bytes": outside.numel()})
