"""What flash_attn.cute's two functions promise, in plain PyTorch: a stand-in for its kernels in tests of the adapter.

Written from their documented arguments, on its own: it knows neither Problem nor Mask. Tensors are (batch, length,
heads, dim) or packed (total, heads, dim).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Dense."""
    outputs = [_one(q[b], k[b], v[b], b, options) for b in range(q.shape[0])]
    return torch.stack([o for o, _ in outputs]), torch.stack([lse for _, lse in outputs])


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Packed, by cumulative lengths; or padded, by used lengths: what lies past those is left as it was, here NaN. Keys
    may lie in pages."""
    lengths_k, keys = _sequences(k, options), _sequences(v, options)
    if "cu_seqlens_q" in options:
        ends = options["cu_seqlens_q"].tolist()
        assert options.get("max_seqlen_q") in (None, max(b - a for a, b in pairwise(ends)))
        assert options.get("min_seqlen_k") in (None, min(map(len, keys)))
        parts = [_one(q[ends[b] : ends[b + 1]], lengths_k[b], keys[b], b, options) for b in range(len(ends) - 1)]
        return torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts], 1)
    used_q = options["seqused_q"].tolist()
    o = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=q.dtype)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    rows = []
    for b in range(q.shape[0]):
        one, lse[b, :, : used_q[b]] = _one(q[b, : used_q[b]], lengths_k[b], keys[b], b, options)
        rows.append(torch.cat((one, o[b, used_q[b] :])))
    return torch.stack(rows), lse


def _sequences(x: Tensor, options: dict[str, Any]) -> list[Tensor]:
    """K or V of each sequence: (len_k, heads, dim)."""
    if "cu_seqlens_k" in options:
        ends = options["cu_seqlens_k"].tolist()
        return [x[a:b] for a, b in pairwise(ends)]
    used = options["seqused_k"].tolist()
    if "page_table" in options:
        whole = [x[row.long()].flatten(0, 1) for row in options["page_table"]]
        return [one[:length] for one, length in zip(whole, used, strict=True)]
    return [x[b, :length] for b, length in enumerate(used)]


def _one(q: Tensor, k: Tensor, v: Tensor, sequence: int, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """One sequence: (len_q, heads_q, dim_v) and (heads_q, len_q)."""
    len_q, heads_q, dim = q.shape
    group = heads_q // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scale = dim**-0.5 if options.get("softmax_scale") is None else options["softmax_scale"]
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if options.get("score_mod") is not None:
        scores = options["score_mod"](scores)
    kept = _kept(len_q, k.shape[0], heads_q, sequence, options)
    scores = scores.masked_fill(~kept, float("-inf"))
    empty = ~kept.any(-1)
    top = scores.detach().amax(-1).masked_fill(empty, 0.0) if k.shape[0] else torch.zeros(heads_q, len_q).double()
    weights = torch.exp(scores - top[..., None])
    total = weights.sum(-1)
    if options.get("learnable_sink") is not None:
        total = total + torch.exp(options["learnable_sink"].double()[:, None] - top)
    o = torch.einsum("hqk,khd->qhd", weights / total.masked_fill(empty, 1.0)[..., None], v)
    return o.to(q.dtype), (top + total.log()).masked_fill(empty, float("-inf")).float()


def _kept(len_q: int, len_k: int, heads: int, sequence: int, options: dict[str, Any]) -> Tensor:
    query, key = torch.arange(len_q)[:, None], torch.arange(len_k)[None, :]
    at = query + len_k - len_q
    if options.get("aux_scalars") is not None:
        left, right = options["aux_scalars"]
        return ((key - query <= right) & (key - query >= -left)).expand(heads, len_q, len_k)
    if options.get("mask_mod") is not None:
        kept = options["aux_tensors"][0][sequence, :, :len_q, :len_k] != 0
        lists = options.get("block_sparse_tensors")
        return kept if lists is None else _listed(lists, kept, sequence)
    left, right = options.get("window_size", (None, None))
    if options.get("causal"):
        right = 0
    kept = torch.ones(len_q, len_k, dtype=torch.bool)
    if left is not None:
        kept &= key >= at - left
    if right is not None:
        kept &= key <= at + right
    return kept.expand(heads, len_q, len_k)


def _listed(lists: Any, kept: Tensor, sequence: int) -> Tensor:
    """Of the blocks that the lists name: all pairs of the full ones, the kept pairs of the others."""
    found = torch.zeros_like(kept)
    m, n = lists.block_size
    for counts, indices, full in (
        (lists.mask_block_cnt, lists.mask_block_idx, False),
        (lists.full_block_cnt, lists.full_block_idx, True),
    ):
        b = sequence if counts.shape[0] > 1 else 0
        for head in range(kept.shape[0]):
            h = head if counts.shape[1] > 1 else 0
            for row in range(counts.shape[2]):
                for column in indices[b, h, row, : int(counts[b, h, row])].tolist():
                    block = (head, slice(row * m, row * m + m), slice(column * n, column * n + n))
                    found[block] = True if full else kept[block]
    return found
