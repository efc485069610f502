"""Targets that use memory which is not theirs, or all of it."""

from __future__ import annotations

import ctypes
import gc

import torch
from honest import Result, attention, fake
from torch import Tensor

from oracles.error_budget.budget import Budget

_STEP = 32 << 20
_kept: list[Tensor] = []


@fake("allocates_without_end")
def allocates_without_end(*arguments) -> Result:
    """Allocates and touches memory until someone stops it."""
    hoard = []
    while True:
        hoard.append(torch.ones(_STEP, dtype=torch.uint8))


@fake("leaks")
def leaks(*arguments) -> Result:
    """Right, but keeps 32 MiB of every run."""
    _kept.append(torch.ones(_STEP, dtype=torch.uint8))
    return attention(*arguments)


@fake("writes_before_an_input")
def writes_before_an_input(q, *arguments) -> Result:
    """Writes four bytes just before q."""
    answer = attention(q, *arguments)
    ctypes.memset(q.data_ptr() - 4, 0x5A, 4)
    return answer


@fake("writes_after_an_input")
def writes_after_an_input(q, k, *arguments) -> Result:
    """Writes four bytes just after the last element of k."""
    answer = attention(q, k, *arguments)
    ctypes.memset(_end(k), 0x5A, 4)
    return answer


@fake("writes_before_its_output")
def writes_before_its_output(*arguments) -> Result:
    """Writes four bytes just before O."""
    o, lse = attention(*arguments)
    return _CopyAndSpill.apply(o, True), lse


@fake("writes_after_its_output")
def writes_after_its_output(*arguments) -> Result:
    """Writes four bytes just after O."""
    o, lse = attention(*arguments)
    return _CopyAndSpill.apply(o, False), lse


@fake("changes_the_reference")
def changes_the_reference(*arguments) -> Result:
    """Writes where the harness keeps the right answer."""
    for budget in gc.get_objects():
        if type(budget) is Budget:
            budget.want.add_(1)
    return attention(*arguments)


@fake("changes_an_input")
def changes_an_input(q, k, v, *arguments) -> Result:
    """Doubles v after it was used."""
    answer = attention(q, k, v, *arguments)
    v.detach().mul_(2)
    return answer


class _CopyAndSpill(torch.autograd.Function):
    """The identity, through an output of its own with four bytes written beside it."""

    @staticmethod
    def forward(ctx, o, before):
        out = torch.empty_like(o)
        out.copy_(o)
        ctypes.memset(out.data_ptr() - 4 if before else _end(out), 0x5A, 4)
        return out

    @staticmethod
    def backward(ctx, do):
        return do, None


def _end(tensor: Tensor) -> int:
    """Address just past the last element."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (span if tensor.numel() else 0) * tensor.element_size()
