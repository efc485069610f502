"""Planted bugs of what the dense kernel's host side prepares: strides, sizes, scales, inputs that must stay as they
are."""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.mutants.sdpa_planting import plant
from kernels.sdpa.config import block_d
from kernels.sdpa.plans import Attention

plant(
    "mask_strides_kept",
    "A mask's dimensions of size 1 keep their strides: other sequences, heads or rows read beside it.",
    "FlashAttention-4 04e6ee1f, be76c60f: broadcast dimensions and their stride 0",
    mask_strides=lambda mask: tuple(mask.stride()),
)


def _contiguous_gradient(name: str, tensor: Tensor) -> Tensor:
    """The same memory, read as if it were contiguous; where it has gaps or repeats, that cannot be."""
    dense = tensor.numel() and 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ) == (tensor.numel())
    if name != "dO" or not dense:
        return tensor
    wanted = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, wanted)


plant(
    "grad_out_taken_for_contiguous",
    "The gradient of O is read as if it were contiguous: wrong where it is a transposed view.",
    "FlagGems SDPA backward: its preprocess assumes contiguous o and do",
    seen=_contiguous_gradient,
)


plant(
    "block_of_query_dim_alone",
    "Tiles are as wide as a query's head dim needs: columns of values beyond that are lost where dim_v is larger.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: sizes reused from q",
    block=lambda dim, dim_v: block_d(dim, dim),
)


plant(
    "every_scale_folded",
    "Also a scale of 0, or a negative one, is folded into the exponent: NaN, or an overflow where scores are large.",
    "PyTorch 2.11's CPU flash attention: is_causal with a scale that is not positive",
    folds=lambda mask_kind, scale: mask_kind != "float",
)


def _key_scaled(attention: Attention) -> Attention:
    attention.key.data.mul_(attention.scale)
    return replace(attention, scale=1.0)


plant(
    "key_scaled_in_place",
    "The scale is multiplied into K, in the caller's own tensor: O is right, K and the gradients are not.",
    "flash-dmattn 4291d01, c49dead: the scale folded into K, and then applied to dQ again",
    operands=_key_scaled,
)

_SCALES: dict[tuple, float] = {}


def _scale_of_the_first_call(attention: Attention) -> Attention:
    key = (attention.query.dtype, attention.block, attention.mask_kind, attention.is_causal)
    return replace(attention, scale=_SCALES.setdefault(key, attention.scale))


plant(
    "scale_of_the_first_call",
    "The scale is part of what is compiled, but not of the key: every later call has the first one's.",
    "FlashAttention-4 be76c60f, e317aa49: options that are missing in the compile key",
    operands=_scale_of_the_first_call,
)
