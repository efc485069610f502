"""Targets that are right, but leave the process in another state than they found it in."""

from __future__ import annotations

import os

import torch
from honest import Result, attention, fake

_KEPT: list[torch.inference_mode] = []


@fake("turns_gradients_off")
def turns_gradients_off(*arguments) -> Result:
    """No call after this one has gradients."""
    answer = attention(*arguments)
    torch.set_grad_enabled(False)
    return answer


@fake("sets_the_default_dtype")
def sets_the_default_dtype(*arguments) -> Result:
    """New tensors are float64 from now on."""
    answer = attention(*arguments)
    torch.set_default_dtype(torch.float64)
    return answer


@fake("replaces_a_function")
def replaces_a_function(*arguments) -> Result:
    """Softmax is another function from now on."""
    answer = attention(*arguments)
    torch.nn.functional.softmax = lambda x, dim: x
    return answer


@fake("leaves_inference_mode_on")
def leaves_inference_mode_on(*arguments) -> Result:
    """Cannot be undone from outside."""
    answer = attention(*arguments)
    mode = torch.inference_mode()
    mode.__enter__()
    _KEPT.append(mode)
    return answer


@fake("draws_random_numbers")
def draws_random_numbers(*arguments) -> Result:
    """Advances PyTorch's generator and sets a variable of the environment, which is no finding."""
    os.environ["FAKE_VARIABLE"] = "1"
    torch.rand(3)
    return attention(*arguments)
