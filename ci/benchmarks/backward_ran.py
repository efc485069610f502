"""A check of benchmarks: the backward pass that is timed really runs.

A benchmark that forgets its backward pass, keeps an old answer, or leaves gradients as memory was, is fast and wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SAMPLE = 1 << 20


class BackwardDidNotRunError(Exception):
    """A timed backward pass that computed no gradients."""


def check_backward(
    work: Callable[[], Sequence[Tensor | None] | None], leaves: Sequence[Tensor], grad_out: Tensor
) -> None:
    """Runs `work`, what a benchmark times, twice: the second time with -2 · grad_out in the memory of grad_out.

    work      computes the gradients of `leaves` from the values of grad_out, and returns them in their order
    grad_out  gradient of the output, any float dtype; has its old values afterwards
    Gradients are linear in grad_out, and -2 is exact in every binary dtype: the second ones are -2 times the first, but
    for sums in another order (5 % of the largest value). Looks at up to SAMPLE evenly spaced values of each gradient.
    Raises BackwardDidNotRunError where a gradient is missing, is of another shape than its leaf, is not finite, is 0
    everywhere, or did not change so.
    """
    first = _sampled(work(), leaves)
    values = grad_out.detach()
    values.mul_(-2)
    try:
        second = _sampled(work(), leaves)
    finally:
        values.mul_(-0.5)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        largest = float(one.abs().max()) if one.numel() else 0.0
        if not largest > 0:
            raise BackwardDidNotRunError(f"gradient {number}: 0 everywhere")
        if float((other + 2 * one).abs().max()) > 0.05 * 2 * largest:
            raise BackwardDidNotRunError(f"gradient {number}: does not follow the gradient of the output")


def _sampled(found: Sequence[Tensor | None] | None, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Values of each gradient, copied, float32."""
    if found is None or len(found) != len(leaves):
        raise BackwardDidNotRunError(f"{0 if found is None else len(found)} gradients of {len(leaves)} tensors")
    sampled = []
    for number, (x, leaf) in enumerate(zip(found, leaves, strict=True)):
        if x is None or x.shape != leaf.shape:
            raise BackwardDidNotRunError(f"gradient {number}: {None if x is None else tuple(x.shape)}, not its leaf's")
        step = -(-x.numel() // SAMPLE) | 1  # odd: not the same columns of all rows
        sampled.append(x.detach().reshape(-1)[::step].to(torch.float32, copy=True))
        if not bool(sampled[-1].isfinite().all()):
            raise BackwardDidNotRunError(f"gradient {number}: not finite")
    return sampled
