"""Block-sparse flash attention in CuTe DSL: one portable source (mma.sync, ldmatrix, cp.async) for sm_80 to sm_120.

variant.py says what one compiled kernel is, common/ holds what forward and backward share, compile.py builds without a
GPU, launch.py calls a built kernel on torch tensors. Importing this package imports neither cutlass nor torch.
"""
