"""Triton's interpreter without what it repeats: the language is looked through once per function, answers stay, and
what a launch replaces in the language is there again behind it."""

from __future__ import annotations

import pytest
import warm_start

from fuzz.targets.registry import targets

RUN = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton.language as tl
from triton.runtime import interpreter
from fuzz.targets.triton_interpreter import patch_interpreter
from kernels.sdpa import scaled_dot_product_attention
looked = []
plain = interpreter._patch_lang
def counting(fn):
    looked.append(fn)
    return plain(fn)
interpreter._patch_lang = counting
assert patch_interpreter() and patch_interpreter()
before = dict(vars(tl))
q = torch.randn(1, 2, 70, 32, generator=torch.Generator().manual_seed(1))
found = [scaled_dot_product_attention(q, q, q, is_causal=True) for _ in range(3)]
want = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
assert all(torch.equal(one, found[0]) for one in found) and (found[0] - want).abs().max() < 1e-5
assert all(vars(tl)[name] is one for name, one in before.items())
kernels = [fn for fn in looked if fn.__name__.endswith("_kernel")]
assert kernels and len(kernels) == len(set(kernels))
inner = [fn for fn in looked if not fn.__name__.endswith("_kernel")]
print(len(inner), len(set(inner)))
"""


@pytest.mark.skipif(targets((), "host")["sdpa"].missing() is not None, reason="needs Triton, and no GPU")
def test_functions_that_a_kernel_calls_are_prepared_once():
    ran = warm_start.run(["-c", RUN], timeout=240)
    assert not ran.returncode, ran.stderr
    looked, different = map(int, ran.stdout.split())
    assert looked == different > 3
