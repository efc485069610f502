"""Mutants of what the host launches `kernels.blocksparse` with: one wrong value among a launch's arguments, or
outputs that start as the memory was. The kernels are the correct ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.compile.supported import forward_tuning
from kernels.blocksparse.lists.types import OPEN
from kernels.blocksparse.spec.injection import HostInjection, Named
from kernels.blocksparse.spec.variant import Variant
from kernels.mutants.blocksparse.registration import register_mutant


def _values(name: str, summary: str, source: str, change: Callable[[Variant, Any], Named]) -> None:
    """`change` gets a launch's values by name, and returns those that are other than they should be."""
    register_mutant(
        name, summary, source, host=HostInjection(values=lambda variant, given: given | change(variant, given))
    )


# Where things are

_values(
    "packed_keys_begin_with_queries",
    "Packed sequences of keys begin where those of queries do: wrong where the two differ in length.",
    "FlashAttention issue 443: cu_seqlens of queries and of keys that differ",
    lambda variant, given: {"k_begin": given["q_begin"]} if "k_begin" in given else {},
)


def _contiguous(variant: Variant, given: Named) -> Named:
    q = given.get("q")
    if not isinstance(q, Tensor) or q.dim() != 4:
        return {}
    _, rows, heads, dim = q.shape
    return {"q_stride_batch": heads * rows * dim, "q_stride_head": rows * dim, "q_stride_row": dim}


_values(
    "query_strides_of_contiguous",
    "Q is read as if it were contiguous (batch, heads, rows, dim): wrong where it is a transposed view.",
    "FlagGems SDPA: strides of one operand taken for those of the others",
    _contiguous,
)


def _tiles_of_128(variant: Variant, given: Named) -> Named:
    of = {"preprocess": "o", "backward": "q", "postprocess": "dq"}.get(variant.kind, "")
    rows = given.get(of)
    if not isinstance(rows, Tensor) or rows.dim() != 3:
        return {}
    return {"tiles_total": rows.shape[0] // 128 + int(given["batch"])}


_values(
    "padded_offset_of_128",
    "Room for packed rows' statistics and for dQ is counted in tiles of 128 where tiles have 64: heads overlap.",
    "FlashAttention-4 b900a5b3, 5846714c: padded offsets with the default tile of 128",
    _tiles_of_128,
)


def _lse_of_tiles(variant: Variant, given: Named) -> Named:
    lse = given.get("lse")
    if variant.kind != "preprocess" or not isinstance(lse, Tensor) or lse.dim() != 2:
        return {}
    return {"lse_stride_head": min(int(given["m_blocks"]) * variant.tile_m, lse.shape[1])}


_values(
    "lse_stride_of_the_longest",
    "The backward pass of packed sequences reads LSE as if a head had as many rows as the longest sequence.",
    "FlashAttention-4 b3f1b6a5: a wrong index of LSE and delta",
    _lse_of_tiles,
)

_values(
    "padded_dim_for_dim",
    "Forward: rows are read and written to the width of their tile: wrong for head dims between two widths.",
    "invented, after PyTorch and FlashAttention padding a head dim and slicing the result",
    lambda variant, given: {"dim": variant.dim_padded} if variant.kind == "forward" else {},
)

# How much there is


def _whole_length(variant: Variant, given: Named) -> Named:
    k = given.get("k")
    if variant.kind != "backward" or not isinstance(k, Tensor) or k.dim() != 4:
        return {}
    length = given["k_length"]
    return {"k_length": torch.full_like(length, k.shape[1])} if isinstance(length, Tensor) else {}


_values(
    "padding_unknown_to_backward",
    "The backward pass takes each padded sequence of keys for as long as the tensor.",
    "FlashAttention-4 ea8f7350: seqused ignored in the backward pass",
    _whole_length,
)


def _fewer_tiles_of_keys(given: Any) -> Named:
    n_blocks = min(given["n_blocks"], max(given["m_blocks"], 1))
    return {"n_blocks": n_blocks, "tiles_to_launch": given["tiles_to_launch"] * n_blocks // given["n_blocks"]}


_values(
    "key_tiles_of_queries",
    "The backward pass launches as many tiles of keys as there are of queries, where these are fewer.",
    "FlagGems issue 3395: a grid sized by the tiles of the other dimension",
    lambda variant, given: _fewer_tiles_of_keys(given) if variant.kind == "backward" else {},
)

register_mutant(
    "padding_not_cleared",
    "O and LSE of padded rows are whatever the memory held.",
    "FlashAttention issue 2324 and pull request 2167: rows past the used length are left unwritten",
    host=HostInjection(clears_padding=False),
)

# Broadcast axes

_values(
    "bounds_of_the_first_head",
    "The backward pass masks every head by the first one's intervals.",
    "MagiAttention's arbitrary mask: the head index ignored in the kernel's mask and in the reference alike",
    lambda variant, given: {"bounds_stride_head": 0} if variant.kind == "backward" else {},
)

_values(
    "band_offset_of_the_first_sequence",
    "A band's offset is the first sequence's for all: wrong aligned at the bottom right, where lengths differ.",
    "invented, after broadcast batch indices in MagiAttention's arbitrary mask",
    lambda variant, given: {"band_stride": 0} if "band_stride" in given else {},
)

_values(
    "window_unknown_to_backward",
    "The backward pass applies a window's right edge alone: gradients of keys before its left one, O is right.",
    "Meta's NSA 92bc596: is_causal and window_size is None, in the backward pass of a sliding window",
    lambda variant, given: {"band_left": OPEN} if variant.kind == "backward" and variant.mask == "band" else {},
)

# Numbers

_values(
    "dq_not_scaled",
    "dQ lacks the scale that dK has: wrong unless the scale is 1.",
    "FlagGems SDPA backward: dk *= scale and dq *= ln 2, each on a line of its own",
    lambda variant, given: {"scale": 1.0} if variant.kind == "postprocess" else {},
)

_SCALES: dict[str, Any] = {}

_values(
    "scale_of_the_first_launch",
    "The scale is part of what is compiled, but not of the key: every later launch of a kernel has the first one's.",
    "FlashAttention-4 be76c60f, e317aa49: options that are missing in the compile key",
    lambda variant, given: {"scale": _SCALES.setdefault(variant.name, given["scale"])} if "scale" in given else {},
)

# Memory


def _all_scores(variant: Variant, given: Named) -> Named:
    q, k = given.get("q"), given.get("k")
    if variant.kind == "forward" and isinstance(q, Tensor) and isinstance(k, Tensor) and q.dim() == 4:
        q.new_zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), dtype=torch.float32).add_(1.0)
    return {}


