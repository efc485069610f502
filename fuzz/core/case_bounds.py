"""Bounds of a case that comes from a file: what is larger is refused in one line, before anything is made of it.

They lie far above every case that a session draws. A few bytes of JSON can ask for a mask that takes minutes and
gigabytes to look at, or for tensors that no machine holds.
"""

from __future__ import annotations

import math

from oracles.masks import Documents, Intervals, Mask, parts
from oracles.problem import AnyProblem, shapes

BYTES = 4 << 20  # of a file
DEPTH = 64  # of a mask's parts
PARTS = 4096  # of a mask, all levels together
BOUNDS = 1 << 17  # intervals and documents of a mask


def too_large(problem: AnyProblem) -> str:
    """Which field of a problem is out of bounds, and by what; ''. It walks no deeper than the bounds."""
    level: list[Mask] = [problem.mask]
    count = bounds = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        bounds += sum(map(_bounds, level))
        if depth > DEPTH:
            return f"problem.mask: nested too deeply, at most {DEPTH} levels"
        if count > PARTS:
            return f"problem.mask: has too many parts, at most {PARTS}"
        if bounds > BOUNDS:
            return f"problem.mask: has too many intervals or documents, at most {BOUNDS}"
        level = [part for mask in level for part in parts(mask)]
    return ""


def tensor_bytes(problem: AnyProblem) -> int:
    """Bytes of the tensors of one run."""
    return sum(math.prod(shape) for shape in shapes(problem).values()) * problem.torch_dtype.itemsize


def _bounds(mask: Mask) -> int:
    if isinstance(mask, Intervals):
        return sum(map(len, mask.rows)) + len(mask.rows)
    if isinstance(mask, Documents):
        return len(mask.q_bounds) + len(mask.k_bounds or ())
    return 0
