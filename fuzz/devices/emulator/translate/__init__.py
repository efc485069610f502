"""Kernels translated to machine code: straight runs of their micro-operations."""
