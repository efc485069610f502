"""Lists from a BlockMask of FlexAttention are those of the mask that its mask_mod says."""

import pytest
import torch
from block_list_tools import classified, listed, masks_of, ranks_of
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from kernels.blocksparse.lists.bitmask import unpack
from kernels.blocksparse.lists.from_block_mask import from_block_mask
from kernels.blocksparse.lists.schedule import DESCENDING

DOCUMENT = torch.arange(400) // 90


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    return (DOCUMENT[q] == DOCUMENT[k]) & (q >= k)


def per_head(b, h, q, k):
    return (q - k).abs() < 50 * (h + 1) + 30 * b


def nothing(b, h, q, k):
    return k < 0


@pytest.mark.parametrize("mod", [causal, documents, per_head, nothing])
@pytest.mark.parametrize("block", [64, 128, (128, 64), 256])
@pytest.mark.parametrize("size", [(1, 1, 256, 256), (2, 3, 300, 333), (2, 1, 64, 400)])
def test_blocks_and_bits_are_those_of_the_mask(mod, block, size):
    batch, heads, len_q, len_k = size
    mask = create_block_mask(mod, batch, heads, len_q, len_k, device="cpu", BLOCK_SIZE=block)
    blocks = from_block_mask(mask)
    dense = create_mask(mod, batch, heads, len_q, len_k, device="cpu")
    assert blocks.forward.partial.count.shape[:2] == (batch, heads)
    truth = classified(dense, [len_q], [len_k], blocks.tile_m, blocks.tile_n)
    assert listed(blocks.forward) == truth
    assert listed(blocks.backward, backward=True) == truth
    for direction in ("forward", "backward"):
        found = masks_of(blocks, direction)
        assert found.keys() == {at for at, kind in truth.items() if kind == "M"}
        for (b, h, m, n), words in found.items():
            tile = dense[b, h, m * blocks.tile_m :, n * blocks.tile_n :][: blocks.tile_m, : blocks.tile_n]
            assert torch.equal(unpack(words)[: tile.shape[0], : tile.shape[1]], tile)


def test_tiles_smaller_than_the_blocks():
    mask = create_block_mask(causal, None, None, 512, 512, device="cpu")
    blocks = from_block_mask(mask, tile_m=64, tile_n=128, schedule=DESCENDING)
    assert (blocks.tile_m, blocks.tile_n) == (64, 128)
    assert listed(blocks.forward) == classified(torch.ones(1, 1, 512, 512).tril().bool(), [512], [512], 64, 128)
    assert ranks_of(blocks)[0, 0, 7, 0] == 3
    with pytest.raises(ValueError, match="tile_n"):
        from_block_mask(create_block_mask(causal, None, None, 512, 512, device="cpu", BLOCK_SIZE=64), tile_n=128)


def test_one_list_for_all_and_a_mask_mod_that_reads_the_head():
    blocks = create_block_mask(causal, None, None, 300, 300, device="cpu")

    def later(b, h, q, k):
        return (q >= k) & (k % (h + 1) == 0) & (k > 10 * b)

    mask = BlockMask.from_kv_blocks(blocks.kv_num_blocks + blocks.full_kv_num_blocks, _joined(blocks), None, None,
    mask_mod=later,
                                    BLOCK_SIZE=128, seq_lengths=(300, 300))  # fmt: skip
    found = from_block_mask(mask, batch=2, heads=3)
    dense = create_mask(later, 2, 3, 300, 300, device="cpu")
    assert listed(found.forward) == classified(dense, [300], [300], 128, 128)


def _joined(blocks):
    """Partial and full blocks of a causal mask in one list: 0 … m of row m."""
    return torch.arange(3, dtype=torch.int32).expand(1, 1, 3, 3).contiguous()


def test_bits_take_memory_only_for_distinct_partial_blocks():
    mask = create_block_mask(causal, None, None, 8192, 8192, device="cpu")
    blocks = from_block_mask(mask)
    assert blocks.mask.words.shape == (1, 128, 4)
