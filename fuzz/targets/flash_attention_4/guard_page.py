"""A tensor that ends where mapped memory ends, so that a read past its end faults on every GPU and every time.

PyTorch's allocator puts tensors into larger pieces, where the same read goes unseen, but for one time in some hundred.
Relies on CUDA's virtual memory management, by way of cuda.bindings, which FlashAttention-4's compiler needs too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def at_the_edge(tensor: Tensor) -> Tensor:
    """A contiguous copy of a uint8 tensor on a CUDA device; the byte after its last one is not mapped.

    Its memory is never given back. Raises RuntimeError where the driver refuses.
    """
    from cuda.bindings import driver

    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = tensor.device.index or 0
    piece = _done(
        driver.cuMemGetAllocationGranularity(
            properties, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        )
    )
    size = -(-tensor.numel() // piece) * piece
    start = _done(driver.cuMemAddressReserve(size + piece, 0, 0, 0))
    _done(driver.cuMemMap(start, size, 0, _done(driver.cuMemCreate(size, properties, 0)), 0))
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    _done(driver.cuMemSetAccess(start, size, [access], 1))
    memory = _Memory(int(start) + size - tensor.numel(), tensor.numel())
    found = torch.as_tensor(memory, device=tensor.device).view(tensor.shape)
    found.copy_(tensor)
    return found


class _Memory:
    """Bytes at an address, as PyTorch takes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _done(answer: tuple[Any, ...]) -> Any:
    if int(answer[0]):
        raise RuntimeError(f"cuda: {answer[0]!r}")
    return answer[1] if len(answer) > 1 else None
