"""Launching the kernels on torch tensors: forward.py, backward.py, lse_gradient.py."""
