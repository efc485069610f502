"""A benchmark whose backward pass is skipped is refused."""

from __future__ import annotations

import pytest
import torch

from ci.benchmarks.backward_ran import BackwardDidNotRunError, check_backward


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    return [q, k, v], torch.randn(1, 2, 40, 16, dtype=torch.bfloat16)


def attention(leaves):
    return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)


def test_a_backward_that_runs_is_let_through_and_its_inputs_stay(tensors):
    leaves, grad_out = tensors
    before = grad_out.clone()
    check_backward(lambda: torch.autograd.grad(attention(leaves), leaves, grad_out), leaves, grad_out)
    assert torch.equal(grad_out, before)


def forward_alone(leaves, grad_out, kept):
    attention(leaves)


def kept_from_before(leaves, grad_out, kept):
    return kept


def memory_as_it_was(leaves, grad_out, kept):
    attention(leaves)
    return [torch.full_like(x, torch.nan) for x in leaves]


def zeros(leaves, grad_out, kept):
    return [torch.zeros_like(x) for x in leaves]


def one_is_missing(leaves, grad_out, kept):
    return [*torch.autograd.grad(attention(leaves), leaves[:2], grad_out), None]


def one_is_kept(leaves, grad_out, kept):
    return [*torch.autograd.grad(attention(leaves), leaves[:2], grad_out), kept[2]]


def of_other_shape(leaves, grad_out, kept):
    return [x[:, :, :1] for x in torch.autograd.grad(attention(leaves), leaves, grad_out)]


@pytest.mark.parametrize(
    ("skipped", "told"),
    [
        (forward_alone, "0 gradients of 3"),
        (kept_from_before, "gradient 0: does not follow"),
        (memory_as_it_was, "gradient 0: not finite"),
        (zeros, "gradient 0: 0 everywhere"),
        (one_is_missing, "gradient 2: None"),
        (one_is_kept, "gradient 2: does not follow"),
        (of_other_shape, "gradient 0: "),
    ],
)
def test_a_backward_that_is_skipped_is_refused(tensors, skipped, told):
    leaves, grad_out = tensors
    before = grad_out.clone()
    kept = torch.autograd.grad(attention(leaves), leaves, grad_out)
    with pytest.raises(BackwardDidNotRunError, match=told):
        check_backward(lambda: skipped(leaves, grad_out, kept), leaves, grad_out)
    assert torch.equal(grad_out, before)
