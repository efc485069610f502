"""Mutants of kernels.dynamic_mask; begin with table.py."""
