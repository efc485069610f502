"""Public functions: attention over block lists, differentiable, with LSE."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.call_checks import check_call
from kernels.blocksparse.compile.runtime import arch_of
from kernels.blocksparse.halved_calls import halved_for_call
from kernels.blocksparse.lists.builder import TILES
from kernels.blocksparse.lists.schedule import Schedule, schedule_of
from kernels.blocksparse.lists.types import OPEN, BlockSparse
from kernels.blocksparse.ops import block_sparse_forward, flatten
from kernels.blocksparse.spec.variant import (
    LARGE_TILES,
    LARGEST_DIM,
    PADDED_DIMS,
    PAIR,
    PAIR_KEYS,
    PRODUCTS,
    WIDE,
    forward_products,
)

DTYPES = (torch.bfloat16, torch.float16)
NUMBERS: Any = (Real, torch.SymInt, torch.SymFloat)
SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: BlockSparse,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool | None = None,
    schedule: Schedule | str | Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    lengths_q: Tensor | None = None,
    lengths_k: Tensor | None = None,
    products: str | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax over the listed blocks of softcap(scale · Q K^T), times V; differentiable in q, k and v.

    q              (batch, heads_q, len_q, dim) bfloat16 or float16, any strides; dims 8 to 256 in steps of 8. With
                   cu_seqlens: (total_q, heads_q, dim), sequences one after another
    k, v           (batch, heads_kv, len_k, dim), or (total_k, heads_kv, dim); consecutive query heads share a KV head
    blocks         which tiles are computed and how partial ones are masked; its device is q's. Every sequence's own
                   length is applied besides. Gradients above head dim 128 take tiles of 64 keys (NOTE [large dims] of
                   backward/tiling.py): lists of 128 are halved at the first call with each set of lengths, and at
                   every one under torch.compile and CUDA-graph capture (`halves.halve_keys` does it once). Tiles of
                   192 queries, of lists without backward lists, are for products by wgmma and dims up to 64
    scale          positive and finite, 1 / sqrt(dim) by default
    softcap        scores become softcap · tanh(score / softcap); 0 for none
    deterministic  True: gradients bitwise the same in every run, as the adds to dQ are ordered by blocks.order, which
                   is computed at each call where it is None. False: adds are atomic, in any order. None: whichever
                   takes less time (launch/faster_adds.py), so that nothing is promised of their bits
    schedule       another order of the KV tiles than blocks.schedule: a Schedule, "ascending", "descending", or the
                   permutation itself; its ranks are computed at each call (`write_order.with_order` does it once).
                   Atomic gradients follow a permutation alone: else the order is LPT (blocks.lpt). blocks.paired,
                   which has an order of its own, is then not used
    cu_seqlens_*   int32 (batch + 1,): starts of the packed sequences, and their total
    lengths_*      int32 (batch,): lengths of padded sequences; what lies beyond is read as padding
    products       "mma", on every arch; "wgmma", on Hopper: by the forward kernel, and by the backward ones for tiles
                   of 128 keys at dims that are padded to 64 and 128; "tcgen05", on Blackwell: by the forward kernel
                   for tiles of 128 queries and, up to dim 128, of 256 (blocks.wide), and by the backward one for tiles
                   of 128 x 128 at dims that are padded to 64 and 128, or 128 x 256 by pairs of CTAs (blocks.paired;
                   only the emulated GPU has run them); None for the fastest on q's device
    returns        out like q, contiguous; lse float32 (batch, heads_q, len_q) or (heads_q, total_q), natural logarithm.
                   A row without keys, or of padding, has out 0, lse -inf and gradients 0

    Raises ValueError for whatever is outside of the above. The contents of `blocks` are checked, which asks the device,
    at the first call with each BlockSparse and each set of lengths (at every call where lengths or a permutation were
    made in inference mode, which counts no changes); they must not be changed in place afterwards. They are not checked
    under torch.compile or CUDA-graph capture: call once before, or `lists.validate.contents.check_contents`.
    """
    arguments = operator_arguments(
        q, k, v, blocks,
        scale=scale, softcap=softcap, deterministic=deterministic, schedule=schedule,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, lengths_q=lengths_q, lengths_k=lengths_k,
        products=products,
    )  # fmt: skip
    return block_sparse_forward(*arguments, "", products or "")


