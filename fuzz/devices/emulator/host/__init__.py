"""The host's side of a launch: `cuda_runtime.py` runs a compiled object's host function on stand-ins for the CUDA
runtime, and hears which kernels it launches with which grid and arguments.
"""
