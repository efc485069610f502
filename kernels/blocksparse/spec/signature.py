"""The flat signatures of the compiled functions: names and types in order, for building, launching and emulating alike.

This is the one place that knows the order. Host code makes the values of a launch by name, and `ordered` orders them;
a kernel's entry function takes its arguments by name (common/arguments.py).

A type is "int32", "int64", "float32", a pointer to one of them ("*int32"), DATA: a 16-byte aligned pointer to elements
of the variant's dtype, or GRADIENT: one to elements of the dtype that its gradients have. The stream comes last and is
not listed.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, TypeVar

T = TypeVar("T")

DATA = "*data"
GRADIENT = "*gradient"

Signature = tuple[tuple[str, str], ...]


def _named(kind: str, names: str) -> Signature:
    return tuple((name, kind) for name in names.split())


_SEQUENCES = (*_named("*int32", "q_begin q_length k_begin k_length"), *_named("int32", "q_rows k_rows"))


def _lists() -> Signature:
    return tuple(
        (f"{which}_{part}", kind)
        for which in ("partial", "full")
        for part, kind in (("count", "*int32"), ("begin", "*int64"), ("index", "*int32"))
    )


_SPLIT = (("split_sums", "*float32"), ("split_arrivals", "*int32"))
_MASK = _named("*int32", "mask_words mask_slot mask_bounds band_offset")


OPERANDS = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
# The names of each operand's strides in elements: between batches, rows and heads
OPERAND_STRIDES = {x: (f"{x}_stride_batch", f"{x}_stride_row", f"{x}_stride_head") for x in OPERANDS}


def _strides(operands: str) -> Signature:
    return tuple((name, "int64") for x in operands.split() for name in OPERAND_STRIDES[x])


FORWARD: Signature = (
    *_named(DATA, "q k v o"),
    ("lse", "*float32"),
    *_SEQUENCES,
    *_lists(),
    *_MASK,
    *_named("*int32", "positions order_sequence order_start tile_counter"),
    *_SPLIT,
    *_strides("q k v o"),
    *_named("int64", "lse_stride_batch lse_stride_head"),
    *_named("int64", "partial_stride_batch partial_stride_head full_stride_batch full_stride_head"),
    *_named("int64", "bounds_stride_batch bounds_stride_head bounds_stride_func"),
    *_named("int64", "positions_stride_batch positions_stride_head"),
    *_named("int32", "n_func band_stride band_left band_right"),
    *_named("int32", "batch heads_q heads_kv m_blocks dim schedule l2_head_section resident"),
    *_named("int32", "first_split split_parts"),
    *_named("float32", "scale cap"),
)

_ROWS = (*_named("*int32", "q_begin q_length"), ("q_rows", "int32"))

PREPROCESS: Signature = (
    *_named(DATA, "o do"),
    *_named("*float32", "lse lse2 delta dq_sum"),
    *_ROWS,
    *_named("*int32", "order_sequence order_start tile_counter semaphores"),
    *_strides("o do"),
    *_named("int64", "lse_stride_batch lse_stride_head"),
    *_named("int32", "batch heads_q m_blocks tiles_to_launch dim tiles_stride_batch tiles_total"),
)

DQ: Signature = (
    *_named(DATA, "q k v do"),
    ("dq", GRADIENT),
    *_named("*float32", "lse2 delta"),
    *_SEQUENCES,
    *_lists(),
    *_MASK,
    *_named("*int32", "positions order_sequence order_start tile_counter"),
    *_strides("q k v do dq"),
    *_named("int64", "partial_stride_batch partial_stride_head full_stride_batch full_stride_head"),
    *_named("int64", "bounds_stride_batch bounds_stride_head bounds_stride_func"),
    *_named("int64", "positions_stride_batch positions_stride_head"),
    *_named("int32", "n_func band_stride band_left band_right"),
    *_named("int32", "batch heads_q heads_kv m_blocks dim schedule l2_head_section resident"),
    *_named("int32", "tiles_stride_batch tiles_total"),
    *_named("float32", "scale cap"),
)

BACKWARD: Signature = (
    *_named(DATA, "q k v do"),
    *_named(GRADIENT, "dk dv"),
    *_named("*float32", "dq_sum dkv_sum lse2 delta"),
    *_SEQUENCES,
    *_lists(),
    *_named("*int32", "partial_rank full_rank contributors_partial contributors_full"),
    *_MASK,
    *_named("*int32", "positions order_sequence order_start tile_counter semaphores"),
    *_SPLIT,
    *_strides("q k v do dk dv"),
    *_named("int64", "partial_stride_batch partial_stride_head full_stride_batch full_stride_head"),
    *_named("int64", "contributors_stride_batch contributors_stride_head"),
    *_named("int64", "bounds_stride_batch bounds_stride_head bounds_stride_func"),
    *_named("int64", "positions_stride_batch positions_stride_head"),
    *_named("int32", "n_func band_stride band_left band_right"),
    *_named("int32", "batch heads_q heads_kv m_blocks n_blocks dim merged schedule pairs group_split resident"),
    *_named("int32", "tiles_to_launch reversed_from first_split split_parts"),
    *_named("int32", "tiles_stride_batch tiles_total key_tiles_stride_batch key_tiles_total"),
    *_named("float32", "scale cap"),
)

POSTPROCESS: Signature = (
    *_named(GRADIENT, "dq dk dv"),
    *_named("*float32", "dq_sum dkv_sum"),
    *_SEQUENCES,
    *_named("*int32", "order_sequence order_start key_order_sequence key_order_start semaphores"),
    *_strides("dq dk dv"),
    *_named("int32", "batch heads_q heads_kv m_blocks n_blocks tiles_to_launch key_tiles_to_launch dim group_split"),
    *_named("int32", "tiles_stride_batch tiles_total key_tiles_stride_batch key_tiles_total"),
    ("scale", "float32"),
)

ARGUMENTS: dict[str, Signature] = {
    "forward": FORWARD,
    "preprocess": PREPROCESS,
    "dq": DQ,
    "backward": BACKWARD,
    "postprocess": POSTPROCESS,
}

_NAMES = {kind: tuple(name for name, _ in signature) for kind, signature in ARGUMENTS.items()}
_ORDERED: dict[str, Any] = {kind: itemgetter(*names) for kind, names in _NAMES.items()}


def ordered(kind: str, values: Mapping[str, T]) -> tuple[T, ...]:
    """The values of a launch in the order of the signature of `kind`, in about a microsecond.

    Raises ValueError that names the arguments without a value, and the values that are no arguments.
    """
    names = _NAMES[kind]
    if len(values) == len(names):
        try:
            in_order: tuple[T, ...] = _ORDERED[kind](values)
            return in_order
        except KeyError:
            pass
    missing, unknown = [name for name in names if name not in values], sorted(set(values) - set(names))
    raise ValueError(f"values of the {kind} kernel: missing {missing}, unknown {unknown}")
