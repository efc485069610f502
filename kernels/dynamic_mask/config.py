"""Tile sizes: one table, by head dim bucket. No autotuning at run time.

Head dims are padded to the next of 32, 64, 128, 256 (`block_d`). Tiles are small on purpose: a tile is skipped only
where it holds no key, and a mask of a few keys in each row leaves few empty tiles among large ones.
"""

from dataclasses import dataclass

from kernels.sdpa.config import BLOCKS_D, MAX_DIM, Tiles, block_d

WORD = 32  # keys in a word of a packed mask; divides every tile_n
PROGRAMS = 1024  # programs of dK and dV from which on their queries are not split
MOST_SPLITS = 8
LEAST_STEPS = 16  # tiles of queries, over a group's heads, that a split has at least


@dataclass(frozen=True)
class Config:
    """The tiles of each kernel."""

    forward: Tiles
    dkdv: Tiles
    dq: Tiles
    dbias: Tiles


_INTERPRETED = Config(*[Tiles(64, 64, 4, 1)] * 4)
TABLE = {
    32: Config(*[Tiles(64, 64, 4, 2)] * 4),
    64: Config(*[Tiles(64, 64, 4, 2)] * 4),
    128: Config(Tiles(64, 64, 4, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2)),
    256: Config(Tiles(64, 32, 8, 1), Tiles(32, 64, 8, 1), Tiles(64, 32, 8, 1), Tiles(64, 32, 8, 1)),
}


def find_config(block: int, interpreted: bool) -> Config:
    """The tiles for rows of `block` elements."""
    return _INTERPRETED if interpreted else TABLE[block]


def splits_of(programs: int, steps: int, asked: int) -> int:
    """Parts that the queries of dK and dV are split into: asked, or where that is 0 so many that a GPU is filled.

    programs  tiles of keys, over all batches and KV heads
    steps     tiles of queries that one of them walks along, over all heads of the group
    """
    if asked:
        return asked
    return max(1, min(MOST_SPLITS, -(-PROGRAMS // max(programs, 1)), steps // LEAST_STEPS))


__all__ = ["BLOCKS_D", "MAX_DIM", "WORD", "Config", "Tiles", "block_d", "find_config", "splits_of"]
