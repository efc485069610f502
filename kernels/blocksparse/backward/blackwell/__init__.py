"""The backward kernel for Blackwell: products by tcgen05 into tensor memory, each role in warps of its own.

Layouts, lists, masks and the meaning of every argument are those of backward/kernel.py. No GPU of this kind has run it:
it was written and checked on the emulated GPU alone.
"""
