"""What the public call accepts: each refusal is a ValueError that names the argument, what it got and what it needs."""

import math

import torch
from torch import Tensor

from kernels.dynamic_mask.attention import CAUSAL
from kernels.dynamic_mask.config import MAX_DIM, WORD

DTYPES = (torch.float16, torch.bfloat16)
MOST_ASKED = 64
BIAS_DTYPES = (*DTYPES, torch.float32)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, packed: bool) -> None:
    """Dtypes, devices, dimensions, heads and head dims of Q, K and V."""
    axes, form = (3, "(total, heads, dim)") if packed else (4, "(batch, heads, length, dim)")
    if query.dtype not in DTYPES:
        raise ValueError(f"query: got {query.dtype}, need one of {', '.join(map(str, DTYPES))}")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != axes:
            raise ValueError(f"{name}: got {tensor.dim()} dimensions, need {axes}: {form}")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            got = f"{tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name}: got {got}, need query's {query.dtype} on {query.device}")
        if not 1 <= tensor.shape[-1] <= MAX_DIM:
            raise ValueError(f"{name}: got head dim {tensor.shape[-1]}, need 1 to {MAX_DIM}")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key: got dim {key.shape[-1]}, need query's {query.shape[-1]}")
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f"value: got {tuple(value.shape[:-1])} before its head dim, need key's {tuple(key.shape[:-1])}"
        )
    if not packed and key.shape[0] != query.shape[0]:
        raise ValueError(f"key: got batch {key.shape[0]}, need query's {query.shape[0]}")
    heads_q, heads_kv = query.shape[1], key.shape[1]
    if heads_q != heads_kv and (heads_kv == 0 or heads_q % heads_kv):
        raise ValueError(f"key: got {heads_kv} heads, need a divisor of query's {heads_q}")


def check_lengths(
    query: Tensor, key: Tensor, lengths: dict[str, Tensor | None], longest: dict[str, int | None]
) -> tuple[int, int, int]:
    """(batch, max_q, max_k). lengths and longest: the arguments of a packed call, by their names; all or none."""
    given = {**lengths, **longest}
    if all(value is None for value in given.values()):
        return query.shape[0], query.shape[2], key.shape[2]
    for name, value in given.items():
        if value is None:
            raise ValueError(f"{name}: got None, need it in a packed call, as {', '.join(given)}")
    sizes = []
    for name, cu in lengths.items():
        assert cu is not None
        if cu.dtype != torch.int32 or cu.dim() != 1 or cu.shape[0] < 1 or cu.device != query.device:
            got = f"{cu.dtype} {tuple(cu.shape)} on {cu.device}"
            raise ValueError(f"{name}: got {got}, need int32 (batch + 1) on {query.device}")
        if not cu.is_contiguous():
            raise ValueError(f"{name}: got stride {cu.stride(0)}, need a contiguous tensor")
        sizes.append(cu.shape[0] - 1)
    if sizes[0] != sizes[1]:
        raise ValueError(f"cu_seqlens_k: got {sizes[1]} sequences, need cu_seqlens_q's {sizes[0]}")
    most = []
    for name, value in longest.items():
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}: got {value!r}, need the longest sequence's length")
        most.append(value)
    return sizes[0], most[0], most[1]


def check_plane(name: str, plane: Tensor, full: tuple[int, int, int, int], heads_kv: int, query: Tensor) -> None:
    """A mask or a bias: 4-D, each size 1 or full, and heads also heads_kv; full is (batch, heads_q, max_q, max_k)."""
    packed = plane.dtype == torch.int32
    known = (torch.bool, torch.int32) if name == "mask" else BIAS_DTYPES
    if plane.dtype not in known:
        raise ValueError(f"{name}: got {plane.dtype}, need one of {', '.join(map(str, known))}")
    if plane.device != query.device:
        raise ValueError(f"{name}: got device {plane.device}, need query's {query.device}")
    columns = ((full[3] + WORD - 1) // WORD,) if packed else (1, full[3])
    able = ((1, full[0]), (1, heads_kv, full[1]), (1, full[2]), columns)
    if plane.dim() != 4 or any(size not in sizes for size, sizes in zip(plane.shape, able, strict=True)):
        words = " or ".join(map(str, columns)) + " words" * packed
        need = f"batch 1 or {full[0]}, heads 1, {heads_kv} or {full[1]}, rows 1 or {full[2]}, columns {words}"
        raise ValueError(f"{name}: got shape {tuple(plane.shape)}, need {need}")


def check_numbers(causal: str | None, scale: float | None, softcap: float, dim: int) -> tuple[int, float]:
    """(causal as a number, scale)."""
    if causal not in CAUSAL:
        raise ValueError(f"causal: got {causal!r}, need None, 'top_left' or 'bottom_right'")
    if scale is None:
        scale = 1.0 / math.sqrt(dim)
    elif not math.isfinite(scale):
        raise ValueError(f"scale: got {scale}, need a finite number")
    if not (math.isfinite(softcap) and softcap >= 0):
        raise ValueError(f"softcap: got {softcap}, need 0 (none) or a positive finite number")
    return CAUSAL[causal], float(scale)


def check_splits(num_splits: int) -> None:
    """The number of programs that share a tile of keys."""
    if not 0 <= num_splits <= MOST_ASKED:
        raise ValueError(f"num_splits: got {num_splits}, need 0 (chosen by the sizes) to {MOST_ASKED}")
