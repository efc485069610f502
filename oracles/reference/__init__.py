"""The right answer in float64: attention.py by autograd, in chunks.py of rows, with numba_loops.py where PyTorch is
slow."""
