"""Code that the forward and the backward kernel share: layouts, tile loads, warp mma, block lists, sequences and masks.

Plain Python classes here live at trace time only: they group DSL values, and functions, not methods, use them in loops
that run on the device (a loop carries the receiver of a method call).
"""
