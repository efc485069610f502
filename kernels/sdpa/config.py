"""Tile sizes: one table, by head dim bucket and element size. No autotuning at run time.

Head dims are padded to the next of 32, 64, 128, 256 (`block_d`), for dim and dim_v together, so the number of
compiled kernels stays small: see `kernels.sdpa.launch.Launch.compile_key`.
"""

from dataclasses import dataclass

BLOCKS_D = (32, 64, 128, 256)
MAX_DIM = BLOCKS_D[-1]


@dataclass(frozen=True)
class Tiles:
    """tile_m queries by tile_n keys, and how the compiler spreads them: warps, and stages of its software pipeline."""

    tile_m: int
    tile_n: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Config:
    """The tiles of each kernel."""

    forward: Tiles
    dkdv: Tiles
    dq: Tiles
    dbias: Tiles


def block_d(dim: int, dim_v: int) -> int:
    """The smallest block that holds a row of both."""
    return next(block for block in BLOCKS_D if block >= max(dim, dim_v))


_INTERPRETED = Config(*[Tiles(64, 64, 4, 1)] * 4)

# Descriptors and no mask: chosen from a sweep on an H100 at 8,192 tokens, see ci/results.
_PLAIN = {
    32: Config(Tiles(64, 128, 4, 2), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    64: Config(Tiles(64, 128, 4, 2), Tiles(64, 64, 4, 2), Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2)),
    128: Config(Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2)),
    256: Config(Tiles(128, 64, 8, 2), Tiles(32, 64, 8, 1), Tiles(64, 32, 4, 2), Tiles(64, 32, 8, 1)),
}

# A mask, or pointers with explicit strides: 64-bit addresses of single elements take the registers.
_GENERAL = {
    **dict.fromkeys((32, 64, 128), Config(*[Tiles(64, 64, 8, 2)] * 4)),
    256: Config(Tiles(64, 32, 8, 1), Tiles(32, 64, 8, 1), Tiles(64, 32, 8, 1), Tiles(64, 32, 8, 1)),
}

# float32 is multiplied without tensor cores, from registers.
_SINGLE = {
    **dict.fromkeys((32, 64), Config(*[Tiles(32, 32, 4, 1)] * 4)),
    128: Config(*[Tiles(32, 32, 8, 1)] * 4),
    256: Config(*[Tiles(16, 16, 8, 1)] * 4),
}


def find_config(block: int, itemsize: int, plain: bool, interpreted: bool) -> Config:
    """The tiles for rows of `block` elements of `itemsize` bytes; plain says descriptors and no mask."""
    if interpreted:
        return _INTERPRETED
    if itemsize == 4:
        return _SINGLE[block]
    return (_PLAIN if plain else _GENERAL)[block]
