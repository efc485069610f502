"""Sizes of nothing, biases that may not count, and what kernels.dynamic_mask refuses."""

import math

import pytest
import torch
from dynamic_mask_cases import Call, complaints, got_and_wanted, tensors_of
from sdpa_cases import random

from kernels.dynamic_mask import dynamic_mask_answer, dynamic_mask_attention, pack_mask


@pytest.mark.parametrize("lengths", [((0,), (70,)), ((9,), (0,)), ((0,), (0,))], ids=str)
def test_no_queries_or_no_keys(guarded, lengths):
    call = Call(*lengths, mask="f1ff", bias="f11f")
    got, _, _ = got_and_wanted(call)
    assert not got["out"].any() and (got["lse"] == -math.inf).all()
    assert all(not grad.any() for name, grad in got.items() if name.startswith("d"))


def test_a_bias_may_be_nan_where_a_pair_does_not_count():
    call = Call((9,), (70,), 2, 1, mask="1kff", bias="1kff")
    *qkv, mask, bias = tensors_of(call)
    hidden = torch.where(mask, bias.detach(), math.nan).requires_grad_()
    assert not complaints(call, (*qkv, mask, hidden))


def test_a_bias_of_minus_infinity_masks():
    query, key, value, mask, _ = tensors_of(Call((9,), (70,), mask="1kff"))
    mask[:, :, 3] = False
    bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, -math.inf)
    bias.requires_grad_()
    by_mask, by_bias = dynamic_mask_answer(query, key, value, mask), dynamic_mask_answer(query, key, value, None, bias)
    assert torch.equal(by_mask.out, by_bias.out) and torch.equal(by_mask.lse, by_bias.lse)
    grads = torch.autograd.grad(by_mask.out.float().sum(), (query, key, value))
    *others, of_bias = torch.autograd.grad(by_bias.out.float().sum(), (query, key, value, bias))
    assert all(torch.equal(one, other) for one, other in zip(grads, others, strict=True))
    assert not of_bias[~mask].any() and of_bias[mask].any()


def test_a_row_without_a_key_is_zero_and_so_are_its_gradients():
    query, key, value, _, bias = tensors_of(Call((9,), (70,), 1, 1, bias="11ff"))
    mask = torch.ones(1, 1, 9, 70, dtype=torch.bool, device=query.device)
    mask[:, :, 4] = False
    answer = dynamic_mask_answer(query, key, value, mask, bias)
    dq, dbias = torch.autograd.grad(answer.out.float().sum(), (query, bias))
    assert not answer.out[:, :, 4].any() and (answer.lse[:, :, 4] == -math.inf).all()
    assert not dq[:, :, 4].any() and not dbias[:, :, 4].any() and dbias[:, :, 5].any()


def test_dbias_of_skipped_tiles_is_zero(guarded):
    query, key, value = (random(1, 1, 70, 16, dtype=torch.float16) for _ in "qkv")
    mask = torch.zeros(1, 1, 70, 70, dtype=torch.bool, device=query.device)
    mask[..., 65:] = True
    bias = torch.full((1, 1, 70, 70), math.nan, dtype=query.dtype, device=query.device)
    bias[..., 65:] = 0.5
    bias.requires_grad_()
    out = dynamic_mask_attention(query, key, value, mask, bias)
    (grad,) = torch.autograd.grad(out.float().pow(2).sum(), bias)
    assert not grad[..., :65].any() and grad[..., 65:].any()


def test_nothing_is_read_for_skipped_tiles(guarded):
    """NaN that is multiplied by a probability of 0 stays NaN: keys and values of empty tiles are not multiplied."""
    query, key, value, mask, bias = tensors_of(Call((70,), (130,), 2, 1, mask="11ff", bias="11ff"))
    mask[..., :64] = False
    hidden = [x.detach().clone() for x in (key, value, bias)]
    for x in hidden[:2]:
        x[:, :, :64] = math.nan
    hidden[2][..., :64] = math.nan
    leaves = [x.requires_grad_() for x in (query, *hidden)]
    answer = dynamic_mask_answer(*leaves[:3], mask, leaves[3])
    grads = torch.autograd.grad(answer.out.float().pow(2).sum(), leaves)
    assert all(x.isfinite().all() for x in (answer.out, *grads)) and grads[1][:, :, 64:].any()
    assert not grads[1][:, :, :64].any() and not grads[2][:, :, :64].any() and not grads[3][..., :64].any()


def test_other_strides_give_the_same_answers():
    call = Call((33,), (40,), 2, 1, mask="1kff", bias="1kff")
    query, key, value, mask, bias = tensors_of(call)
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (query, key, value)]
    wide = torch.nn.functional.pad(mask, (0, 7))[..., :40]
    assert not complaints(call, (*turned, wide, bias))


def test_words_whose_columns_lie_apart_are_the_same_mask():
    """Of tensors that are loaded 16 bytes at a time, which words never are."""
    query, key, value, mask, _ = tensors_of(Call((64,), (160,), 1, 1, 32, 32, mask="11ff"))
    mask[:] = False
    mask[:, :, 5, 100] = True
    words = pack_mask(mask)
    apart = words.mT.contiguous().mT
    assert apart.stride(3) != 1
    one, other = (dynamic_mask_answer(query, key, value, given) for given in (words, apart))
    assert torch.equal(one.out, other.out) and torch.equal(one.tiles, other.tiles)
    assert one.out[0, 0, 5].any()


REFUSED = {
    "query: got torch.float32": lambda q, k, v: ((q.float(), k, v), {}),
    "query: got 3 dimensions": lambda q, k, v: ((q[0], k, v), {}),
    "key: got torch.bfloat16": lambda q, k, v: ((q, k.bfloat16(), v), {}),
    "key: got dim 8": lambda q, k, v: ((q, k[..., :8], v), {}),
    "key: got 3 heads": lambda q, k, v: ((q, *(x[:, :1].expand(-1, 3, -1, -1) for x in (k, v))), {}),
    "key: got batch 2": lambda q, k, v: ((q, k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1)), {}),
    "value: got": lambda q, k, v: ((q, k, v[:, :, :4]), {}),
    "causal: got 'left'": lambda q, k, v: ((q, k, v), {"causal": "left"}),
    "scale: got inf": lambda q, k, v: ((q, k, v), {"scale": math.inf}),
    "softcap: got -1": lambda q, k, v: ((q, k, v), {"softcap": -1.0}),
    "num_splits: got 99": lambda q, k, v: ((q, k, v), {"num_splits": 99}),
    "mask: got torch.float16": lambda q, k, v: ((q, k, v), {"mask": q.new_ones(1, 1, 5, 5)}),
    "mask: got shape": lambda q, k, v: ((q, k, v), {"mask": q.new_ones(1, 1, 5, 4) > 0}),
    "bias: got torch.bool": lambda q, k, v: ((q, k, v), {"bias": q.new_ones(1, 1, 5, 5) > 0}),
    "cu_seqlens_k: got None": lambda q, k, v: ((q[0], k[0], v[0]), {"cu_seqlens_q": q.new_ones(2).int()}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_names_the_argument(message):
    args, options = REFUSED[message](*(random(1, 2, 5, 16, dtype=torch.float16) for _ in "qkv"))
    with pytest.raises(ValueError, match=message):
        dynamic_mask_attention(*args, **options)
