"""The emulated GPU's global memory: tensors of this process under addresses of their own.

Every tensor argument gets a terabyte of addresses with its first byte in the middle, so an address says which pointer
it came from even when it strays far, and memory of this process outside the tensors can never be touched.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.ptx import Variable

NORESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python's mmap does not name
ALIGNMENT = 128
LARGE_PAGE = 1 << 21  # bytes; one is zeroed in the time that 30 small ones take to be touched
MOST_IN_LARGE_PAGES = 64 << 20  # bytes of a mapping: one touched byte commits the whole page


@dataclass(frozen=True)
class Shade:
    """Shadow cells of a segment (sanitize/shadow.py): addresses of those for writes and for reads; bytes per cell;
    address of the lines (sanitize/global_lines.py), 0 where the segment's start does not let it have any."""

    writes: int
    reads: int
    granule: int
    lines: int
    owner: MappedArrays


@dataclass
class Segment:
    """A tensor (or module variable) in the emulated memory: addresses low to high, host address of low. `written`:
    where it is kept which of its bytes have been written, None where all count as written."""

    name: str
    low: int
    high: int
    host: int
    tensor: torch.Tensor
    written: Written | None
    shade: Shade | None = None


def reserve(size: int) -> tuple[Any, int]:
    """(owner, address) of zeroed memory that is committed only where it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    owner = mmap.mmap(-1, max(size, 4096), flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return owner, np.frombuffer(owner, dtype=np.uint8).ctypes.data


class MappedArrays:
    """Zeroed memory in pieces with names, each at a multiple of 128 bytes, all in one mapping; it lives as long as this
    or an array of it. numpy.zeros would do, were it not that a session has malloc fill what it hands out
    (fuzz.tensors.guard_bands), so that every byte would be written, then zeroed, for each launch.

    dense  names of pieces of which most is touched: they lie together, in large pages where they are large
    at     the address of each
    """

    def __init__(self, dense: Collection[str] = (), /, **sizes: int) -> None:
        self.sizes = sizes
        starts, end, together = {}, 0, 0
        for name in sorted(sizes, key=lambda name: name not in dense):
            starts[name] = end
            end += -(-max(sizes[name], 1) // ALIGNMENT) * ALIGNMENT
            if name in dense:
                together = end
        large = min(together + LARGE_PAGE * 7 // 8, MOST_IN_LARGE_PAGES) // LARGE_PAGE * LARGE_PAGE
        self.owner, base = reserve(max(end, large) + (LARGE_PAGE if large else 0))
        first = -base % LARGE_PAGE if large else 0
        if large and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                self.owner.madvise(mmap.MADV_HUGEPAGE, first, large)
        self.at = {name: base + first + start for name, start in starts.items()}
        self._starts = {name: first + start for name, start in starts.items()}

    def array(self, name: str, dtype: type = np.uint8) -> np.ndarray:
        """A piece as an array of one dimension."""
        width = np.dtype(dtype).itemsize
        return np.frombuffer(self.owner, dtype, self.sizes[name] // width, self._starts[name])


class Written:
    """Map of the bytes of this process's memory from `low` on that have been written: 0 or 1 each. Committed where
    it is touched."""

    def __init__(self, low: int, size: int) -> None:
        self.low, self.size = low, size
        self.owner, self.address = reserve(size + 16)

    def map(self) -> np.ndarray:
        """The bytes, as an array."""
        return np.frombuffer(self.owner, dtype=np.uint8, count=self.size)


def contents(variable: Variable) -> torch.Tensor:
    """uint8: a module variable as it is when its module is loaded."""
    data = torch.zeros(max(variable.size, 1), dtype=torch.uint8)
    if variable.data:
        data[: len(variable.data)] = torch.frombuffer(bytearray(variable.data), dtype=torch.uint8)
    return data


class Memory:
    """The segments of one call. axes: names of a tensor's dimensions, by its name, for reports. variables: contents of
    module variables by name, for them to outlive the call; those of a new one are added."""

    def __init__(
        self, axes: Mapping[str, Sequence[str]] | None = None, variables: dict[str, torch.Tensor] | None = None
    ) -> None:
        self.axes = dict(axes or {})
        self.variables = {} if variables is None else variables
        self.segments: dict[int, Segment] = {}
        self.next = op.FIRST_SEGMENT + op.GLOBALS
        self.launches = 0

    def add(self, name: str, tensor: torch.Tensor, written: Written | bool = True) -> int:
        """Maps `tensor` (its elements' extent, no more) and returns the address of its first element. written: what has
        been written of the memory that it lies in; True: all of it, False: nothing. A tensor whose memory is mapped
        already, byte for byte, has the address that it had."""
        if tensor.device.type != "cpu":
            raise ValueError(f"{name}: the emulator runs on CPU tensors, got one on {tensor.device}")
        extent = (
            sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
        )
        if extent * tensor.element_size() > op.MIDDLE - 4096:
            raise ValueError(f"{name}: {extent * tensor.element_size()} bytes are more than the emulator can address")
        host = tensor.data_ptr()
        size = extent * tensor.element_size()
        for known in self.segments.values():
            if size and (known.host, known.high - known.low) == (host, size):
                return known.low
        number = self.next
        self.next += 1
        low = (number << op.SHIFT) + op.MIDDLE + host % 4096
        if isinstance(written, bool):
            kept = None if written else Written(host, size)
        else:
            assert written.low <= host and host + size <= written.low + written.size
            kept = written
        self.segments[number] = Segment(name, low, low + size, host, tensor, kept)
        return low

    def add_variables(self, variables: Sequence[Variable]) -> None:
        """Module variables: their addresses were fixed when the kernel was decoded; contents live as long as this."""
        for i, v in enumerate(variables):
            number = op.FIRST_SEGMENT + i
            if number in self.segments:
                continue
            if v.name not in self.variables:
                self.variables[v.name] = contents(v)
            data = self.variables[v.name]
            low = (number << op.SHIFT) + op.MIDDLE
            self.segments[number] = Segment(v.name, low, low + v.size, data.data_ptr(), data, None)

    def table(self, shadows: bool, smallest: int) -> np.ndarray:
        """The segments as the interpreter reads them, one row per segment number. With `shadows` every segment has
        cells for its granules: of an element, or of the kernel's `smallest` access if that is less."""
        rows = np.zeros((self.next, 8), dtype=np.int64)
        if shadows:
            self._shade(smallest)
        for number, s in self.segments.items():
            written = 0 if s.written is None else s.written.address + s.host - s.written.low
            rows[number, :4] = s.low, s.high, s.host, written
            if shadows and s.shade is not None:
                rows[number, 4:7] = s.shade.writes, s.shade.reads, s.shade.granule.bit_length() - 1
                rows[number, 7] = s.shade.lines
        return rows

    def _shade(self, smallest: int) -> None:
        """Cells for the segments that have none."""
        sizes: dict[str, int] = {}
        new = {}
        for number, s in self.segments.items():
            if s.shade is None:
                new[number] = granule = max(1, min(s.tensor.element_size(), smallest, 4))
                cells = (s.high - s.low) // granule + 1
                sizes |= {f"writes {number}": 8 * cells, f"reads {number}": 16 * cells}
                sizes[f"lines {number}"] = 32 * ((s.high >> 4) - (s.low >> 4) + 1)
        if new:
            pieces = MappedArrays([name for name in sizes if name.startswith("lines")], **sizes)
            for number, granule in new.items():
                at = pieces.at
                s = self.segments[number]
                lines = 0 if s.low % granule else at[f"lines {number}"]
                s.shade = Shade(at[f"writes {number}"], at[f"reads {number}"], granule, lines, pieces)

    def shape(self, address: int) -> str:
        """The shape of the tensor that an address belongs to, as text; "" where it belongs to none."""
        segment = self.segments.get(address >> op.SHIFT)
        return "" if segment is None else str(tuple(segment.tensor.shape))

    def describe(self, address: int, axes: bool = False) -> str:
        """The tensor that an address belongs to, and where in it: 'k[1, 2, 0, 5]' or 'k, 64 bytes past its end (…)'.
        axes: with the names of its dimensions where they are known: 'semaphores[b 0, h 0, m 3]'."""
        segment = self.segments.get(address >> op.SHIFT)
        if segment is None:
            return f"address {address:#x} of no tensor"
        size = segment.tensor.element_size()
        if address < segment.low:
            return f"{segment.name}, {segment.low - address} bytes before its start"
        if address >= segment.high:
            return (
                f"{segment.name}, {address - segment.high} bytes past its end ({segment.high - segment.low} bytes long)"
            )
        rest, index = (address - segment.low) // size, []
        order = sorted(range(segment.tensor.dim()), key=segment.tensor.stride, reverse=True)
        found = dict.fromkeys(order, 0)
        for i in order:
            stride = segment.tensor.stride(i)
            if stride and segment.tensor.shape[i] > 1:
                found[i] = rest // stride
                rest -= found[i] * stride
        index = [str(found[i]) for i in sorted(found)]
        names = self.axes.get(segment.name, ())[-len(index) :]
        if axes and len(names) == len(index):
            index = [f"{name} {i}" for name, i in zip(names, index, strict=True)]
        return f"{segment.name}[{', '.join(index)}]"
