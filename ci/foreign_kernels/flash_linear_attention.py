"""flash-linear-attention's parallel_attn: causal, windows, packed sequences, grouped heads, backward."""

import importlib
import os
import sys
from types import ModuleType

from checkout import checkout

from fuzz.core.support import Rule
from fuzz.targets import Size, target

os.environ["TORCH_COMPILE_DISABLE"] = "1"  # the autograd function is compiled; the interpreter is not
for package in ("fla", "fla.ops"):  # without the other kernels, which their own __init__ imports
    sys.modules[package] = ModuleType(package)
    path = str(checkout("flash-linear-attention/" + package.replace(".", "/")))
    vars(sys.modules[package]).update(__path__=[path], __version__="")
parallel_attn = importlib.import_module("fla.ops.attn.parallel").parallel_attn


@target(
    "foreign.flash_linear_attention",
    dtypes=["float16", "float32"],
    layouts=["padded", "packed"],
    axes="bshd",
    masks=["causal", "window"],
    cross=False,
    size=Size(pairs=1 << 15, rows=8),
    rules=[
        Rule("padding", lambda case: case.problem.layout == "padded" and case.problem.ragged),
        Rule("windows that end elsewhere", lambda case: getattr(case.problem.mask, "right", 0) != 0),
    ],
)
def attention(q, k, v, problem, cu_seqlens_q, scale):
    left = getattr(problem.mask, "left", None)
    window = None if left is None else left + 1
    if problem.layout == "padded":
        return parallel_attn(q, k, v, scale=scale, window_size=window)
    q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    return parallel_attn(q, k, v, scale=scale, window_size=window, cu_seqlens=cu_seqlens_q.long())[0]