def operator_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: BlockSparse,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool | None = None,
    schedule: Schedule | str | Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    lengths_q: Tensor | None = None,
    lengths_k: Tensor | None = None,
    products: str | None = None,
) -> tuple[Any, ...]:
    """The operator's arguments for a call of `block_sparse_attention`, checked; without its last two, the injection and
    the products. Raises what it raises."""
    lengths = _check_tensors(q, k, v, cu_seqlens_q, cu_seqlens_k, lengths_q, lengths_k)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    for name, number, least in (("scale", scale, "positive"), ("softcap", softcap, "0 or positive")):
        if not isinstance(number, NUMBERS):  # a tensor's gradient would be lost
            raise ValueError(f"{name}: needs a number, got {type(number).__name__}")
        if not (SMALLEST <= number <= LARGEST or (number == 0 and name == "softcap")):
            raise ValueError(f"{name}: needs a finite number, {least}, and normal in float32, got {number}")
    if products not in (None, *PRODUCTS):
        raise ValueError(f"products: needs None or one of {PRODUCTS}, got {products!r}")
    if not isinstance(blocks, BlockSparse):
        raise ValueError(f"blocks: needs a BlockSparse, got {type(blocks).__name__}")
    if products == "tcgen05" and blocks.tile_m not in (128, PAIR):
        raise ValueError(f"blocks.tile_m: needs 128 or {PAIR} for products 'tcgen05', got {blocks.tile_m}")
    for of, (tile_m, most) in LARGE_TILES.items():
        if blocks.tile_m == tile_m:
            _check_large_tile(q, products, of, tile_m, most)
    if blocks.tile_n not in TILES:
        raise ValueError(f"blocks.tile_n: needs one of {TILES}, got {blocks.tile_n}; lists of 256 are blocks.paired")
    rescheduled = blocks
    if schedule is not None:
        rescheduled = replace(blocks, schedule=schedule_of(schedule), order=None, paired=None)
    backward = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    check_call(q, k, blocks, rescheduled, lengths, backward)
    if blocks.wide is not None:
        if blocks.wide.tile_m not in (WIDE, PAIR) or blocks.wide.wide is not None:
            raise ValueError(f"blocks.wide: needs lists of tiles of {WIDE} or {PAIR} queries, got {blocks.wide.tile_m}")
        check_call(q, k, blocks.wide, blocks.wide, lengths, False)
    if blocks.paired is not None:
        _check_paired(blocks.paired)
        check_call(q, k, blocks.paired, blocks.paired, lengths, True)
    if backward and q.shape[-1] > LARGEST_DIM[blocks.tile_n]:
        rescheduled = halved_for_call(blocks, rescheduled, k, lengths)
    lists, numbers = flatten(rescheduled)
    ordered = None if deterministic is None else bool(deterministic)
    return q, k, v, lengths, lists, numbers, float(scale), float(softcap), ordered


def _check_paired(paired: BlockSparse) -> None:
    """Raises ValueError where lists of pairs of CTAs have other tiles, no backward lists, or lists beside them."""
    tiles = (paired.tile_m, paired.tile_n)
    if tiles != (128, PAIR_KEYS) or paired.backward is None or (paired.wide, paired.paired) != (None, None):
        raise ValueError(f"blocks.paired: needs lists of tiles of 128 x {PAIR_KEYS} with backward lists, got {tiles}")


