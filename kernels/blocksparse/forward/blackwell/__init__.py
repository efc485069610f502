"""The forward kernel for Blackwell: products by tcgen05 into tensor memory, loads and products by warps of their own.

Layouts, masks, lists, the meaning of every argument and the numbers of a row are those of forward.py. No GPU of this
kind has run it: it was written and checked on the emulated GPU alone.
"""
