"""Who works on a tensor: the compiled loops of loops.py, or the PyTorch expressions that define what they do."""

from __future__ import annotations

from torch import Tensor

_loops = True  # tests switch them off, to compare


def looped(x: Tensor) -> bool:
    """On a CPU."""
    return _loops and not x.is_cuda
