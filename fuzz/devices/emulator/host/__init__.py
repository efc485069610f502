"""The host's side: the CUDA runtime functions that a compiled kernel's host function calls."""
