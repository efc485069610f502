"""The dynamic mask: a bias from values, the top W keys of each row, and packed words."""

import math

import pytest
import torch
from sdpa_cases import random

from kernels.dynamic_mask import dynamic_mask, dynamic_mask_attention, pack_mask, top_mask, unpack_mask, value_bias


def top_by_definition(bias, window, len_q, causal):
    """bool (batch, heads, len_q, len_k), row by row."""
    batch, heads, _, len_k = bias.shape
    mask = torch.zeros(batch, heads, len_q, len_k, dtype=torch.bool)
    shift = len_k - len_q if causal == "bottom_right" else 0
    for b in range(batch):
        for h in range(heads):
            for row in range(len_q):
                seen = range(len_k if causal is None else max(0, min(len_k, row + shift + 1)))
                best = sorted(seen, key=lambda key: (-float(bias[b, h, 0, key]), key))[:window]
                mask[b, h, row, best] = True
    return mask


@pytest.mark.parametrize("window", [0, 1, 5, 9, 40])
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_the_top_keys_of_each_row_ties_at_the_lower_index(window, causal):
    bias = (random(2, 2, 1, 37).cpu() * 2).round()  # many ties
    mask = top_mask(bias, window, 21, causal=causal)
    assert torch.equal(mask.expand(2, 2, 21, 37), top_by_definition(bias, window, 21, causal))
    assert torch.equal(unpack_mask(top_mask(bias, window, 21, causal=causal, packed=True), 37), mask)


@pytest.mark.parametrize("len_k", [0, 1, 31, 32, 33, 70])
def test_packing_and_back(len_k):
    mask = random(2, 3, len_k).cpu() > 0
    words = pack_mask(mask)
    assert words.dtype == torch.int32 and words.shape == (2, 3, -(-len_k // 32))
    assert torch.equal(unpack_mask(words, len_k), mask)


def test_the_bias_is_the_formula_and_differentiable_in_all_it_is_made_of():
    value, dt_proj, A = (random(*shape).double().cpu() for shape in ((2, 2, 5, 3), (2, 6), (2,)))
    leaves = [x.requires_grad_() for x in (value, dt_proj, A)]
    flat = value.transpose(1, 2).reshape(2, 5, 6)
    wanted = torch.exp(A * torch.nn.functional.softplus(flat @ dt_proj.T)).transpose(1, 2)[:, :, None]
    torch.testing.assert_close(value_bias(*leaves), wanted, rtol=1e-5, atol=0)
    found = torch.autograd.grad(value_bias(*leaves).sum(), leaves)
    for one, other in zip(found, torch.autograd.grad(wanted.sum(), leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_bias_and_mask_belong_together():
    value, dt_proj, A = random(1, 2, 9, 4), random(2, 8), random(2)
    bias, mask = dynamic_mask(value, dt_proj, A, 3)
    assert bias.shape == (1, 2, 1, 9) and mask.shape == (1, 2, 9, 9)
    assert torch.equal(mask.sum(-1)[0, 0].cpu(), torch.arange(1, 10).clamp(max=3))


def test_gradients_flow_through_attention_into_the_selection():
    value, dt_proj, A = (random(*shape).requires_grad_() for shape in ((1, 2, 70, 8), (2, 16), (2,)))
    query, key = random(1, 4, 70, 8, dtype=torch.float16), random(1, 2, 70, 8, dtype=torch.float16)
    bias, mask = dynamic_mask(value, dt_proj, A, 9, packed=True)
    out = dynamic_mask_attention(query, key, value.half(), mask, bias, causal="top_left")
    found = torch.autograd.grad(out.float().pow(2).sum(), (value, dt_proj, A))
    kept = unpack_mask(mask, 70).repeat_interleave(2, 1)
    scores = query.float() @ key.float().repeat_interleave(2, 1).mT * 8**-0.5
    scores = (scores + value_bias(value, dt_proj, A).repeat_interleave(2, 1)).masked_fill(~kept, -math.inf)
    wanted = torch.autograd.grad((scores.softmax(-1) @ value.repeat_interleave(2, 1)).pow(2).sum(), (value, dt_proj, A))
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.01


def test_a_bias_of_several_rows_is_refused():
    with pytest.raises(ValueError, match="bias: got 2 rows"):
        top_mask(random(1, 1, 2, 5), 3, 5)
