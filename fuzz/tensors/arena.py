"""A Case's tensors in one buffer: strides and offsets as the recipe asks, everything in between poisoned.

    [guard] q with its gaps [guard] k … [guard]

All bytes that belong to no element are 0xFF, which is NaN in every floating dtype. One comparison with a pristine copy
after a run therefore shows both a changed input and a write outside any tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fuzz.core.case import Case, Storage
from fuzz.core.target import Tensors
from fuzz.core.verdict import WROTE_OUTSIDE
from fuzz.tensors.guard_bands import GUARD_BYTES, POISON
from fuzz.tensors.values import make_values
from oracles.finding import Finding, Location

ALIGNMENT = 256
_PLAIN = {4: Storage(), 3: Storage("bshd")}  # by the number of axes: contiguous


@dataclass(frozen=True)
class Slot:
    """Place of one tensor: byte offset of element 0, shape, strides in elements, bytes spanned."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Arena:
    """The buffer (uint8) and its slots. `copy` puts the same content at another address."""

    buffer: Tensor
    slots: tuple[Slot, ...]

    def tensor(self, name: str) -> Tensor | None:
        """The named tensor as a strided view of the buffer, or None."""
        for slot in self.slots:
            if slot.name == name:
                return self.view(slot)
        return None

    def view(self, slot: Slot) -> Tensor:
        """The tensor in that slot."""
        return _place(self.buffer.view(slot.dtype), slot)

    def tensors(self) -> Tensors:
        """All of them."""
        flat = {dtype: self.buffer.view(dtype) for dtype in {slot.dtype for slot in self.slots}}
        there = {slot.name: _place(flat[slot.dtype], slot) for slot in self.slots}
        return Tensors(**there)

    def copy(self) -> Arena:
        """A fresh buffer with the same bytes."""
        return Arena(_memory(self.buffer.numel(), self.buffer.device).copy_(self.buffer), self.slots)

    def to(self, device: torch.device) -> Arena:
        """Copies the bytes to `device`; this one, where they are there already."""
        return Arena(self.buffer.to(device), self.slots)

    def same(self, pristine: Arena) -> bool:
        """True if every byte is as in `pristine`; waits for a device."""
        return torch.equal(self.words(), pristine.words())

    def words(self) -> Tensor:
        """The whole buffer, eight bytes at a time."""
        return self.buffer.view(torch.int64)

    def changes(self, pristine: Arena) -> list[Finding]:
        """Findings for every byte that differs from `pristine`: an input changed, or a write outside the tensors."""
        if self.same(pristine):
            return []
        where = (self.buffer != pristine.buffer).nonzero()[:, 0]
        return [_explain(self, pristine, where)]


