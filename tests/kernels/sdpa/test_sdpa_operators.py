"""kernels.sdpa as PyTorch operators: opcheck, torch.compile, and launches that can be prepared without being run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from covering import daily
from sdpa_cases import DEVICE, qkv, random

from fuzz.targets import kernel_constants
from kernels.dynamic_mask import config as dynamic_mask_config
from kernels.sdpa import config, plan, prepare, scaled_dot_product_attention

BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
OPERATORS = torch.ops.attnfuzz


@pytest.mark.parametrize("case", ["plain", "causal", "bool", "float"])
def test_forward_passes_opcheck(case):
    mask = {"bool": random(20, 24) > 0, "float": random(20, 24).requires_grad_()}.get(case)
    mask = mask if mask is None else mask.detach()[None, None].requires_grad_(mask.requires_grad)
    inputs = qkv(1, 2, 1, 20, 24)
    torch.library.opcheck(OPERATORS.sdpa_forward.default, (*inputs, mask, case == "causal", 0.25, ""))


def test_backward_passes_opcheck():
    query, key, value = (x.detach() for x in qkv(1, 2, 1, 20, 24))
    bias = random(1, 1, 20, 24)
    out, lse = OPERATORS.sdpa_forward(query, key, value, bias, False, 0.25, "")
    arguments = (query, key, value, bias)
    backward = (torch.ones_like(out), torch.ones_like(lse), *arguments, out, lse, False, 0.25, "")
    torch.library.opcheck(OPERATORS.sdpa_backward.default, backward)
    state = OPERATORS.sdpa_backward(*backward)[3]
    torch.library.opcheck(OPERATORS.sdpa_bias_gradient.default, (torch.ones_like(out), *arguments, state, 0.25, ""))


@pytest.mark.parametrize("dynamic", daily([False, True], [True]))
def test_compiled_is_the_same_as_eager(dynamic):
    def loss(query, key, value, bias):
        out, lse = scaled_dot_product_attention(query * 2, key, value, bias, enable_gqa=True, return_lse=True)
        return (out.float() ** 2).sum() + lse.sum()

    compiled = torch.compile(loss, fullgraph=True, backend=BACKEND, dynamic=dynamic)
    for len_q in (20, 33):
        inputs = [*qkv(1, 2, 1, len_q, 24), random(len_q, 1).requires_grad_()]
        eager = loss(*inputs)
        got = compiled(*inputs)
        torch.testing.assert_close(got, eager, rtol=1e-6, atol=0)
        for a, b in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(eager, inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_call_without_return_lse_compiles_in_one_graph():
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend=BACKEND)
    inputs = qkv(1, 1, 1, 20, 24)
    assert torch.equal(compiled(*inputs, is_causal=True), scaled_dot_product_attention(*inputs, is_causal=True))


def test_the_output_keeps_the_dtype_and_is_contiguous():
    out = scaled_dot_product_attention(*qkv(1, 1, 1, 5, 5, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16 and out.is_contiguous()


def test_gradients_of_gradients_are_refused():
    inputs = qkv(1, 1, 1, 5, 5)
    (grad,) = torch.autograd.grad(scaled_dot_product_attention(*inputs).sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), inputs)


def test_a_plan_names_every_kernel_and_prepare_runs_none(guarded):
    inputs = [*qkv(1, 2, 2, 20, 24), random(20, 24).requires_grad_()]
    names = [launch.kernel.__name__ for launch in plan(*inputs)]
    assert names == ["forward_kernel", "row_state_kernel", "dkdv_kernel", "dq_kernel", "dbias_kernel"]
    assert prepare(*inputs) == 5
    assert prepare(*inputs, backward=False) == 1
    out = plan(*inputs, backward=False)[0].runtime["mO"]
    assert torch.isnan(getattr(out, "base", out)).all()


def test_lengths_and_strides_need_no_compilation_of_their_own():
    keys = {
        tuple(launch.compile_key for launch in plan(*qkv(batch, heads, 1, len_q, len_k, dim), enable_gqa=True))
        for batch, heads, len_q, len_k, dim in [(1, 1, 16, 16, 32), (2, 3, 17, 1, 24), (1, 4, 1, 129, 20)]
    }
    assert len(keys) == 1


COUNT = """
import sys
import torch
from triton.runtime.jit import JITFunction
from fuzz.devices.emulator import emulated
from kernels.sdpa import plan

keys = set()
JITFunction._do_compile = lambda self, key, *more: keys.add((self.__name__, str(key)))
with emulated("sm_90a"):
    for pad in (0, 1, 16):
        for dim in map(int, sys.argv[1:]):
            q, k, v = (torch.zeros(2, 2, 32 + pad, dim, dtype=torch.float16) for _ in "qkv")
            mask = torch.zeros(2, 2, 32 + pad, 33 + 2 * pad, dtype=torch.float16)[..., : 32 + pad]
            for launch in plan(q, k, v, mask):
                launch.kernel.warmup(grid=(1,), **launch.runtime, **launch.constants, **launch.options)
print(sorted(name for name, _ in keys))
"""


@pytest.mark.nightly
@pytest.mark.skipif(DEVICE == "cuda", reason="asks Triton on the emulated GPU")
@pytest.mark.parametrize("dims", [("8", "24", "32"), ("9", "20", "31")], ids=["descriptors", "pointers"])
def test_triton_compiles_a_kernel_once_whatever_divides_strides(dims):
    """In a process of its own, in which Triton does not interpret."""
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COUNT, *dims]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == str(["dkdv_kernel", "dq_kernel", "forward_kernel", "row_state_kernel"]), done.stderr


def test_a_session_on_the_emulated_gpu_knows_how_head_dims_are_padded():
    assert kernel_constants.BLOCKS_D == config.BLOCKS_D == dynamic_mask_config.BLOCKS_D
