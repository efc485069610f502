"""The block mask of a mask tensor is the one that FlexAttention makes of a mask_mod that reads the tensor."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from ci.benchmarks.flex_block_mask import block_mask_of

PARTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
BY_KEYS = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


def causal(len_q, len_k):
    return torch.ones(len_q, len_k, dtype=torch.bool).tril()


def window(len_q, len_k):
    return causal(len_q, len_k).triu(-40)


def largest(len_q, len_k):
    scores = torch.rand(len_k, generator=torch.Generator().manual_seed(1)).expand(len_q, len_k)
    allowed = causal(len_q, len_k)
    best = scores.masked_fill(~allowed, -torch.inf).topk(min(9, len_k), 1).indices
    return torch.zeros_like(allowed).scatter(1, best, True) & allowed


def one_pair(len_q, len_k):
    mask = torch.zeros(len_q, len_k, dtype=torch.bool)
    mask[-1, -1] = True
    return mask


def all_but_one(len_q, len_k):
    return ~one_pair(len_q, len_k)


def nothing(len_q, len_k):
    return torch.zeros(len_q, len_k, dtype=torch.bool)


@pytest.mark.parametrize("make", [causal, window, largest, one_pair, all_but_one, nothing])
@pytest.mark.parametrize(("len_q", "len_k", "tile"), [(512, 512, 128), (96, 160, 32), (70, 101, 32), (1, 65, 16)])
def test_the_lists_are_those_of_create_block_mask(make, len_q, len_k, tile):
    mask = make(len_q, len_k)

    def reads_the_tensor(b, h, q, k):
        return mask[q, k]

    wanted = create_block_mask(reads_the_tensor, None, None, len_q, len_k, device="cpu", BLOCK_SIZE=tile)
    made = block_mask_of(mask[None, None], tile)
    for part in PARTS + BY_KEYS:
        ours, theirs = getattr(made, part), getattr(wanted, part)
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), part
    assert made.seq_lengths == wanted.seq_lengths and made.BLOCK_SIZE == wanted.BLOCK_SIZE
    assert torch.equal(create_mask(made.mask_mod, 1, 1, len_q, len_k, device="cpu")[0, 0], mask)
