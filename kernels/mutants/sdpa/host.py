"""Mutants of what the dense kernel's host side prepares: strides, sizes, scales, inputs that must stay as they
are."""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.mutants.mutant import Mutant
from kernels.mutants.sdpa.registration import MUTANTS, register_mutant
from kernels.sdpa.config import block_d
from kernels.sdpa.injection import InjectionPoints, register_injection
from kernels.sdpa.plans import Attention

register_mutant(
    "mask_strides_kept",
    "A mask's dimensions of size 1 keep their strides: other sequences, heads or rows read beside it.",
    "FlashAttention-4 04e6ee1f, be76c60f: broadcast dimensions and their stride 0",
    mask_strides=lambda mask: tuple(mask.stride()),
)


def _contiguous_gradient(name: str, tensor: Tensor) -> Tensor:
    """Memory read as if it were contiguous; where it has gaps or repeats, that cannot be."""
    dense = tensor.numel() and 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ) == (tensor.numel())
    if name != "dO" or not dense:
        return tensor
    wanted = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, wanted)


register_mutant(
    "grad_out_taken_for_contiguous",
    "The gradient of O is read as if it were contiguous: wrong where it is a transposed view.",
    "FlagGems SDPA backward: its preprocess assumes contiguous o and do",
    seen=_contiguous_gradient,
)


register_mutant(
    "block_of_query_dim_alone",
    "Tiles are as wide as a query's head dim needs: columns of values beyond that are lost where dim_v is larger.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: sizes reused from q",
    block=lambda dim, dim_v: block_d(dim, dim),
)


register_mutant(
    "every_scale_folded",
    "Also a scale of 0, or a negative one, is folded into the exponent: NaN, or an overflow where scores are large.",
    "PyTorch 2.11's CPU flash attention: is_causal with a scale that is not positive",
    folds=lambda mask_kind, scale: mask_kind != "float",
)


def _key_scaled(attention: Attention) -> Attention:
    attention.key.data.mul_(attention.scale)
    return replace(attention, scale=1.0)


register_mutant(
    "key_scaled_in_place",
    "The scale is multiplied into K, in the caller's own tensor: O is right, K and the gradients are not.",
    "flash-dmattn 4291d01, c49dead: the scale folded into K, and then applied to dQ again",
    operands=_key_scaled,
)

_SCALES: dict[tuple, float] = {}


def _scale_of_the_first_call(attention: Attention) -> Attention:
    key = (attention.query.dtype, attention.block, attention.mask_kind, attention.is_causal)
    return replace(attention, scale=_SCALES.setdefault(key, attention.scale))


register_mutant(
    "scale_of_the_first_call",
    "The scale is part of what is compiled, but not of the key: every later call has the first one's.",
    "FlashAttention-4 be76c60f, e317aa49: options that are missing in the compile key",
    operands=_scale_of_the_first_call,
)


register_mutant(
    "no_keys_divide",
    "The number of programs is found by way of a division by the tiles of keys: an error without keys.",
    "FlashAttention-4 03cd0651, 484b9813: a division by zero without keys, or without queries",
    dq_tiles=lambda tiles_of_queries, tiles_of_keys: tiles_of_queries * tiles_of_keys // tiles_of_keys,
)

_KEPT: list[Tensor] = []


def _with_a_workspace(attention: Attention) -> Attention:
    _KEPT.append(torch.zeros(8 << 20, dtype=torch.uint8))
    del _KEPT[:-32]  # of which a machine survives a session
    return attention


register_mutant(
    "workspace_kept",
    "Each pass keeps 8 MiB of workspace in a cache under a key that never comes again; 256 MiB at most.",
    "invented, after FlashAttention issue 2063: the lifetime of a backward pass's scratch",
    operands=_with_a_workspace,
)


def _in_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    group = query.shape[-3] // max(key.shape[-3], 1)
    q, k, v = query.float(), *(x.float().repeat_interleave(group, -3) for x in (key, value))
    scores = q @ k.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    lse = scores.logsumexp(-1)
    out = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp().to(query.dtype).float() @ v
    return (out.to(query.dtype), lse) if return_lse else out.to(query.dtype)


register_injection("sdpa!falls_back", replace(InjectionPoints()))  # what a GPU target prepares
MUTANTS["falls_back"] = Mutant(
    "falls_back",
    "The call is answered in plain PyTorch, without a kernel: right, and not what was to be tested.",
    "FlagGems: a benchmark without set_gems measured PyTorch against PyTorch",
    "scaled_dot_product_attention",
    _in_torch,
)
