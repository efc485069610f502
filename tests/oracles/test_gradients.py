"""oracles/gradients.py: PyTorch's gradients, without what torch.autograd.grad imports for a dO."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from oracles.gradients import gradients

IMPORTS = """
import sys
import torch
from oracles.gradients import gradients
x = torch.ones(2, 3, requires_grad=True)
gradients(x * 2, [x], torch.ones(2, 3))
sys.exit("sympy" in sys.modules)
"""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_they_are_those_of_torch_autograd_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k = (torch.randn(2, 4, 9, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    do = torch.randn(2, 4, 8, 9, dtype=dtype).transpose(-1, -2)

    def o() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k)

    for found, expected in zip(gradients(o(), [q, k], do), torch.autograd.grad(o(), [q, k], do), strict=True):
        assert torch.equal(found, expected)


def test_do_reaches_the_kernel_with_its_strides() -> None:
    seen: list[tuple[int, ...]] = []
    x = torch.randn(3, 5, requires_grad=True)
    o = x * 2
    assert o.grad_fn is not None
    o.grad_fn.register_prehook(lambda grads: seen.append(grads[0].stride()))
    gradients(o, [x], torch.randn(5, 3).t())
    assert seen == [(1, 3)]


def test_an_unused_input_has_zeros_only_if_asked_for() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="not have been used"):
        gradients(x * 2, [x, y], torch.ones(2))
    assert torch.equal(gradients(x * 2, [x, y], torch.ones(2), unused=True)[1], torch.zeros(3))


def test_another_shape_is_one_line() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"^O has shape \(2, 3\), dO \(3, 2\)$"):
        gradients(x * 2, [x], torch.ones(3, 2))


def test_sympy_is_not_imported() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORTS], check=False).returncode == 0
