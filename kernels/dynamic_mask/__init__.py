"""Attention with a dynamic mask in Triton: empty tiles of the mask are skipped, forward and backward.

api what users call · checks what is refused · ops the custom operators · attention the operands of a call · plans from
operands to launches · config the tile table · forward, row_state, dkdv, dq, bias_gradient the kernels · tiles, scores
their device helpers · bits packed masks · selection a mask and a bias from values · injection what a mutant replaces.
"""

from kernels.dynamic_mask.api import Answer, dynamic_mask_answer, dynamic_mask_attention, plan, prepare
from kernels.dynamic_mask.bits import pack_mask, unpack_mask
from kernels.dynamic_mask.selection import dynamic_mask, top_mask, value_bias

__all__ = [
    "Answer",
    "dynamic_mask",
    "dynamic_mask_answer",
    "dynamic_mask_attention",
    "pack_mask",
    "plan",
    "prepare",
    "top_mask",
    "unpack_mask",
    "value_bias",
]
