"""Sizes: how many compressed blocks form a group, and the tiles of each kernel. No autotuning at run time."""

from kernels.sdpa.config import block_d

GROUP = 128  # compressed blocks that are chosen together
ROWS = 64  # rows of a tile of the Triton kernels, at most
ELEMENTS = 4096  # of a tile of the kernels that hold several tensors' rows: 32 of each in a thread's registers
WARPS = 4
WIDTHS = (64, 512, 4096)  # scores that one program chooses from, each a kernel of its own
SEGMENT = 64  # scores that the choice first takes the largest of
CHUNK = 1 << 25  # scores that exist at one time
GATE_ROWS = 4096  # rows that one program adds up for the gradient of the gates' weights
LARGEST_DIM = 128  # up to which the backward pass has tiles of 128 keys


def tile_m(rows_per_tile: int) -> int:
    """Queries of a tile of the attention kernels: a divisor of the queries that choose together."""
    return 128 if rows_per_tile % 128 == 0 else 64


def tile_n(dim: int, backward: bool) -> int:
    """Keys of a tile of the attention kernels."""
    return 64 if backward and dim > LARGEST_DIM else 128


def selected_tile_n(dim: int, block: int, backward: bool) -> int:
    """Keys of a tile of the selected branch: 64 where blocks are no multiples of 128, so that little more is read and
    multiplied than is selected. Backward at head dims up to 64, tiles of 128 are multiplied by warpgroups on Hopper,
    and tiles of 64 are not."""
    narrow = block % 128 != 0 and not (backward and dim <= 64)
    return 64 if narrow else tile_n(dim, backward)


def padded(dim: int) -> int:
    """Elements of a row in the Triton kernels."""
    return block_d(dim, dim)


def tile_rows(dim: int) -> int:
    """Rows of a tile of the kernels that hold several tensors' rows."""
    return min(ROWS, ELEMENTS // padded(dim))
