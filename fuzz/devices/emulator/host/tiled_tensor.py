"""Tensor maps as arguments of a launch: what cuTensorMapEncodeTiled makes of a tensor on a GPU's host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from fuzz.devices.emulator import tensor_map as tm

_ELEMENTS = {
    torch.uint8: tm.U8, torch.int8: tm.U8, torch.uint16: tm.U16, torch.int16: tm.U16, torch.uint32: tm.U32,
    torch.int32: tm.S32, torch.int64: tm.S64, torch.float16: tm.F16, torch.bfloat16: tm.BF16, torch.float32: tm.F32,
    torch.float64: tm.F64,
}  # fmt: skip
_SWIZZLES = {"none": tm.NO_SWIZZLE, "32B": tm.SWIZZLE_32, "64B": tm.SWIZZLE_64, "128B": tm.SWIZZLE_128}
_FILLS = {"zero": tm.FILL_ZERO, "nan": tm.FILL_NAN}


@dataclass(frozen=True, eq=False)
class TiledTensor:
    """A tensor map of `tensor`: 1 to 5 dimensions, the last of stride 1.

    box              sizes of what one copy moves, in the tensor's order of dimensions
    swizzle          permutation of a copy's rows in shared memory
    fill             what a load gives outside the tensor
    element_strides  a box takes every n-th element along each dimension; () for all

    Raises ValueError for another dtype, stride or number of dimensions.
    """

    tensor: torch.Tensor
    box: tuple[int, ...]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    fill: Literal["zero", "nan"] = "zero"
    element_strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.tensor.dtype not in _ELEMENTS:
            raise ValueError(f"tensor: a tensor map has no elements of {self.tensor.dtype}")
        if self.tensor.dim() == 0 or self.tensor.stride(-1) != 1:
            raise ValueError(f"tensor: strides {self.tensor.stride()}; the last one must be 1")

    def encode(self, address: int) -> bytes:
        """The 128 bytes of the map. address: of the tensor's first element, as the kernel knows it."""
        t = self.tensor
        return tm.TensorMap(
            address,
            _ELEMENTS[t.dtype],
            tuple(reversed(t.shape)),
            tuple(stride * t.element_size() for stride in reversed(t.stride()[:-1])),
            tuple(reversed(self.box)),
            tuple(reversed(self.element_strides)),
            _SWIZZLES[self.swizzle],
            fill=_FILLS[self.fill],
        ).encode()


@dataclass(frozen=True, eq=False)
class MappedTensor:
    """A tensor map given field by field. tensor: the memory that it lies in; map.address counts bytes from there."""

    tensor: torch.Tensor
    map: tm.TensorMap

    def encode(self, address: int) -> bytes:
        """The 128 bytes of the map. address: of the tensor's first element, as the kernel knows it."""
        return replace(self.map, address=address + self.map.address).encode()
