"""What users call: attention with a mask and a bias that are two tensors, of which empty tiles cost next to nothing."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kernels.dynamic_mask.attention import Attention
from kernels.dynamic_mask.checks import check_lengths, check_numbers, check_plane, check_splits, check_tensors
from kernels.dynamic_mask.ops import dynamic_mask_forward
from kernels.dynamic_mask.plans import backward_launches, empty_gradients, empty_outputs, forward_launches
from kernels.sdpa.launch import Launch, compile_launches


@dataclass(frozen=True)
class Answer:
    """The outputs of a call.

    out    as query, with value's head dim
    lse    (batch, heads_q, len_q), packed (heads_q, total_q), float32: natural logarithm of each row's sum
    tiles  (batch, heads_q, tiles of queries, 2) int32: the tiles of scores that forward visited, and skipped
    """

    out: Tensor
    lse: Tensor
    tiles: Tensor


def dynamic_mask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    causal: Literal["top_left", "bottom_right"] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = True,
    num_splits: int = 0,
) -> Tensor:
    """softmax(softcap(scale · query @ key^T) + bias, where mask and causality allow) @ value, differentiable.

    query       (batch, heads_q, len_q, dim) float16 or bfloat16, any strides; dims 1 to 256; lengths may be 0
    key         (batch, heads_kv, len_k, dim); heads_kv divides heads_q, consecutive query heads share a KV head
    value       (batch, heads_kv, len_k, dim_v)
    mask        (1 or batch, 1 or heads_kv or heads_q, 1 or len_q, 1 or len_k) bool, True keeps a pair; or int32 words
                of 32 keys each as `pack_mask` makes them, (…, ceil(len_k / 32)), where bits beyond len_k do not matter
    bias        of a mask's shapes; float16, bfloat16 or float32; may require a gradient. Where a pair does not count it
                is not read, or read and not used: it may be NaN there. -inf masks
    causal      query i sees keys 0 … i ('top_left'), or 0 … i + len_k - len_q ('bottom_right'), of those in mask
    scale       any finite number, 1 / sqrt(dim) by default
    softcap     cap · tanh(score / cap) before the bias; 0: none
    cu_seqlens  int32 (batch + 1): a packed call, in which query is (total_q, heads_q, dim), key and value (total_k, …),
                sequence b is rows cu_seqlens[b] … cu_seqlens[b + 1] - 1 (the last one is the total), and max_seqlen are
                the longest ones'; mask and bias have padded shapes, with those for len_q and len_k
    deterministic  False: programs that share a tile of keys add to dK and dV in any order, in less memory
    num_splits  programs that share a tile of keys in backward; 0: chosen by the sizes
    returns     out of query's shape and dtype with value's head dim, contiguous

    A row without keys has out 0 and gradients 0. Tiles of 64 x 64 scores (`config`) of which mask keeps none are
    skipped, forward and backward: no product, no softmax, no load of their bias; dBias is 0 there. Gradients are
    bitwise the same in every run. Scores and sums are float32; no tensor has the scores' size but mask, bias and its
    gradient. Raises ValueError for arguments outside of the above, RuntimeError for CPU tensors without
    TRITON_INTERPRET=1.
    """
    return dynamic_mask_answer(
        query,
        key,
        value,
        mask,
        bias,
        causal=causal,
        scale=scale,
        softcap=softcap,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        deterministic=deterministic,
        num_splits=num_splits,
    ).out


def dynamic_mask_answer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    causal: Literal["top_left", "bottom_right"] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = True,
    num_splits: int = 0,
) -> Answer:
    """`dynamic_mask_attention` with LSE, which is differentiable too, and the counts of tiles."""
    attention = checked(
        query,
        key,
        value,
        mask,
        bias,
        causal=causal,
        scale=scale,
        softcap=softcap,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    return answer_of(attention, deterministic, num_splits)


def checked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    causal: str | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    injection: str = "",
) -> Attention:
    """The arguments of a call as the operators take them, as views. injection: a mutant's name."""
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    longest = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    packed = any(value is not None for value in (*lengths.values(), *longest.values()))
    check_tensors(query, key, value, packed)
    batch, max_q, max_k = check_lengths(query, key, lengths, longest)
    direction, factor = check_numbers(causal, scale, softcap, query.shape[-1])
    for name, plane in (("mask", mask), ("bias", bias)):
        if plane is not None:
            check_plane(name, plane, (batch, query.shape[1], max_q, max_k), key.shape[1], query)
    if packed:
        query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    return Attention(
        query,
        key,
        value,
        mask,
        bias,
        cu_seqlens_q,
        cu_seqlens_k,
        max_q,
        max_k,
        direction,
        factor,
        float(softcap),
        injection,
    )


def answer_of(attention: Attention, deterministic: bool = True, num_splits: int = 0) -> Answer:
    """The outputs of a checked call."""
    check_splits(num_splits)
    a = attention
    out, lse, tiles = dynamic_mask_forward(
        a.query,
        a.key,
        a.value,
        a.mask,
        a.bias,
        a.cu_q,
        a.cu_k,
        a.max_q,
        a.max_k,
        a.causal,
        a.scale,
        a.softcap,
        num_splits,
        deterministic,
        a.injection,
    )
    return Answer(out[0].transpose(0, 1), lse[0], tiles) if a.packed else Answer(out, lse, tiles)


def plan(*args, backward: bool = True, grad_out: Tensor | None = None, **kwargs) -> list[Launch]:
    """Every launch that `dynamic_mask_attention` of the same arguments, and its backward pass, consist of.

    grad_out  of out's shape, in the layout that it will have; as out's own where it is None
    """
    settings = {name: kwargs.pop(name) for name in ("deterministic", "num_splits") if name in kwargs}
    return launches_of(checked(*args, **kwargs), backward, grad_out, **settings)


def launches_of(
    attention: Attention,
    backward: bool,
    grad_out: Tensor | None,
    deterministic: bool = True,
    num_splits: int = 0,
) -> list[Launch]:
    """`plan` of a checked call."""
    outputs = empty_outputs(attention)
    launches = forward_launches(attention, *outputs)
    if not backward:
        return launches
    out, lse, _ = outputs
    if grad_out is None:
        grad_out = out
    elif attention.packed:
        grad_out = grad_out.transpose(0, 1)[None]
    want_bias = attention.bias is not None and attention.bias.requires_grad
    grads = empty_gradients(attention, want_bias, num_splits, deterministic)
    return launches + backward_launches(attention, grad_out, None, out, lse, grads)


def prepare(*args, **kwargs) -> int:
    """Compiles and loads every kernel that `plan` of the same arguments names, and launches none of them.

    returns  how many launches there are. Does nothing under Triton's interpreter, which compiles nothing.
    """
    return compile_launches(plan(*args, **kwargs))