def _check_large_tile(q: Tensor, products: str | None, of: str, tile_m: int, most: int) -> None:
    """Raises ValueError where no kernel takes tiles of so many queries: those with products `of`, up to head dim
    `most`, do."""
    needs = f"blocks.tile_m: {tile_m} needs"
    if q.shape[-1] > most:
        raise ValueError(f"{needs} a head dim up to {most}, got {q.shape[-1]}")
    if products is None and q.device.type == "cuda":
        products = forward_products(arch_of(q.device), tile_m)
    if products != of:
        gpu = {"wgmma": "Hopper", "tcgen05": "Blackwell"}[of]
        raise ValueError(f"{needs} products {of!r}, which {gpu} has, got {products!r}")


def _check_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    lengths_q: Tensor | None,
    lengths_k: Tensor | None,
) -> list[Tensor]:
    """The operators' `lengths`."""
    packed, ragged = cu_q is not None or cu_k is not None, lengths_q is not None or lengths_k is not None
    if packed and ragged:
        raise ValueError("lengths_q: needs None where sequences are packed (cu_seqlens_q), got a tensor")
    if packed and (cu_q is None or cu_k is None):
        raise ValueError("cu_seqlens_q: needs cu_seqlens_k beside it, got one of the two")
    dims = 3 if packed else 4
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name}: needs a tensor, got {type(x).__name__}")
    if q.dtype not in DTYPES:
        raise ValueError(f"q: needs bfloat16 or float16, got {q.dtype}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != dims:
            needs = "(total, heads, dim) with cu_seqlens" if packed else "(batch, heads, length, dim)"
            raise ValueError(f"{name}: needs {dims} dimensions, {needs}, got {x.dim()}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name}: needs q's {q.dtype} on {q.device}, got {x.dtype} on {x.device}")
    if v.shape != k.shape:
        raise ValueError(f"v: needs k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
    if k.shape[-1] != q.shape[-1] or (not packed and k.shape[0] != q.shape[0]):
        raise ValueError(f"k: needs q's batch and dim, of {tuple(q.shape)}, got {tuple(k.shape)}")
    if q.shape[-1] % 8 or not 8 <= q.shape[-1] <= PADDED_DIMS[-1]:
        raise ValueError(f"q: needs a head dim from 8 to {PADDED_DIMS[-1]} in steps of 8, got {q.shape[-1]}")
    for name, x in (("q", q), ("k", k)):
        if (rows := x.shape[0 if packed else 2]) > OPEN:
            raise ValueError(f"{name}: needs at most {OPEN} rows, got {rows}")
    heads_q, heads_kv = q.shape[1], k.shape[1]
    if not heads_kv or heads_q % heads_kv:
        raise ValueError(f"k: needs heads that divide q's {heads_q}, got {heads_kv}")
    if packed:
        assert cu_q is not None and cu_k is not None
        return [_lengths("cu_seqlens_q", cu_q, None, q), _lengths("cu_seqlens_k", cu_k, cu_q.shape[0], q)]
    if not ragged:
        return []
    return [
        torch.full((q.shape[0],), x.shape[2], dtype=torch.int32, device=q.device)
        if given is None
        else _lengths(name, given, q.shape[0], q)
        for name, given, x in (("lengths_q", lengths_q, q), ("lengths_k", lengths_k, k))
    ]


def _lengths(name: str, given: Tensor, size: int | None, q: Tensor) -> Tensor:
    if not isinstance(given, Tensor):
        raise ValueError(f"{name}: needs an int32 tensor, got {type(given).__name__}")
    if given.dtype != torch.int32 or given.device != q.device:
        raise ValueError(f"{name}: needs int32 on {q.device}, got {given.dtype} on {given.device}")
    if given.dim() != 1 or (given.shape[0] < 2 if size is None else given.shape[0] != size):
        needs = "(batch + 1,)" if size is None else f"({size},)"
        raise ValueError(f"{name}: needs shape {needs}, got {tuple(given.shape)}")
    return given