def on_device(arenas: Sequence[Arena], device: torch.device) -> list[Arena]:
    """The arenas with their bytes on `device`, in one copy for which nothing is waited; those that are there already as
    they are."""
    if all(arena.buffer.device == device for arena in arenas):
        return list(arenas)
    sizes = [-(-arena.buffer.numel() // ALIGNMENT) * ALIGNMENT for arena in arenas]
    staged = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for arena, part in zip(arenas, staged.split(sizes), strict=True):
        part[: arena.buffer.numel()].copy_(arena.buffer)
    moved = staged.to(device, non_blocking=True).split(sizes)
    return [Arena(part[: a.buffer.numel()], a.slots) for a, part in zip(arenas, moved, strict=True)]


def _memory(size: int, device: torch.device) -> Tensor:
    """That many bytes, which begin at a multiple of ALIGNMENT on a CPU too, as a GPU's allocator has them."""
    if device.type != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    room = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    return room[-room.data_ptr() % ALIGNMENT :][:size]


def _place(flat: Tensor, slot: Slot) -> Tensor:
    """The tensor of a slot; flat: its whole buffer as elements of its dtype."""
    return flat.as_strided(slot.shape, slot.strides, flat.storage_offset() + slot.start // slot.dtype.itemsize)


def build(
    case: Case, device: torch.device | str, values: dict[str, Tensor] | None = None, poison: int = POISON
) -> Arena:
    """Makes a Case's inputs on `device`; the same bits on every device.

    values  other numbers than the recipe's, exactly representable in the problem's dtype
    poison  the byte that lies between the elements
    """
    values = make_values(case, device) if values is None else values
    slots, size = list[Slot](), GUARD_BYTES
    for name, value in values.items():
        dtype, storage, shape = _dtype(case, name), _storage(case, name, value.dim()), tuple(value.shape)
        strides, span = strides_of(shape, storage)
        start = -(-size // ALIGNMENT) * ALIGNMENT + storage.offset * dtype.itemsize
        stop = start + span * dtype.itemsize
        slots.append(Slot(name, start, stop, shape, strides, dtype))
        size = stop + GUARD_BYTES
    size = -(-size // 8) * 8
    arena = Arena(_memory(size, torch.device(device)).fill_(poison), tuple(slots))
    flat = {dtype: arena.buffer.view(dtype) for dtype in {slot.dtype for slot in slots}}
    for slot in slots:
        if _storage(case, slot.name, len(slot.shape)).order == "expanded":
            flat[slot.dtype][slot.start // slot.dtype.itemsize] = 1.0
        else:
            _first(_place(flat[slot.dtype], slot)).copy_(_first(values[slot.name], slot.strides))
    return arena


def _storage(case: Case, name: str, axes: int) -> Storage:
    """The recipe's for q, k, v and do; a bias and weights are contiguous."""
    return getattr(case.inputs, name, None) or _PLAIN[axes]


def _dtype(case: Case, name: str) -> torch.dtype:
    if name == "bias" and case.problem.bias is not None and case.problem.bias.dtype == "float32":
        return torch.float32
    return case.problem.torch_dtype


@lru_cache(maxsize=1024)
def strides_of(shape: tuple[int, ...], storage: Storage) -> tuple[tuple[int, ...], int]:
    """Strides in elements for (b, h, s, d), or packed (s, h, d), and the number of elements spanned."""
    if storage.order == "expanded":
        return (0,) * len(shape), 1
    axes = "bhsd" if len(shape) == 4 else "shd"
    strides, run = dict.fromkeys(storage.shared, 0), 1
    for axis in reversed([axis for axis in storage.order if axis in axes and axis not in storage.shared]):
        strides[axis] = run
        run = run * max(shape[axes.index(axis)], 1) + (storage.pad if run == 1 else 0)
    order = tuple(strides[axis] for axis in axes)
    span = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, order, strict=True))
    return order, span


def _first(x: Tensor, strides: tuple[int, ...] | None = None) -> Tensor:
    """The part of x that has memory of its own: the first element along every axis of stride 0."""
    for axis, stride in enumerate(x.stride() if strides is None else strides):
        if stride == 0 and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


def _explain(arena: Arena, pristine: Arena, where: Tensor) -> Finding:
    """Names the tensor changed, or the nearest one to a write outside."""
    first, count = int(where[0]), where.numel()
    for slot in arena.slots:
        if not slot.start <= first < slot.stop:
            continue
        now, was = arena.tensor(slot.name), pristine.tensor(slot.name)
        assert now is not None and was is not None
        if not torch.equal(_bits(now), _bits(was)):
            message = (
                f"the kernel changed its input {slot.name} ({count} bytes, the first at byte {first - slot.start})"
            )
            return Finding("memory", "changed_input", message, slot.name, Location(pattern="input"), {"bytes": count})
        message = f"the kernel wrote into the gaps between the rows of {slot.name} ({count} bytes)"
        return Finding("memory", WROTE_OUTSIDE, message, slot.name, Location(pattern="gap"), {"bytes": count})
    near = min(arena.slots, key=lambda slot: min(abs(first - slot.start), abs(first - slot.stop)))
    before = first < near.start
    distance = near.start - first if before else first - near.stop
    side = "before" if before else "after"
    message = f"the kernel wrote outside its tensors: {count} bytes, the first {distance} bytes {side} {near.name}"
    return Finding("memory", WROTE_OUTSIDE, message, near.name, Location(pattern=side), {"bytes": count})


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)
