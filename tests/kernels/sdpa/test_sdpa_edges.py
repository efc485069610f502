"""Sizes of nothing, and what kernels.sdpa refuses: every refusal names the argument, what it got and what it needs."""

import math
import os
from pathlib import Path

import pytest
import torch
import warm_start
from sdpa_cases import DEVICE, qkv, random, run

from kernels.sdpa import scaled_dot_product_attention


def test_no_keys_give_rows_of_zero():
    got = run(scaled_dot_product_attention, qkv(1, 2, 2, 70, 0), return_lse=True)
    assert not got["out"].any() and (got["lse"] == -math.inf).all() and not got["dquery"].any()
    assert got["dkey"].shape == (1, 2, 0, 16)


def test_no_queries_give_zero_gradients_of_keys_and_values(guarded):
    got = run(scaled_dot_product_attention, qkv(1, 2, 2, 0, 70), return_lse=True)
    assert got["out"].shape == (1, 2, 0, 16) and got["lse"].shape == (1, 2, 0)
    assert (got["dkey"] == 0).all() and (got["dvalue"] == 0).all()


@pytest.mark.parametrize("shape", [(1, 1, 1, 70), (0, 70), (0, 1)])
def test_no_queries_give_a_zero_gradient_of_the_mask(guarded, shape):
    inputs = [*qkv(1, 2, 2, 0, 70), random(*shape).requires_grad_()]
    got = run(scaled_dot_product_attention, inputs, return_lse=True)
    assert got["dmask"].shape == shape and (got["dmask"] == 0).all()


def test_no_keys_give_a_zero_gradient_of_the_mask(guarded):
    inputs = [*qkv(1, 2, 2, 70, 0), random(70, 1).requires_grad_()]
    assert (run(scaled_dot_product_attention, inputs, return_lse=True)["dmask"] == 0).all()


@pytest.mark.parametrize("sizes", [(0, 2, 2, 5, 5), (2, 0, 0, 5, 5), (1, 2, 2, 0, 0)])
def test_nothing_at_all(sizes):
    got = run(scaled_dot_product_attention, qkv(*sizes), return_lse=True)
    assert got["out"].numel() == 0 and got["dquery"].numel() == 0


REFUSED = {
    "query: got torch.float64": lambda q, k, v: ((q.double(), k, v), {}),
    "query: got 1 dimensions": lambda q, k, v: ((q[0, 0, 0], k, v), {}),
    "query: got head dim 257": lambda q, k, v: ((random(1, 2, 5, 257), random(1, 2, 5, 257), v), {}),
    "key: got torch.float16": lambda q, k, v: ((q, k.half(), v), {}),
    "key: got 3 dimensions": lambda q, k, v: ((q, k[0], v), {}),
    "key: got dim 8": lambda q, k, v: ((q, k[..., :8], v), {}),
    "value: got len_k 4": lambda q, k, v: ((q, k, v[:, :, :4]), {}),
    "value: got 1 heads": lambda q, k, v: ((q, k, v[:, :1]), {}),
    "key: got 1 heads, need query's 2, or enable_gqa": lambda q, k, v: ((q, k[:, :1], v[:, :1]), {}),
    "key: got 2 heads, need a divisor": lambda q, k, v: ((random(1, 3, 5, 16), k, v), {"enable_gqa": True}),
    "value: got head dim 0": lambda q, k, v: ((q, k, v[..., :0]), {}),
    "query, key, value: got leading sizes": lambda q, k, v: ((q.expand(2, 2, 5, 16), k.expand(3, 2, 5, 16), v), {}),
    "dropout_p: got 0.1": lambda q, k, v: ((q, k, v), {"dropout_p": 0.1}),
    "scale: got inf": lambda q, k, v: ((q, k, v), {"scale": math.inf}),
    "attn_mask: got a mask together with is_causal": lambda q, k, v: (
        (q, k, v),
        {"is_causal": True, "attn_mask": random(5, 5)},
    ),
    "attn_mask: got torch.int64": lambda q, k, v: ((q, k, v, torch.ones(5, 5, dtype=torch.int64, device=DEVICE)), {}),
    "attn_mask: got shape (5, 4)": lambda q, k, v: ((q, k, v, random(5, 4)), {}),
    "attn_mask: got shape (1, 1, 1, 5, 5)": lambda q, k, v: ((q, k, v, random(1, 1, 1, 5, 5)), {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_says_what_and_why(message):
    args, options = REFUSED[message](*(x.detach() for x in qkv(1, 2, 2, 5, 5)))
    with pytest.raises(ValueError) as refusal:
        scaled_dot_product_attention(*args, **options)
    assert str(refusal.value).startswith(message)


@pytest.mark.skipif(DEVICE != "cpu", reason="says what happens without a GPU")
def test_cpu_tensors_without_the_interpreter_say_what_to_set():
    program = "import torch, kernels.sdpa as s; x = torch.ones(1, 1, 4, 16); s.scaled_dot_product_attention(x, x, x)"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[3]
    done = warm_start.run(["-c", program], env=environment, cwd=root)
    assert "RuntimeError" in done.stderr and "TRITON_INTERPRET=1" in done.stderr
