"""Which tiles are split, and into how many parts (launch/split_tiles.py)."""

import pytest

from kernels.blocksparse.launch.split_tiles import BACKWARD, FORWARD, FREE, MOST, Split, split_of


def rounds(split: Split, ctas: int) -> float:
    """The time of a last wave over a tile's, by blocks alone."""
    return -(-split.tiles * split.parts // ctas) / split.parts


@pytest.mark.parametrize("costs", [FORWARD, BACKWARD, FREE])
@pytest.mark.parametrize("ctas", [3, 132])
def test_tiles_of_the_last_wave_are_split_where_that_is_faster(ctas, costs):
    for tiles in range(1, 5 * ctas):
        for blocks in (0, 1, 2, 7, 40, 300):
            split = split_of(tiles, ctas, blocks, costs)
            assert split.first + split.tiles == tiles and split.numbers >= tiles
            assert split.tiles in (0, tiles % ctas) and 1 <= split.parts <= min(MOST, max(blocks, 1))
            assert (split.tiles == 0) == (split.parts == 1)
            if split.tiles:
                assert rounds(split, ctas) < 0.85


def test_those_that_were_measured():
    """On an H200: ci/results/split_tiles_h200.json."""
    assert split_of(43 * 32, 132, 64, FORWARD) == Split(1320, 56, 2)  # 8,192 tokens, head dim 64
    assert split_of(11 * 16, 132, 16, FORWARD) == Split(132, 44, 3)  # 2,048
    assert split_of(11 * 128, 132, 16, FORWARD).tiles == 0  # eight sequences of 2,048
    assert split_of(32 * 32, 66, 64, FORWARD) == Split(990, 34, 5)  # 8,192, head dim 128, in clusters of two CTAs
    assert split_of(16 * 16, 66, 32, FORWARD).tiles == split_of(8 * 128, 66, 16, FORWARD).tiles == 0
    assert split_of(64 * 32, 132, 64, BACKWARD) == Split(1980, 68, 5)
    assert split_of(32 * 64, 132, 32, BACKWARD).tiles == 0  # four sequences of 4,096


def test_a_wave_that_is_full_is_not_split():
    assert split_of(264, 132, 64, FORWARD) == Split(264, 0, 1)
    assert split_of(264 - 1, 132, 64, FORWARD).tiles == 0