_values(
    "scores_allocated",
    "Room for all scores is taken for each launch, and not used: memory grows with the square of the length.",
    "Meta's NSA: dense scores, indices and gates, out of memory at 65,536 tokens",
    _all_scores,
)

# What is compiled


def _by_length(variant: Variant, given: Named) -> Variant:
    """Some of the layout's defaults, said once more: the same kernel by another name, of which there are a few."""
    k = given.get("k")
    if variant.kind != "forward" or not isinstance(k, Tensor):
        return variant
    layout = asdict(forward_tuning(variant))
    which = 1 + k.shape[-3] % (2 ** len(layout) - 1)
    return variant.with_tuning(**{name: n for i, (name, n) in enumerate(sorted(layout.items())) if which >> i & 1})


register_mutant(
    "length_in_the_key",
    "The length of K is a part of what a forward kernel is known by: each new length compiles the same kernel again.",
    "FlashAttention-4 2ee80234, 1cc7ff67: max_seqlen in the compile key, a compile in every step of training",
    host=HostInjection(variant=_by_length),
)

# Order

_values(
    "schedule_ignored",
    "KV tiles are launched ascending whatever the schedule is, while ranks follow the schedule.",
    "FlashAttention pull request 2253: spt and the launch order disagree",
    lambda variant, given: {"schedule": 0} if variant.kind == "backward" else {},
)

_values(
    "full_ranks_forgotten",
    "Full blocks are given the ranks of the partial ones.",
    "FlashAttention pull request 2253: dq_write_order_full is an argument of its own, and may be left out",
    lambda variant, given: {"full_rank": given["partial_rank"]} if variant.kind == "backward" else {},
)

_values(
    "partial_contributors_forgotten",
    "A reversed group counts its ranks from the full blocks of a dQ tile alone: what is partial waits for what never "
    "comes.",
    "invented, after the last group of a causal mask that is reversed",
    lambda variant, given: {"contributors_partial": given["contributors_full"]} if variant.kind == "backward" else {},
)


def _with_orders(given: Named, part: str, change: Callable[[Tensor], Tensor]) -> Named:
    """Changes a part of every order of the sequences, where there is one."""
    orders = {name: given.get(name) for name in (f"order_{part}", f"key_order_{part}")}
    return {name: change(tensor) for name, tensor in orders.items() if isinstance(tensor, Tensor)}


def _without_last(start: Tensor) -> Tensor:
    before = start[start < start[-1]]
    return start.clamp(max=before[-1]) if len(before) else start


_values(
    "sequence_order_inverted",
    "The order of packed sequences says where each one comes, not which one comes: tiles of some are left out.",
    "invented, after sequences that are launched by length: a sort's inverse permutation",
    lambda variant, given: _with_orders(given, "sequence", lambda x: x.argsort().to(torch.int32)),
)

_values(
    "last_sequence_left_out",
    "The tiles of all packed sequences are summed up without those of the last one that has some.",
    "invented, after sequences that are launched by length: an exclusive prefix sum for an inclusive one",
    lambda variant, given: _with_orders(given, "start", _without_last),
)
