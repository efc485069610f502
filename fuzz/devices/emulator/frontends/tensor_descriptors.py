"""Triton's tensor descriptors as kernel arguments: a tensor map where the kernel copies with TMA, else numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fuzz.devices.emulator.decode.operands import Unimplemented
from fuzz.devices.emulator.tensor_map import ELEMENT_BYTES, FILL_NAN, FILL_ZERO, TF32, U4_PADDED, TensorMap

KIND = "tensordesc"
TENSOR_MAP = "tensor map"  # the kind of an argument that is one
Argument = tuple[str, str, Any]  # its kind, in Triton's words, its name and its value

_ROUNDS = "round_f32_to_tf32"  # of a descriptor; Triton 3.6 has no such


def is_descriptor(kind: object) -> bool:
    """True for Triton's type of a tensor descriptor: 'tensordesc<bf16[64,64]>'."""
    return isinstance(kind, str) and kind.startswith(KIND)


def arguments(kind: str, name: str, descriptor: Any, meta: dict[str, Any] | None) -> Iterator[Argument]:
    """The arguments that a kernel takes for a descriptor, one after the other.

    meta  what Triton's compiler knows of the tensor map that the kernel wants; None: it copies without TMA
    """
    sizes, strides = list(descriptor.shape), list(descriptor.strides)
    if meta is None:
        element = re.match(r"\w+<([^[>]*)", kind)
        assert element is not None
        yield f"*{element[1]}", name, descriptor.base
        yield from (("i64", name, one) for one in (*sizes, *strides))
        yield "i1", name, descriptor.padding == "nan"
        if hasattr(descriptor, _ROUNDS):
            yield "i1", name, descriptor.round_f32_to_tf32
    else:
        yield TENSOR_MAP, name, (descriptor, meta)
    yield from (("i32", name, one) for one in sizes)
    yield from (("i64", name, one) for one in strides)


def tensor_map(name: str, descriptor: Any, meta: dict[str, Any], address: int) -> TensorMap:
    """The tensor map that Triton's launcher makes of a descriptor. address: of its tensor, as the kernel knows it.
    Raises Unimplemented for what is not emulated."""
    if meta.get("is_im2col"):
        raise Unimplemented(f"{name}: a tensor descriptor with im2col is not emulated")
    element = TF32 if getattr(descriptor, _ROUNDS, False) else meta["elem_type"]
    sizes = [int(x) for x in descriptor.shape]
    if element == U4_PADDED:  # the tensor has two numbers in a byte
        sizes[-1] *= 2
    width = ELEMENT_BYTES[meta["elem_type"]] or 1
    return TensorMap(
        address,
        element,
        tuple(reversed(sizes)),
        tuple(reversed([int(x) * width for x in descriptor.strides[:-1]])),
        tuple(reversed(meta["block_size"])),
        swizzle=meta["swizzle"],
        fill=FILL_NAN if descriptor.padding == "nan" else FILL_ZERO,
    )
