"""flash_attn.cute with few kernels to compile: two head dims, one dtype, one softcap.

attnfuzz run --target flash_attn.cute --target-file ci/flash_attention_4_narrow.py
"""

from dataclasses import replace

from fuzz.generate import cases
from fuzz.targets.flash_attention_4.target import SUPPORT, FlashAttention4

cases.SOFTCAPS = (30.0,)  # each value is a kernel of its own
TARGETS = [FlashAttention4(replace(SUPPORT, dim=(64, 128, 64), dtypes=("bfloat16",), dim_v_differs=False))]
