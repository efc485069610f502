"""The backward kernel: dK and dV of a tile of keys, and its share of dQ, in a fixed order or atomically.

kernel.py and mainloop_mma.py for every arch (mma.sync), transposed/ and warpgroups/ (wgmma), blackwell/ (tcgen05).
"""

from kernels.blocksparse.backward.entry import Backward

__all__ = ["Backward"]
