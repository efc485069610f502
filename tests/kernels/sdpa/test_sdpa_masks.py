"""attn_mask in kernels.sdpa: bool and float, every way to broadcast, rows without keys, the mask's own gradient."""

import math

import pytest
import torch
from covering import covering, daily
from sdpa_cases import DEVICE, assert_right, qkv, random, run

from kernels.sdpa import scaled_dot_product_attention

FULL = (2, 2, 66, 70)
BROADCASTS = covering(*((1, size) for size in FULL), strength=1)


def inputs_of(mask, dtype=torch.float32):
    batch, heads, len_q, len_k = FULL
    return [*qkv(batch, heads, heads, len_q, len_k, dtype=dtype), mask]


def check(inputs, **options):
    got = run(scaled_dot_product_attention, inputs, return_lse=True, **options)
    assert_right(got, inputs, **options)
    return got


@pytest.mark.parametrize(("batch", "heads", "rows", "columns"), BROADCASTS)
def test_bool_mask_broadcasts(batch, heads, rows, columns):
    check(inputs_of(random(batch, heads, rows, columns) > -0.5))


@pytest.mark.parametrize(("batch", "heads", "rows", "columns"), BROADCASTS)
def test_float_mask_broadcasts_and_so_does_its_gradient(batch, heads, rows, columns):
    got = check(inputs_of(random(batch, heads, rows, columns).requires_grad_()))
    assert got["dmask"].shape == (batch, heads, rows, columns)


@pytest.mark.parametrize("shape", daily([(70,), (66, 1), (66, 70), (2, 1, 70), ()], [(2, 1, 70), ()]))
def test_masks_of_fewer_dimensions(shape):
    check(inputs_of(random(*shape).requires_grad_()))


HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("dtype", "mask_dtype"), covering(HALF, [*HALF, torch.float32], strength=1))
def test_mask_dtype_may_differ_from_the_inputs(dtype, mask_dtype):
    inputs = inputs_of(random(2, 66, 70, dtype=mask_dtype).requires_grad_(), dtype)
    got = check(inputs)
    assert got["dmask"].dtype == mask_dtype


def test_mask_of_more_leading_dimensions():
    inputs = [x.detach().reshape(2, 1, *x.shape[1:]).requires_grad_() for x in qkv(2, 2, 2, 9, 11)]
    for shape in [(9, 11), (1, 1, 2, 9, 11), (2, 1, 1, 9, 1)]:
        check([*inputs, random(*shape).requires_grad_()])


def test_grouped_heads_share_the_gradient_of_a_mask():
    check([*qkv(2, 4, 2, 20, 30), random(1, 20, 30).requires_grad_()], enable_gqa=True)


@pytest.mark.parametrize(("kind", "scale"), covering(["bool", "float"], [0.0, -0.5], strength=1))
def test_masks_with_a_scale_that_is_not_positive(kind, scale):
    mask = random(66, 70)
    check(inputs_of(mask > 0 if kind == "bool" else mask.requires_grad_()), scale=scale)


@pytest.mark.parametrize("strides", daily(["transposed", "every second", "expanded"], ["expanded"]))
def test_masks_of_any_strides(strides):
    base = {
        "transposed": lambda: random(2, 2, 70, 66).transpose(-1, -2),
        "every second": lambda: random(2, 2, 66, 140)[..., ::2],
        "expanded": lambda: random(2, 1, 1, 70).expand(2, 2, 66, 70),
    }[strides]()
    check(inputs_of(base.detach().requires_grad_()))
    check(inputs_of(base > 0))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_without_keys_are_zero(kind):
    keep = random(1, 1, 66, 70) > 0
    keep[:, :, ::3] = False
    keep[:, :, 64:] = False
    mask = keep if kind == "bool" else torch.where(keep, 0.5, -math.inf).requires_grad_()
    got = check(inputs_of(mask))
    rows = ~keep.any(-1)[0, 0]
    assert rows.sum() >= 23
    assert not got["out"][:, :, rows].any() and not got["dquery"][:, :, rows].any()
    assert (got["lse"][:, :, rows] == -math.inf).all()


def test_a_mask_without_any_key_gives_zero_gradients():
    inputs = inputs_of(torch.zeros(66, 70, dtype=torch.bool, device=DEVICE))
    got = run(scaled_dot_product_attention, inputs, return_lse=True)
    assert (got["lse"] == -math.inf).all()
    assert not any(got[name].any() for name in ("out", "dquery", "dkey", "dvalue"))


def test_rows_without_keys_ignore_a_gradient_that_is_not_finite():
    mask = torch.ones(66, 70, dtype=torch.bool, device=DEVICE)
    mask[5] = False
    inputs = inputs_of(mask)
    out, lse = scaled_dot_product_attention(*inputs, return_lse=True)
    grads = torch.autograd.grad(out.sum() + torch.exp(-lse).sum(), inputs[:3])
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_the_smallest_finite_bias_is_no_empty_row():
    bias = torch.full((66, 70), torch.finfo(torch.float32).min, device=DEVICE)
    inputs = inputs_of(bias)
    out = scaled_dot_product_attention(*inputs)
    mean = inputs[2].mean(-2, keepdim=True).expand_as(out)
    assert (out - mean).abs().max() < 1e-5


def test_first_tiles_may_be_masked_altogether():
    keep = torch.zeros(66, 70, dtype=torch.bool, device=DEVICE)
    keep[:, 68:] = True
    check(inputs_of(keep))
