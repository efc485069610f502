"""What users call: attention whose keys are compressed blocks, a few selected blocks and a window, under gates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.blocksparse.compile import runtime
from kernels.nsa.checks import check_selection, check_settings, check_tensors, check_weight, longest_of
from kernels.nsa.launcher import Plan
from kernels.nsa.operands import Operands, Settings, readable_operands
from kernels.nsa.ops import native_sparse_forward
from kernels.nsa.plans import backward_pass, forward_pass
from kernels.nsa.selection import Selection
from kernels.sdpa.launch import compile_launches


@dataclass(frozen=True, eq=False)
class Answer:
    """The output of a call, like q, and the selection that it was computed with."""

    out: Tensor
    selection: Selection


def native_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    compress_block_size: int = 64,
    num_selected_blocks: int = 16,
    window_size: int = 512,
    w_k_compress: Tensor | None = None,
    w_v_compress: Tensor | None = None,
    gate_proj_weight: Tensor | None = None,
    causal: bool | Literal["strict"] = True,
    softmax_scale: float | None = None,
    q_tile_size: int = 256,
    num_cmp_selected_blocks: int | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    deterministic: bool = True,
    selection: Selection | None = None,
) -> Tensor:
    """Σ_b g_b · O_b over the branches: compressed blocks, selected blocks, a window; differentiable.

    q                        (batch, length, heads_q, dim) bfloat16 or float16, any strides, lengths from 0 on; dims 8
                             to 256 in steps of 8. With cu_seqlens: (total, heads_q, dim), sequences one after another
    k, v                     likewise, of heads_kv; consecutive query heads share a KV head
    compress_block_size      c, tokens of a block: a multiple of 16. Block j is tokens c·j … c·j + c - 1, of those that
                             exist; its compressed key is the mean of its keys
    num_selected_blocks      blocks that each tile of queries and head selects, by scale · mean of the tile's queries ·
                             compressed key; ties at the lower block; fewer where fewer are allowed
    window_size              W: query i sees keys i - W + 1 … i; where not causal, those with |k - i| <= W // 2
    w_k_compress, w_v_compress  (heads_kv, dim, dim): compressed keys, and values, are multiplied by it
    gate_proj_weight         (heads_q, 3, dim): g_b = sigmoid(q · gate_proj_weight[head, b]); None: 1/3 each
    causal                   True: as published; query i sees compressed block j where c·j <= i, so up to c - 1 later
                             tokens through it, and tile t may select blocks that begin before it ends.
                             "strict": no query depends on a later token: block j is seen where it ends at i or before,
                             tiles select by the mean of the queries up to their first one, blocks that end there or
                             before. False: all blocks, no mask
    softmax_scale            positive and finite, 1 / sqrt(dim) by default
    q_tile_size              queries of a tile: a multiple of 64
    num_cmp_selected_blocks  where a sequence has more groups of 128 compressed blocks than this, each tile sees the
                             compressed blocks of so many groups alone, those of the largest mean score
    cu_seqlens, max_seqlen   int32 (batch + 1,): starts of the packed sequences, and their total; tokens of the longest.
                             Without max_seqlen the device is asked, which checks cu_seqlens too
    deterministic            gradients are bitwise the same in every run
    selection                a selection to use instead of choosing one; with it no score is computed
    returns                  like q, contiguous

    Weights have q's dtype or float32, and gradients of their own dtype. Compressed keys, scores, gates and all sums are
    float32; compressed keys and values are rounded to q's dtype for their branch. A query without keys in a branch has
    0 of it. The selection has no gradient. Raises ValueError for arguments outside of the above.
    """
    return native_sparse_answer(
        q,
        k,
        v,
        compress_block_size=compress_block_size,
        num_selected_blocks=num_selected_blocks,
        window_size=window_size,
        w_k_compress=w_k_compress,
        w_v_compress=w_v_compress,
        gate_proj_weight=gate_proj_weight,
        causal=causal,
        softmax_scale=softmax_scale,
        q_tile_size=q_tile_size,
        num_cmp_selected_blocks=num_cmp_selected_blocks,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        deterministic=deterministic,
        selection=selection,
    ).out


def native_sparse_answer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    compress_block_size: int = 64,
    num_selected_blocks: int = 16,
    window_size: int = 512,
    w_k_compress: Tensor | None = None,
    w_v_compress: Tensor | None = None,
    gate_proj_weight: Tensor | None = None,
    causal: bool | Literal["strict"] = True,
    softmax_scale: float | None = None,
    q_tile_size: int = 256,
    num_cmp_selected_blocks: int | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    deterministic: bool = True,
    selection: Selection | None = None,
) -> Answer:
    """`native_sparse_attention` with the selection."""
    operands, given = checked(
        q,
        k,
        v,
        compress_block_size=compress_block_size,
        num_selected_blocks=num_selected_blocks,
        window_size=window_size,
        w_k_compress=w_k_compress,
        w_v_compress=w_v_compress,
        gate_proj_weight=gate_proj_weight,
        causal=causal,
        softmax_scale=softmax_scale,
        q_tile_size=q_tile_size,
        num_cmp_selected_blocks=num_cmp_selected_blocks,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        deterministic=deterministic,
        selection=selection,
    )
    return answer_of(operands, given)


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    compress_block_size: int = 64,
    num_selected_blocks: int = 16,
    window_size: int = 512,
    w_k_compress: Tensor | None = None,
    w_v_compress: Tensor | None = None,
    gate_proj_weight: Tensor | None = None,
    causal: bool | Literal["strict"] = True,
    softmax_scale: float | None = None,
    q_tile_size: int = 256,
    num_cmp_selected_blocks: int | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    deterministic: bool = True,
    selection: Selection | None = None,
    injection: str = "",
) -> tuple[Operands, Selection | None]:
    """The arguments of a call, checked, and the frozen selection. injection: a mutant's name."""
    check_tensors(q, k, v, cu_seqlens is not None)
    heads_kv, dim = k.shape[-2], q.shape[-1]
    check_weight("w_k_compress", w_k_compress, (heads_kv, dim, dim), q)
    check_weight("w_v_compress", w_v_compress, (heads_kv, dim, dim), q)
    check_weight("gate_proj_weight", gate_proj_weight, (q.shape[-2], 3, dim), q)
    causal_number, scale = check_settings(
        compress_block_size,
        num_selected_blocks,
        window_size,
        num_cmp_selected_blocks,
        causal,
        q_tile_size,
        softmax_scale,
        dim,
    )
    settings = Settings(
        compress_block_size,
        num_selected_blocks,
        window_size,
        num_cmp_selected_blocks or 0,
        causal_number,
        q_tile_size,
        longest_of(q, cu_seqlens, max_seqlen),
        scale,
        bool(deterministic),
        injection,
    )
    operands = Operands(q, k, v, w_k_compress, w_v_compress, gate_proj_weight, cu_seqlens, settings)
    if selection is not None:
        check_selection(selection, operands)
    return operands, selection


