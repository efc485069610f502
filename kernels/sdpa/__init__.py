"""Dense attention in Triton, forward and backward: any length, any mask, any strides, GQA, LSE.

api what users call · checks what is refused · ops the custom operators · plans from tensors to launches · launch one
kernel launch as a value · layout descriptors or pointers · config the tile table · forward, row_state, backward,
bias_gradient the kernels · tiles, scores their device helpers · injection what a mutant replaces.
"""

from kernels.sdpa.api import plan, prepare, scaled_dot_product_attention

__all__ = ["plan", "prepare", "scaled_dot_product_attention"]
