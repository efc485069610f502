"""kernels.sdpa computes attention and its gradients: dtypes, dims, lengths, heads, scales, causality."""

import pytest
import torch
from sdpa_cases import assert_right, qkv, run

from kernels.sdpa import scaled_dot_product_attention

# heads_q, heads_kv, length, dim: the table of the FlagGems pull request whose backward pass was wrong in 9 of the 14.
SEED_TABLE = [
    (8, 8, 128, 64),
    (8, 8, 127, 64),
    (8, 8, 120, 64),
    (8, 8, 64, 64),
    (8, 8, 129, 64),
    (8, 8, 255, 64),
    (8, 4, 128, 64),
    (8, 4, 127, 64),
    (8, 4, 120, 64),
    (8, 4, 129, 64),
    (8, 8, 128, 128),
    (8, 8, 127, 128),
    (8, 8, 120, 128),
    (8, 8, 64, 128),
]


def check(inputs, **options):
    got = run(scaled_dot_product_attention, inputs, return_lse=True, **options)
    assert_right(got, inputs, **options)


@pytest.mark.nightly
@pytest.mark.parametrize(("heads_q", "heads_kv", "length", "dim"), SEED_TABLE)
def test_shapes_of_the_seed_table(heads_q, heads_kv, length, dim):
    check(qkv(1, heads_q, heads_kv, length, length, dim, dtype=torch.bfloat16), enable_gqa=heads_q != heads_kv)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_each_dtype(dtype, is_causal):
    check(qkv(2, 2, 2, 100, 100, 32, dtype=dtype), is_causal=is_causal)


@pytest.mark.parametrize("dim, dim_v", [(1, 1), (8, 8), (16, 16), (24, 24), (80, 80), (96, 40), (64, 128), (256, 256)])
def test_head_dims_that_are_no_powers_of_two_or_differ(dim, dim_v):
    check(qkv(1, 2, 2, 65, 70, dim, dim_v, dtype=torch.bfloat16))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("len_q, len_k", [(1, 1), (1, 130), (130, 1), (63, 65), (64, 192), (192, 64), (129, 128)])
def test_lengths_around_the_tiles(len_q, len_k, is_causal):
    check(qkv(1, 2, 1, len_q, len_k, 16), is_causal=is_causal, enable_gqa=True)


@pytest.mark.parametrize("heads_q, heads_kv", [(4, 1), (4, 2), (6, 3), (3, 3)])
def test_groups_of_query_heads_share_a_kv_head(heads_q, heads_kv):
    check(qkv(2, heads_q, heads_kv, 40, 66, 16), enable_gqa=True)


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3, 5.0, 1e-30])
@pytest.mark.parametrize("is_causal", [False, True])
def test_any_finite_scale(scale, is_causal):
    check(qkv(1, 1, 1, 70, 80), scale=scale, is_causal=is_causal)


def test_large_scores_do_not_overflow():
    query, key, value = qkv(1, 2, 2, 70, 70, 16, dtype=torch.float16)
    inputs = [(query.detach() * 30).requires_grad_(), (key.detach() * 30).requires_grad_(), value]
    check(inputs)
    inputs = [(query.detach() * 1000).requires_grad_(), (key.detach() * 1000).requires_grad_(), value]
    got = run(scaled_dot_product_attention, inputs, return_lse=True)
    assert all(torch.isfinite(got[name]).all() for name in ("out", "lse", "dvalue"))


def test_lse_alone_is_differentiable():
    inputs = qkv(1, 2, 2, 70, 66)
    _, lse = scaled_dot_product_attention(*inputs, return_lse=True)
    dquery, dkey, dvalue = torch.autograd.grad(lse.sum(), inputs)
    scores = inputs[0].double() @ inputs[1].double().transpose(-1, -2) / 4
    exact = torch.autograd.grad(torch.logsumexp(scores, -1).sum(), inputs[:2])
    assert (dquery - exact[0]).abs().max() < 1e-5 and (dkey - exact[1]).abs().max() < 1e-5
    assert not dvalue.any()


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (1, 2, 2)])
def test_leading_dimensions(leading):
    inputs = [x.detach()[0].expand(*leading, *x.shape[1:]).clone().requires_grad_() for x in qkv(1, 2, 2, 9, 11)]
    check(inputs)


def test_two_dimensions_are_one_head():
    query, key, value = (x.detach()[0, 0] for x in qkv(1, 1, 1, 9, 11))
    out, lse = scaled_dot_product_attention(query, key, value, return_lse=True)
    wanted, wanted_lse = scaled_dot_product_attention(query[None], key[None], value[None], return_lse=True)
    assert torch.equal(out, wanted[0]) and torch.equal(lse, wanted_lse[0])


def test_leading_dimensions_broadcast():
    query = qkv(3, 2, 2, 9, 11)[0]
    _, key, value = qkv(1, 2, 2, 9, 11)
    check([query, key, value])


def test_without_gradients_nothing_is_saved():
    with torch.no_grad():
        out = scaled_dot_product_attention(*qkv())
    assert out.grad_fn is None
