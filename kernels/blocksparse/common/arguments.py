# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The arguments of a compiled function by name: one NamedTuple for each kind of kernel, made from its signature.

A kernel's entry function takes this NamedTuple and the stream. CuTe DSL flattens it into the fields in their order, so
the compiled function has the flat arguments of spec/signature.py, and no list of them is written twice.
"""

from typing import Any, NamedTuple

from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.common.list_reader import BlockList, Operand
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.spec.signature import ARGUMENTS

_SCALARS = {"int32": Int32, "int64": Int64, "float32": Float32}


def _named_tuple(kind: str) -> Any:
    fields = [(name, _SCALARS.get(type_, cute.Pointer)) for name, type_ in ARGUMENTS[kind]]
    return NamedTuple(f"{kind.title()}Arguments", fields)


ForwardArguments = _named_tuple("forward")
PreprocessArguments = _named_tuple("preprocess")
BackwardArguments = _named_tuple("backward")
PostprocessArguments = _named_tuple("postprocess")

ARGUMENT_TYPES = {
    "forward": ForwardArguments,
    "preprocess": PreprocessArguments,
    "backward": BackwardArguments,
    "postprocess": PostprocessArguments,
}


def operand(arguments: Any, name: str) -> Operand:
    """The tensor of that name: its address, and its strides between batches, rows and heads."""
    strides = (getattr(arguments, f"{name}_stride_{of}") for of in ("batch", "row", "head"))
    return Operand(getattr(arguments, name), *strides)


def block_list(arguments: Any, name: str) -> BlockList:
    """The partial or the full block list."""
    parts = ("count", "begin", "index", "stride_batch", "stride_head")
    return BlockList(*(getattr(arguments, f"{name}_{part}") for part in parts))


def mask_of(arguments: Any) -> Mask:
    """The parameters of every kind of mask."""
    return Mask(
        words=arguments.mask_words,
        slot=arguments.mask_slot,
        bounds=arguments.mask_bounds,
        bounds_stride_batch=arguments.bounds_stride_batch,
        bounds_stride_head=arguments.bounds_stride_head,
        bounds_stride_func=arguments.bounds_stride_func,
        n_func=arguments.n_func,
        band_offset=arguments.band_offset,
        band_stride=arguments.band_stride,
        band_left=arguments.band_left,
        band_right=arguments.band_right,
    )
