"""dQ of a tile of queries by one CTA, which keeps it in registers: the backward pass of scattered lists in two kernels.

The other one is the backward kernel without its dQ (`Variant.separate_dq`).
"""