def answer_of(operands: Operands, given: Selection | None = None) -> Answer:
    """The answer of a checked call."""
    o, s = operands, operands.settings
    out, blocks, groups = native_sparse_forward(
        o.q,
        o.k,
        o.v,
        o.w_k,
        o.w_v,
        o.w_gate,
        o.cu,
        None if given is None else given.blocks,
        None if given is None else given.groups,
        s.numbers,
        s.scale,
        s.deterministic,
        s.injection,
    )
    return Answer(out, Selection(blocks, groups if s.grouped else None))


def plan(
    q: Tensor, k: Tensor, v: Tensor, *, backward: bool = True, products: str | None = None, **options: Any
) -> Plan:
    """What `native_sparse_attention` with these options would launch, forward and backward; nothing is launched.

    products  of the attention kernels, as `Plan` says
    """
    operands, given = checked(q, k, v, **options)
    found = Plan(products)
    operands = readable_operands(replace(operands, plan=found))
    with torch.no_grad():
        out, selection = forward_pass(operands, given)
        if backward:
            backward_pass(operands, selection, torch.empty_like(out))
    return found


def prepare(q: Tensor, k: Tensor, v: Tensor, *, backward: bool = True, **options: Any) -> int:
    """Compiles and loads the kernels of `plan` for q's device, a GPU, and launches nothing; how many there are."""
    found = plan(q, k, v, backward=backward, **options)
    for variant in found.variants:
        runtime.function(variant, runtime.arch_of(q.device)).load()
    return compile_launches(found.launches) + len(found.variants)
