"""Strides of a tensor X as kernel arguments of their own: tX_0, tX_1, …

A kernel puts them together as the tuple tX. As an argument Triton compiles a tuple anew for whatever divides each of
its numbers, also where it is told not to.
"""

from collections.abc import Sequence

LAST = 3  # axis of a 4-D tensor whose stride kernels are compiled anew for where it is 1, so that neighbouring threads
# load neighbours


def stride_arguments(name: str, strides: Sequence[int]) -> dict[str, int]:
    """Arguments of X = `name`."""
    return {f"t{name}_{axis}": stride for axis, stride in enumerate(strides)}


def stride_names(*names: str, axes: int = LAST) -> list[str]:
    """Names of the arguments of the first `axes` axes of each tensor: those whose values compile nothing."""
    return [f"t{name}_{axis}" for name in names for axis in range(axes)]


def last_strides(*names: str) -> list[str]:
    """Names of the arguments of axis LAST of each tensor."""
    return [f"t{name}_{LAST}" for name in names]
