"""Mutants of kernels.sdpa; table.py lists them."""
