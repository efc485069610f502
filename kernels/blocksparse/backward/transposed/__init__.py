"""Backward kernels for sm_90a with keys as rows of the scores, loads by TMA: of all gradients, and of dK and dV alone."""
