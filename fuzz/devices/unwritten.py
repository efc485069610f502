"""Memory that a run allocated with torch.empty & co., and what has been written of it since: by torch and by kernels.

`fuzz.tensors.guard_bands.Guarded` fills what is allocated with one byte. So an element that does not consist of that
byte alone was written by torch; what a kernel writes, the emulated GPU notes down itself (`Written`), from one launch
to the next. That holds for the poison of NaNs, which nobody writes. In a run with another one (the relation that
changes the poison) an ordinary number may look like it, so there everything counts as written.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
from torch import Tensor

from fuzz.devices.emulator.state.global_memory import Written
from fuzz.tensors.guard_bands import POISON, Guarded, active


@functools.cache
def of_runs() -> Unwritten:
    """The view of this process's runs. All emulated devices of a process note in it what their kernels write: one of
    them may read what another one's kernel has written, a word of ones for example, which looks like the poison."""
    return Unwritten()


class Unwritten:
    """View of the guarded allocations of one run. Another `Guarded` begins another run, whose memory is new."""

    def __init__(self, guarded: Callable[[], Guarded | None] = active) -> None:
        self._guarded = guarded
        self._of: Guarded | None = None
        self._known: dict[int, Written] = {}
        self._spans: list[tuple[int, int, int, int]] = []  # of each allocation: low, high, bytes of an element, poison

    def __call__(self, tensor: Tensor) -> Written | None:
        """What has been written of the allocation that `tensor` lies in; None where nothing is known of it."""
        guarded = self._guarded()
        if guarded is not self._of:
            self._of, self._known, self._spans = guarded, {}, []
        if guarded is None or guarded.poison != POISON:
            return None
        allocated = guarded.allocated()
        if len(allocated) < len(self._spans):
            self._spans = []
        for window, poison in allocated[len(self._spans) :]:
            low = window.data_ptr()
            self._spans.append((low, low + _span(window), window.element_size(), poison))
        at = tensor.data_ptr()
        for low, high, element, poison in self._spans:
            if low <= at < high:
                if low not in self._known:
                    self._known[low] = Written(low, high - low)
                _look(self._known[low], element, poison)
                return self._known[low]
        return None


def _look(written: Written, element: int, poison: int) -> None:
    """Marks the elements that torch has written: which no longer consist of the poison."""
    word = np.dtype(f"u{min(element, 8)}")  # an element, compared at once
    each = int.from_bytes(b"\1" * word.itemsize, "little")
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * written.size).from_address(written.low)).view(word)
    np.putmask(written.map().view(word), memory != word.type(each * poison), word.type(each))


def _span(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + last) * tensor.element_size()
