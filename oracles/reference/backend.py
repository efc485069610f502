"""Backend: which code computes on a tensor, numba's loops (numba_loops.py) or the PyTorch expressions that define them.

A file of its own, because importing numba takes seconds and is left to the place where a loop is called.
"""

from __future__ import annotations

from torch import Tensor

_enabled = True  # tests switch the loops off, to compare both


def uses_numba(x: Tensor) -> bool:
    """True for a tensor on a CPU."""
    return _enabled and not x.is_cuda
