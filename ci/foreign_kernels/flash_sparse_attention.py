"""Flash Sparse Attention's Triton kernel: bool masks, a bias and its gradient, grouped heads, backward."""

import linecache
from types import ModuleType

from checkout import checkout

from fuzz.targets import Size, target
from oracles.numerics import Numerics

path = str(checkout("flash-dmattn/flash_sparse_attn/flash_sparse_attn_triton.py"))
kernels = ModuleType("flash_sparse_attn_triton")
kernels.__file__ = path
# Triton 3.9 refuses a tuning key that is no argument of the kernel
source = "".join(linecache.getlines(path)).replace('"HAS_INDICE", ', "")
exec(compile(source, path, "exec", optimize=1), vars(kernels))  # without `assert q.is_cuda`
for tuned in (kernels._fwd_kernel, kernels._bwd_kernel):
    del tuned.configs[1:]  # nothing to tune on a CPU


@target(
    "foreign.flash_sparse_attention",
    dtypes=["float16"],
    axes="bshd",
    dims=(1, 128, 1),
    dim_v_differs=False,
    zero_lengths=False,
    bias_dtypes=["input"],
    numerics=Numerics(scaled="q", rescored="k", heads="input", renormalised="end", sums="input", tile=128),
    size=Size(pairs=1 << 15, rows=2, length=300),
)
def attention(q, k, v, mask, causal, bias, scale):
    return kernels.triton_sparse_attn_func(q, k, v, None if causal or mask.all() else mask, bias, causal, scale)
