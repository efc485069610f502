"""What the public call accepts: each refusal is a ValueError that names the argument, what it got and what it needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.blocksparse.lists.types import OPEN
from kernels.nsa.config import GROUP
from kernels.nsa.operands import CAUSAL, Operands
from kernels.nsa.selection import Selection

DTYPES = (torch.bfloat16, torch.float16)
LARGEST_DIM = 256
UNIT = 16  # tokens: what a compressed block is a multiple of
TILE = 64  # queries: what a tile that chooses together is a multiple of


def check_tensors(q: Tensor, k: Tensor, v: Tensor, packed: bool) -> None:
    """Dtypes, devices, dimensions, heads and head dims of Q, K and V."""
    axes, form = (3, "(total, heads, dim) with cu_seqlens") if packed else (4, "(batch, length, heads, dim)")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name}: needs a tensor, got {type(x).__name__}")
        if x.dim() != axes:
            raise ValueError(f"{name}: needs {axes} dimensions, {form}, got {x.dim()}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name}: needs q's {q.dtype} on {q.device}, got {x.dtype} on {x.device}")
    if q.dtype not in DTYPES:
        raise ValueError(f"q: needs bfloat16 or float16, got {q.dtype}")
    if q.shape[-1] % 8 or not 8 <= q.shape[-1] <= LARGEST_DIM:
        raise ValueError(f"q: needs a head dim from 8 to {LARGEST_DIM} in steps of 8, got {q.shape[-1]}")
    if v.shape != k.shape:
        raise ValueError(f"v: needs k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
    if k.shape[:-2] != q.shape[:-2] or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: needs q's batch, length and dim, of {tuple(q.shape)}, got {tuple(k.shape)}")
    if not k.shape[-2] or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"k: needs heads that divide q's {q.shape[-2]}, got {k.shape[-2]}")
    if q.shape[0 if packed else 1] > OPEN:
        raise ValueError(f"q: needs at most {OPEN} rows, got {q.shape[0 if packed else 1]}")


def check_weight(name: str, weight: Tensor | None, shape: tuple[int, ...], q: Tensor) -> None:
    """A weight: q's dtype or float32, of that shape, on q's device; or None."""
    if weight is None:
        return
    if not isinstance(weight, Tensor):
        raise ValueError(f"{name}: needs a tensor or None, got {type(weight).__name__}")
    if tuple(weight.shape) != shape:
        raise ValueError(f"{name}: needs shape {shape}, got {tuple(weight.shape)}")
    if weight.dtype not in (q.dtype, torch.float32) or weight.device != q.device:
        raise ValueError(f"{name}: needs {q.dtype} or float32 on {q.device}, got {weight.dtype} on {weight.device}")


def longest_of(q: Tensor, cu: Tensor | None, given: int | None) -> int:
    """Tokens of the longest sequence: given, or asked of the device, which then checks cu_seqlens too."""
    if cu is None:
        if given is not None:
            raise ValueError(f"max_seqlen: needs cu_seqlens beside it, got {given} alone")
        return q.shape[1]
    if not isinstance(cu, Tensor) or cu.dtype != torch.int32 or cu.device != q.device:
        got = f"{cu.dtype} on {cu.device}" if isinstance(cu, Tensor) else type(cu).__name__
        raise ValueError(f"cu_seqlens: needs an int32 tensor on {q.device}, got {got}")
    if cu.dim() != 1 or cu.shape[0] < 2 or not cu.is_contiguous():
        raise ValueError(f"cu_seqlens: needs shape (batch + 1,), contiguous, got {tuple(cu.shape)}")
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int | torch.SymInt) or not 0 <= given <= OPEN:
            raise ValueError(f"max_seqlen: needs the longest sequence's length, got {given!r}")
        return given
    lengths = cu[1:] - cu[:-1]
    first, last, least, most = torch.stack((cu[0], cu[-1], lengths.min(), lengths.max())).tolist()
    if first != 0 or last != q.shape[0] or least < 0:
        raise ValueError(f"cu_seqlens: needs to ascend from 0 to {q.shape[0]}, got {cu.tolist()[:16]}")
    return int(most)


def check_settings(
    block: int,
    chosen: int,
    window: int,
    groups: int | None,
    causal: object,
    tile: int,
    scale: float | None,
    dim: int,
) -> tuple[int, float]:
    """(causal as a number, scale)."""
    numbers = (
        ("compress_block_size", block, UNIT, f"a positive multiple of {UNIT}"),
        ("q_tile_size", tile, TILE, f"a positive multiple of {TILE}"),
        ("num_selected_blocks", chosen, 1, "a positive number"),
        ("num_cmp_selected_blocks", groups, 1, "None or a positive number"),
    )
    for name, number, step, needs in numbers:
        if number is None and name == "num_cmp_selected_blocks":
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0 or number % step:
            raise ValueError(f"{name}: needs {needs}, got {number!r}")
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ValueError(f"window_size: needs a number of keys, 0 or more, got {window!r}")
    if not isinstance(causal, bool) and causal != "strict":
        raise ValueError(f"causal: needs True, False or 'strict', got {causal!r}")
    if scale is None:
        scale = dim**-0.5
    if isinstance(scale, Tensor) or not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"softmax_scale: needs a positive finite number, got {scale!r}")
    return CAUSAL[causal], float(scale)


def check_selection(selection: Selection, operands: Operands) -> None:
    """A frozen selection: shapes and dtypes, and, where the device may be asked, that its rows are as `Selection` says
    and name blocks that the longest sequence has."""
    if not isinstance(selection, Selection):
        raise ValueError(f"selection: needs a Selection or None, got {type(selection).__name__}")
    settings = operands.settings
    if (selection.groups is None) == settings.grouped:
        needs = "groups, as not all are seen" if settings.grouped else "groups None, as all are seen"
        got = "None" if selection.groups is None else "a tensor"
        raise ValueError(f"selection.groups: needs {needs} (groups of {GROUP} compressed blocks), got {got}")
    q, shape = operands.q, (operands.batch, operands.heads_q, settings.tiles)
    for name, rows, most in (
        ("blocks", selection.blocks, settings.blocks),
        ("groups", selection.groups, settings.all_groups),
    ):
        if rows is None:
            continue
        field = f"selection.{name}"
        if rows.dtype != torch.int32 or rows.device != q.device:
            raise ValueError(f"{field}: needs int32 on {q.device}, got {rows.dtype} on {rows.device}")
        if rows.dim() != 4 or tuple(rows.shape[:3]) != shape:
            raise ValueError(f"{field}: needs shape {shape} and a width, got {tuple(rows.shape)}")
        if torch.compiler.is_compiling() or (rows.is_cuda and torch.cuda.is_current_stream_capturing()):
            continue
        if rows.numel() and not bool(_ascends(rows, most)):
            raise ValueError(f"{field}: needs rows that ascend, of numbers from 0 to {most - 1}, then -1; got others")


def _ascends(rows: Tensor, most: int) -> Tensor:
    after, before = rows[..., 1:], rows[..., :-1]
    rises = (after == -1) | ((before >= 0) & (after > before))
    return rises.all() & (rows >= -1).all() & (rows < most).all()
