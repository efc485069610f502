"""Halved lists of calls: made once for each BlockSparse, schedule and set of lengths."""

import gc

import torch

from kernels.blocksparse import halved_calls
from kernels.blocksparse.halved_calls import halved_for_call
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.schedule import DESCENDING
from kernels.blocksparse.lists.types import BlockSparse


def made(length: int = 300) -> tuple[BlockSparse, torch.Tensor, list[torch.Tensor]]:
    blocks = band([length, length], [length, length], left=None, right=0, tile_m=64, tile_n=128, schedule=DESCENDING)
    lengths = [torch.tensor([length, length - 1], dtype=torch.int32) for _ in range(2)]
    return blocks, torch.empty(2, 1, length, 136), lengths


def test_a_second_call_takes_the_same():
    blocks, k, lengths = made()
    first = halved_for_call(blocks, blocks, k, lengths)
    assert first.tile_n == 64
    assert halved_for_call(blocks, blocks, torch.empty_like(k), lengths) is first
    assert halved_for_call(blocks, blocks, k, []) is not first
    assert halved_for_call(blocks, blocks, k, lengths) is first


def test_other_lengths_and_changed_ones_are_halved_anew():
    blocks, k, lengths = made()
    first = halved_for_call(blocks, blocks, k, lengths)
    counts = [int(first.forward.partial.count.sum() + first.forward.full.count.sum())]
    lengths[1][0] = 64
    second = halved_for_call(blocks, blocks, k, lengths)
    counts.append(int(second.forward.partial.count.sum() + second.forward.full.count.sum()))
    assert second is not first
    assert counts[1] < counts[0]  # a sequence of 64 keys has no second half
    others = [x.clone() for x in lengths]
    assert halved_for_call(blocks, blocks, k, others) is not second


def test_another_schedule_is_halved_anew():
    blocks, k, lengths = made()
    other = BlockSparse(**{**vars(blocks), "schedule": type(DESCENDING)("ascending"), "order": None})
    first, second = (halved_for_call(blocks, one, k, lengths) for one in (blocks, other))
    assert (first.schedule.kind, second.schedule.kind) == ("descending", "ascending")


def test_forgotten_with_the_lists_and_beyond_a_few():
    blocks, k, lengths = made()
    for length in range(200, 220):
        halved_for_call(blocks, blocks, k[:, :, :length], [])
    assert len(halved_calls._made[blocks]) == halved_calls.KEPT
    before = len(halved_calls._made)
    del blocks, k, lengths
    gc.collect()
    assert len(halved_calls._made) == before - 1


def test_tensors_without_a_version_are_never_remembered():
    blocks, k, _ = made()
    with torch.inference_mode():
        lengths = [torch.tensor([300, 299], dtype=torch.int32) for _ in range(2)]
    assert halved_for_call(blocks, blocks, k, lengths) is not halved_for_call(blocks, blocks, k, lengths)
