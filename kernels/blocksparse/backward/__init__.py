"""The backward kernel: dK and dV of a tile of keys, and its share of dQ, in a fixed order or atomically."""

from kernels.blocksparse.backward.entry import Backward

__all__ = ["Backward"]
