"""Target `flash_attn.cute`: FlashAttention-4's CuTe DSL kernels. Begin with target.py."""
