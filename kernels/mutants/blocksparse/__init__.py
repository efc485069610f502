"""Mutants of kernels.blocksparse; table.py lists them."""
