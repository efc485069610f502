"""FlagAttention's flash attention: grouped heads, causal at the bottom right, backward."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from checkout import checkout

from fuzz.targets import Size, target
from oracles.numerics import Numerics

sys.path.insert(0, str(checkout("FlagAttention/src/flag_attn/flash.py").parents[1]))
from flag_attn import flash

if not torch.cuda.is_available():  # it asks which GPU there is; here the interpreter's one processor
    asked = {"device_of": id, "device": nullcontext, "get_device_capability": lambda: (9, 0)}
    asked["get_device_properties"] = lambda device: SimpleNamespace(multi_processor_count=1)
    flash.torch = SimpleNamespace(**vars(torch) | {"cuda": SimpleNamespace(**asked)})


@target(
    "foreign.flag_attention",
    dtypes=["float16"],
    dims={16, 32, 64, 128},
    dim_v_differs=False,
    zero_lengths=False,
    causal_align="bottom_right",
    numerics=Numerics(heads="input"),
    size=Size(pairs=1 << 14, rows=8),
)
def attention(q, k, v, causal, scale):
    return flash.attention(q, k, v, causal, scale, return_log_normalizer=True)[:2]
