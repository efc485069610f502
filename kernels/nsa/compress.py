"""Compressed K and V: means of blocks, times a weight of their KV head where there is one. And the way back."""

from __future__ import annotations

import torch
from torch import Tensor


def project(mean: Tensor, weight: Tensor | None) -> Tensor:
    """mean (batch, blocks, heads, dim) float32 times weight (heads, dim, dim); float32."""
    return mean if weight is None else torch.einsum("bnhd,hde->bnhe", mean, weight.float())


def project_backward(grad: Tensor, mean: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Gradients of mean, and of weight in its dtype, from that of the product, float32. Blocks that do not exist have
    means and gradients 0."""
    if weight is None:
        return grad, None
    of_mean = torch.einsum("bnhe,hde->bnhd", grad, weight.float())
    return of_mean, torch.einsum("bnhd,bnhe->hde", mean, grad).to(weight.dtype)
