"""What the forward and the backward kernel share: layouts, tile loads, warp mma, block lists, sequences and masks.

Plain Python classes here live at trace time only: they group DSL values that are defined before the loops that use them.
"""
