"""Gradients of a tensor for a given dO.

PyTorch compares the shapes of dO and O with torch.fx.experimental.symbolic_shapes, which imports sympy: 0.5 to 1.7
seconds of every process. A scalar needs no dO, so one stands behind O here whose own gradient is dO, bit for bit and
with its strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Given(torch.autograd.Function):
    """A scalar 0 behind O, whose backward pass hands dO to O."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, do: Tensor) -> Tensor:
        ctx.save_for_backward(do)
        return o.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def gradients(o: Tensor, inputs: Sequence[Tensor], do: Tensor, *, unused: bool = False) -> tuple[Tensor, ...]:
    """Gradients of sum(O * dO) by each of `inputs`, with their shapes and dtypes.

    o, do   tensors of one shape; o comes from `inputs` through autograd
    unused  whether an input that O does not depend on has zeros; else it raises RuntimeError
    Raises ValueError where dO has another shape than O.
    """
    if o.shape != do.shape:
        raise ValueError(f"O has shape {tuple(o.shape)}, dO {tuple(do.shape)}")
    return torch.autograd.grad(_Given.apply(o, do), inputs, materialize_grads=unused)
