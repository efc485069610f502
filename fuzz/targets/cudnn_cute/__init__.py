"""Shared by the targets of cuDNN's CuTe DSL kernels: `host` for the host code, `emulated` for the kernels, `lists` for
their lists of blocks."""
