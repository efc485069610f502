"""kernels.sdpa reads any strides, takes descriptors only where they fit, and writes all of its outputs and no more."""

import pytest
import torch
from covering import covering
from sdpa_cases import DEVICE, assert_right, qkv, random, run

from kernels.sdpa import plan, scaled_dot_product_attention
from kernels.sdpa.layout import fits_descriptors


def heads_inside(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def last_dimension_strided(x):
    return torch.stack((x, x), -1).flatten(-2)[..., ::2]


def off_by_one_element(x):
    room = x.new_empty(x.numel() + 1)
    room[1:] = x.flatten()
    return room[1:].view(x.shape)


def columns_outside(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def one_for_all_batches(x):
    return x[:1].expand_as(x)


LAYOUTS = [heads_inside, last_dimension_strided, off_by_one_element, columns_outside, one_for_all_batches]


@pytest.mark.parametrize(("layout", "dtype"), covering(LAYOUTS, [torch.float32, torch.bfloat16], strength=1))
def test_any_strides(layout, dtype):
    inputs = [layout(x.detach()).requires_grad_() for x in qkv(2, 2, 2, 66, 70, dtype=dtype)]
    assert_right(run(scaled_dot_product_attention, inputs, return_lse=True), inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_the_output_may_have_any_strides(layout):
    inputs = qkv(2, 1, 1, 66, 70)
    out = scaled_dot_product_attention(*inputs)
    grad_out = layout(random(*out.shape))
    got = torch.autograd.grad(out, inputs, grad_out)
    wanted = torch.autograd.grad(scaled_dot_product_attention(*inputs), inputs, grad_out.contiguous())
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(got, wanted, strict=True))


def test_the_gradient_of_a_sum_has_stride_zero():
    inputs = qkv(1, 2, 2, 66, 70)
    scaled_dot_product_attention(*inputs).sum().backward()
    wanted = torch.autograd.grad(
        scaled_dot_product_attention(*inputs).mul(torch.ones(70, device=DEVICE)[:1]).sum(), inputs
    )
    assert all((x.grad - y).abs().max() < 1e-5 for x, y in zip(inputs, wanted, strict=True))


def test_descriptors_are_taken_only_where_they_fit():
    x = random(2, 2, 66, 16)
    assert fits_descriptors(x, heads_inside(x), x[:1], x[..., :8])
    assert not fits_descriptors(x, last_dimension_strided(x))
    assert not fits_descriptors(off_by_one_element(x))
    assert not fits_descriptors(columns_outside(x))
    assert not fits_descriptors(one_for_all_batches(x))
    assert not fits_descriptors(x[:0])
    assert not fits_descriptors(random(2, 2, 66, 17)), "rows of 68 bytes"
    assert not fits_descriptors(random(2, 2, 66, 20, dtype=torch.bfloat16)), "rows of 40 bytes"


def test_a_plan_says_which_layout_its_launches_read():
    inputs = qkv()
    assert all(launch.constants["DESCRIPTOR"] for launch in plan(*inputs))
    assert not plan(columns_outside(inputs[0].detach()), *inputs[1:])[0].constants["DESCRIPTOR"]


@pytest.mark.skipif(DEVICE != "cpu", reason="tiles differ between the layouts on a GPU")
def test_both_layouts_give_the_same_bits():
    inputs = qkv(1, 2, 2, 66, 70, dtype=torch.bfloat16)
    strided = [columns_outside(x.detach()).requires_grad_() for x in inputs]
    results = [run(scaled_dot_product_attention, x, return_lse=True) for x in (inputs, strided)]
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    covering([(66, 70, 16), (64, 64, 20), (1, 129, 24)], [torch.float32, torch.bfloat16], strength=1),
)
def test_every_element_is_written_and_none_beyond(guarded, shape, dtype):
    len_q, len_k, dim = shape
    inputs = [*qkv(1, 3, 3, len_q, len_k, dim, dtype=dtype), random(3, 1, len_k).requires_grad_()]
    got = run(scaled_dot_product_attention, inputs, return_lse=True)
    assert not any(torch.isnan(tensor).any() for tensor in got.values())
    assert guarded()


def test_offsets_beyond_32_bits():
    rows, stride = 3, 2**30
    try:
        room = torch.empty(stride * (rows - 1) + 16, dtype=torch.float16, device=DEVICE)
    except (RuntimeError, torch.OutOfMemoryError):
        pytest.skip("no room for 4 GiB of addresses")
    key = room.as_strided((1, 1, rows, 16), (0, 0, stride, 1))
    key.copy_(random(1, 1, rows, 16))
    query, _, value = qkv(1, 1, 1, 5, rows, dtype=torch.float16)
    out = scaled_dot_product_attention(query, key, value)
    assert torch.equal(out, scaled_dot_product_attention(query, key.contiguous(), value))


def test_results_are_bitwise_the_same_in_every_run():
    inputs = [*qkv(1, 4, 2, 70, 66, dtype=torch.bfloat16), random(1, 66, dtype=torch.bfloat16).requires_grad_()]
    runs = [run(scaled_dot_product_attention, inputs, return_lse=True, enable_gqa=True) for _ in range(2)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
