"""Names of a launch's tensors: as descriptors where they fit, else as pointers with every stride explicit.

The choice is made for a whole launch, by `fits_descriptors` and nothing else. On Hopper a descriptor lets the tensor
memory accelerator move whole tiles; pointers take any strides, at a cost in registers and speed.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.sdpa.scores import MASK_STRIDES
from kernels.sdpa.strides import stride_arguments

_ALIGNMENT = 16
_STRIDE_LIMIT = 2**40

Seen: TypeAlias = Callable[[str, Tensor], Tensor]


def fits_descriptors(*tensors: Tensor) -> bool:
    """True if descriptors can name all of these: nothing empty, last dimension contiguous, all else in 16 bytes."""
    return all(map(_fits_descriptor, tensors))


def _fits_descriptor(tensor: Tensor) -> bool:
    if tensor.numel() == 0 or tensor.data_ptr() % _ALIGNMENT or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
        return False
    pitches = [stride * tensor.itemsize for stride in _outer_strides(tensor)]
    return all(0 < pitch < _STRIDE_LIMIT and pitch % _ALIGNMENT == 0 for pitch in pitches)


def _outer_strides(tensor: Tensor) -> list[int]:
    """Strides of all dimensions but the last; a dimension of size 1, whose stride means nothing, gets a valid one."""
    unit = _ALIGNMENT // tensor.itemsize
    valid = (tensor.shape[-1] + unit - 1) // unit * unit
    sizes, strides = tensor.shape[:-1], tensor.stride()[:-1]
    return [valid if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]


def as_it_is(name: str, tensor: Tensor) -> Tensor:
    """The tensor by which a launch names operand X: itself, with whatever strides it has."""
    return tensor


def operands(
    tiles: dict[str, tuple[Tensor, int]], block: int, descriptor: bool, seen: Seen = as_it_is
) -> dict[str, Any]:
    """Kernel arguments mX and tX_0 … for each X: tiles maps X to a 4-D tensor and the rows of its tile. A descriptor
    has the strides itself, and beside it they are 0."""
    arguments: dict[str, Any] = {}
    for name, (given, rows) in tiles.items():
        tensor = seen(name, given)
        arguments[f"m{name}"] = _describe(tensor, [1, 1, rows, block]) if descriptor else tensor
        arguments |= stride_arguments(name, (0,) * tensor.dim() if descriptor else tensor.stride())
    return arguments


def state_operand(state: Tensor, rows: int, descriptor: bool) -> Any:
    """Kernel argument mState, see NOTE [row state] in row_state.py."""
    return _describe(state, [1, 1, rows]) if descriptor else state


def _describe(tensor: Tensor, block_shape: list[int]) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), [*_outer_strides(tensor), 1], block_shape)


def mask_strides(mask: Tensor) -> tuple[int, ...]:
    """Strides of a mask that broadcasts where its size is 1."""
    return tuple(0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True))


def mask_operands(
    mask: Tensor | None, unused: Tensor, strides_of: Callable[[Tensor], tuple[int, ...]] = mask_strides
) -> dict[str, Any]:
    """Kernel arguments mMask and MASK_STRIDES: a broadcast dimension has stride 0, bools are read as bytes."""
    if mask is None:
        return {"mMask": unused, **dict.fromkeys(MASK_STRIDES, 0)}
    strides = dict(zip(MASK_STRIDES, strides_of(mask), strict=True))
    return {"mMask": mask.view(torch.uint8) if mask.dtype == torch.bool else mask, **strides}
