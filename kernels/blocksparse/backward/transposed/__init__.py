"""Backward kernels for sm_90a with keys as rows of the scores, loaded by TMA: of all gradients, of dK and dV alone."""
