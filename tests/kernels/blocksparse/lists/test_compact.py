"""Block lists from compact rows and over pooled keys, beside boolean matrices; they pass all checks of users' lists."""

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.blocksparse.lists.bitmask import unpack
from kernels.blocksparse.lists.compact import pooled_groups, selected
from kernels.blocksparse.lists.pooled import PoolRule, pooled
from kernels.blocksparse.lists.types import Bits
from kernels.blocksparse.lists.validate.contents import check_contents
from kernels.blocksparse.lists.validate.shapes import Sizes, check_shapes

TILES = [(64, 64), (64, 128), (128, 64), (128, 128)]


def seen(blocks, batch, head, len_q, len_k):
    """What forward lists and their mask show of one sequence and head: bool (len_q, len_k)."""
    tile_m, tile_n = blocks.tile_m, blocks.tile_n
    out = torch.zeros((blocks.m_blocks + 1) * tile_m, (len_k // tile_n + 2) * tile_n, dtype=torch.bool)
    for kind in ("partial", "full"):
        one = getattr(blocks.forward, kind)
        for m in range(blocks.m_blocks):
            begin = int(one.begin[batch, head, m])
            for entry in range(begin, begin + int(one.count[batch, head, m])):
                n = int(one.index[entry])
                tile = torch.ones(tile_m, tile_n, dtype=torch.bool)
                if kind == "partial" and isinstance(blocks.mask, Bits):
                    tile = unpack(blocks.mask.words[int(blocks.mask.slot[entry])])
                elif kind == "partial":
                    bound = blocks.mask.bounds[0, 0, 0]
                    row = (m * tile_m + torch.arange(tile_m)).clamp(max=len(bound) - 1)
                    tile = n * tile_n + torch.arange(tile_n) < bound[row][:, None]
                out[m * tile_m : (m + 1) * tile_m, n * tile_n : (n + 1) * tile_n] |= tile
    return out[:len_q, :len_k]


def check_lists(blocks, lengths_q, lengths_k, heads):
    sizes = (len(lengths_q), heads, 1, max(lengths_q), max(lengths_k))
    lengths = (torch.tensor(lengths_q), torch.tensor(lengths_k))
    check_shapes(blocks, Sizes(*sizes, *lengths), backward=True)
    check_contents(blocks, Sizes(*sizes, *lengths))


def random_rows(batch, heads, tiles, blocks, width, seed=0):
    draw = random.Random(seed)
    rows = torch.full((batch, heads, tiles, width), -1, dtype=torch.int32)
    for row in rows.view(-1, width):
        found = sorted(draw.sample(range(blocks), draw.randint(0, min(width, blocks))))
        row[: len(found)] = torch.tensor(found, dtype=torch.int32)
    return rows


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [16, 48, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("tiles", TILES)
def test_rows_see_the_tokens_of_their_blocks_and_no_other(tiles, size, causal):
    lengths, per_tile = [600, 333], 256 if tiles[0] == 128 else 192
    rows = random_rows(2, 2, -(-600 // per_tile), -(-600 // size), 5)
    blocks = selected(
        rows,
        lengths,
        lengths,
        block_size=size,
        rows_per_tile=per_tile,
        causal=causal,
        tile_m=tiles[0],
        tile_n=tiles[1],
    )
    check_lists(blocks, lengths, lengths, 2)
    for b, length in enumerate(lengths):
        for h in range(2):
            wanted = torch.zeros(length, length, dtype=torch.bool)
            for tile, row in enumerate(rows[b, h].tolist()):
                for j in row:
                    if j >= 0:
                        wanted[tile * per_tile : (tile + 1) * per_tile, j * size : (j + 1) * size] = True
            wanted = wanted.tril() if causal else wanted
            assert torch.equal(seen(blocks, b, h, length, length), wanted)


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("pool", [4, 48, 64])
@pytest.mark.parametrize("when", ["begun", "ended", None])
def test_pooled_keys_are_seen_with_a_slope(when, pool, tiles):
    lengths, rule = [1000, 333, 0, 1], None if when is None else PoolRule(pool, when)
    pools = [-(-length // pool) for length in lengths]
    per_tile, group = 256 if tiles[0] == 128 else 192, 128
    tile_options = {"rule": rule, "tile_m": tiles[0], "tile_n": tiles[1]}
    groups = random_rows(4, 1, -(-1000 // per_tile), -(-max(pools) // group), 2)
    some = pooled_groups(groups, lengths, pools, group_size=group, rows_per_tile=per_tile, **tile_options)
    every = pooled(lengths, pools, **tile_options)
    for blocks in (every, some):
        check_lists(blocks, lengths, pools, 1)
        for b, (length, number) in enumerate(zip(lengths, pools, strict=True)):
            row, key = torch.arange(length)[:, None], torch.arange(number)[None]
            wanted = {"begun": key * pool <= row, "ended": (key + 1) * pool <= row + 1, None: (key + row) >= 0}[when]
            if blocks is some:
                named = groups[b, 0].long()[(row // per_tile).flatten()]
                wanted = wanted & ((key // group)[..., None] == named[:, None]).any(-1)
            assert torch.equal(seen(blocks, b, 0, length, number), wanted)


def test_patterns_share_slots():
    """Tiles of 128 keys with blocks of 64 have 4 patterns, cut by the diagonal or not: 8 masks, at any length."""
    rows = random_rows(1, 4, 20, 80, 6)
    blocks = selected(rows, 5120, 5120, block_size=64, rows_per_tile=256, causal=True)
    assert blocks.mask.words.shape == (8, 128, 4)
    assert blocks.forward.partial.capacity == 4 * 40 * 6


@pytest.mark.parametrize("ranks", [True, False])
def test_building_asks_the_device_nothing(ranks):
    with FakeTensorMode():
        lengths, pools = torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
        rows = torch.zeros((2, 4, 3, 5), dtype=torch.int32)
        options = {"rows_per_tile": 256, "ranks": ranks}
        rule = PoolRule(16, "begun")
        built = [
            selected(rows, lengths, lengths, block_size=16, causal=True, longest=(700, 700), **options),
            pooled_groups(rows, lengths, pools, group_size=128, rule=rule, longest=(700, 44), **options),
            pooled(lengths, pools, rule=rule, longest=(700, 44)),
        ]
        for blocks in built:
            assert blocks.forward.partial.count.shape[2] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 24}, "block_size: needs a multiple of 16, got 24"),
        ({"rows_per_tile": 192}, "rows_per_tile: needs a multiple of tile_m, 128, got 192"),
        ({"rows": torch.zeros(1, 1, 2, 2)}, "rows: needs int32 .*, got torch.float32"),
        ({"rows": torch.zeros(1, 1, 1, 2).int()}, "rows: needs 2 tiles of 256 queries, got 1"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changes, message):
    given = {"rows": torch.zeros(1, 1, 2, 2).int(), "block_size": 64, "rows_per_tile": 256, "causal": True} | changes
    with pytest.raises(ValueError, match=message):
        selected(given.pop("rows"), 300, 300, **given)
