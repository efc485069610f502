# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The arguments of a compiled function by name: one NamedTuple for each kind of kernel, made from its signature.

A compiled function has flat arguments, as it is called and exported from C. `entry` makes the flat parameters from
spec/signature.py, so that no list of them is written twice.
"""

import inspect
from collections import namedtuple
from collections.abc import Callable

from cuda.bindings import driver
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.common.list_reader import BlockList, Operand, Sequences
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.sequence_order import SequenceOrder
from kernels.blocksparse.spec.signature import ARGUMENTS

_SCALARS = {"int32": Int32, "int64": Int64, "float32": Float32}


def entry(kind: str) -> Callable:
    """Decorator above `@cute.jit` of a kernel's `__call__(self, arguments, stream)`, which gets the arguments of `kind`
    by name: under cute.compile it takes them one by one, in the order of the signature, and then the stream."""
    names = [name for name, _ in ARGUMENTS[kind]]
    arguments_type = namedtuple(f"{kind.title()}Arguments", names)
    types = {name: _SCALARS.get(type_, cute.Pointer) for name, type_ in ARGUMENTS[kind]}
    types["stream"] = driver.CUstream
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, both, annotation=type_) for name, type_ in types.items()]

    def decorate(function: Callable) -> Callable:
        def flat(self, *values) -> None:
            function(self, arguments_type(*values[:-1]), values[-1])

        flat.__name__, flat.__qualname__, flat.__doc__ = function.__name__, function.__qualname__, function.__doc__
        flat.__signature__ = inspect.Signature([inspect.Parameter("self", both), *parameters], return_annotation=None)
        return cute.jit(preprocess=False)(flat)  # no control flow to rewrite; that of `function` is

    return decorate


def operand(arguments, name: str) -> Operand:
    """The tensor of that name: its address, and its strides between batches, rows and heads."""
    strides = (getattr(arguments, f"{name}_stride_{of}") for of in ("batch", "row", "head"))
    return Operand(getattr(arguments, name), *strides)


def block_list(arguments, name: str) -> BlockList:
    """The partial or the full block list."""
    parts = ("count", "begin", "index", "stride_batch", "stride_head")
    return BlockList(*(getattr(arguments, f"{name}_{part}") for part in parts))


def sequences_of(arguments, name: str) -> Sequences:
    """Where the rows of q or of k lie."""
    return Sequences(*(getattr(arguments, each) for each in (f"{name}_begin", f"{name}_length", f"{name}_rows")))


def sequence_order_of(arguments, name: str) -> SequenceOrder:
    """An order of the sequences: "order", or "key_order" beside it."""
    return SequenceOrder(*(getattr(arguments, f"{name}_{part}") for part in ("sequence", "start")))


def mask_of(arguments) -> Mask:
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
