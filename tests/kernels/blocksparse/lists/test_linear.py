"""LinearBlockSparse tuples and BlockSparse: each from the other, uncopied; and the published packed mask."""

from dataclasses import fields, replace
from itertools import pairwise

import pytest
import torch
from accepted_by_oracles import assert_accepted
from block_list_tools import listed

from kernels.blocksparse.lists.bands import window
from kernels.blocksparse.lists.intervals import intervals
from kernels.blocksparse.lists.linear import LinearBlockSparse, from_linear, to_linear
from kernels.blocksparse.lists.ranges import FULL, range_bounds, ranges
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING
from kernels.blocksparse.lists.types import BlockList, Intervals
from kernels.blocksparse.lists.write_order import with_order
from oracles.masks import Documents
from oracles.problem import Problem

CUTS = [0, 366, 391, 471, 835, 984, 1005, 1017, 1020, 1023, 1024]  # MagiAttention's varlen_full_1k
SPANS = list(pairwise(CUTS))
MATRIX = ["FFM.....", "FFM.....", "MMMM....", "..MMMMM.", "...MFFM.", "...MFFM.", "...MMMMM", "......MM"]
MASK_ROWS = [[2], [2], [0, 1, 2, 3], [2, 3, 4, 5, 6], [3, 6], [3, 6], [3, 4, 5, 6, 7], [6, 7]]
FULL_ROWS = [[0, 1], [0, 1], [], [], [4, 5], [4, 5], [], []]
MASK_RANKS = {
    False: [[0], [1], [2, 2, 2, 0], [3, 1, 0, 0, 0], [2, 1], [3, 2], [4, 3, 3, 3, 0], [4, 1]],
    True: [[3], [2], [0, 0, 1, 4], [0, 3, 3, 3, 4], [2, 3], [1, 2], [0, 0, 0, 1, 1], [0, 0]],
}
FULL_RANKS = {
    False: [[0, 0], [1, 1], [], [], [1, 1], [2, 2], [], []],
    True: [[2, 2], [1, 1], [], [], [2, 2], [1, 1], [], []],
}
COARSE = ["FFM.....", "MMMMMMM.", "...MFFM.", "...MMMMM"]  # of 256 queries each


def published(spt=False):
    blocks = ranges(SPANS, SPANS, [FULL] * 10, 1024, 1024)
    return with_order(blocks, DESCENDING if spt else ASCENDING)


def problem():
    return Problem((1024,), (1024,), 2, 2, 64, 64, "bfloat16", mask=Documents(tuple(CUTS[1:-1])))


def csr(rows):
    """(cnt, offset, idx) of the published tables."""
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32).view(1, 1, -1)
    offset = torch.cat((count.new_zeros(1), count.flatten().cumsum(0, dtype=torch.int32)))
    return count, offset, flat(rows)


def flat(rows):
    return torch.tensor([value for row in rows for value in row], dtype=torch.int32)


def matrix_rows(matrix, kind):
    return [[n for n, block in enumerate(row) if block == kind] for row in matrix]


def linear(matrix):
    """The forward tuple of a published matrix."""
    return LinearBlockSparse(*csr(matrix_rows(matrix, "M")), *csr(matrix_rows(matrix, "F")))


def linear_backward(spt):
    ranks = flat(MASK_RANKS[spt]), flat(FULL_RANKS[spt])
    return LinearBlockSparse(*csr(MASK_ROWS), *csr(FULL_ROWS), *ranks, spt)


def bounds():
    return Intervals(range_bounds(SPANS, SPANS, [FULL] * 10, 1024, 1024))


@pytest.mark.parametrize("spt", [False, True])
def test_the_published_mask_has_the_published_matrix_offsets_and_ranks(spt):
    forward, backward = to_linear(published(spt))
    for found, known in ((forward, linear(MATRIX)), (backward, linear_backward(spt))):
        for field in fields(known):
            one, other = getattr(found, field.name), getattr(known, field.name)
            assert torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other
    assert backward.mask_block_offset.tolist() == [0, 1, 2, 6, 11, 13, 15, 20, 22]
    assert backward.full_block_offset.tolist() == [0, 2, 4, 4, 4, 6, 8, 8, 8]


@pytest.mark.parametrize("spt", [False, True])
@pytest.mark.parametrize("rows", [128, 256])
def test_the_published_tuples_are_accepted_by_the_oracles(spt, rows):
    forward = linear(MATRIX if rows == 128 else COARSE)
    blocks = from_linear(forward, linear_backward(spt), bounds(), 1024, 1024, forward_tiles=(rows, 128))
    assert_accepted(blocks, problem())
    assert listed(blocks.forward) == listed(published().forward)


def test_tiles_of_256_queries_alone_are_cut_in_two():
    blocks = from_linear(linear(COARSE), None, bounds(), 1024, 1024, forward_tiles=(256, 128))
    coarse = {(m, n): COARSE[m // 2][n] for m in range(8) for n in range(8)}
    assert listed(blocks.forward) == {(0, 0, *at): kind for at, kind in coarse.items() if kind != "."}


def test_tiles_are_cut_both_ways_and_not_past_the_end_of_a_sequence():
    lengths_q, lengths_k = [300, 70, 0], [500, 130, 9]
    per_row = torch.tensor([9, 500, 500] * 100, dtype=torch.int32).view(1, 1, 1, -1)
    wide = intervals(per_row, lengths_q, lengths_k)
    forward, _ = to_linear(wide)
    cut = from_linear(forward, None, wide.mask, lengths_q, lengths_k, tiles=(64, 64), forward_tiles=(128, 128))
    fine = intervals(wide.mask.bounds, lengths_q, lengths_k, tile_m=64, tile_n=64)
    found, truth = listed(cut.forward), listed(fine.forward)
    assert truth.keys() <= found.keys()
    assert all(truth.get(at) == "F" for at, kind in found.items() if kind == "F")
    assert all(m * 64 < lengths_q[b] and n * 64 < lengths_k[b] for b, _, m, n in found)


def test_other_tiles_backward_than_forward_give_the_forward_lists_both_ways():
    blocks = from_linear(linear(MATRIX), linear_backward(False), bounds(), 1024, 1024, backward_tiles=(256, 128))
    assert listed(blocks.backward, backward=True) == listed(blocks.forward) == listed(published().forward)
    assert blocks.order is None


@pytest.mark.parametrize("schedule", [ASCENDING, DESCENDING])
def test_there_and_back_is_the_same_storage(schedule):
    blocks = with_order(window([700, 90], [700, 90], left=400), schedule)
    forward, backward = to_linear(blocks)
    again = from_linear(forward, backward, blocks.mask, [700, 90], [700, 90])
    for way in ("forward", "backward"):
        for kind in ("partial", "full"):
            one, other = (getattr(getattr(x, way), kind) for x in (again, blocks))
            assert one.index.data_ptr() == other.index.data_ptr() and one.count.data_ptr() == other.count.data_ptr()
            assert torch.equal(one.begin, other.begin)
    assert again.order.partial.data_ptr() == blocks.order.partial.data_ptr()
    assert again.order.full.data_ptr() == blocks.order.full.data_ptr()
    assert again.schedule.kind == schedule.kind
    assert listed(again.forward) == listed(blocks.forward)


def test_what_cannot_be_taken_is_refused():
    blocks = published()
    forward, backward = to_linear(blocks)
    with pytest.raises(ValueError, match="multiples"):
        from_linear(forward, None, bounds(), 1024, 1024, forward_tiles=(192, 128))
    with pytest.raises(ValueError, match="spt"):
        from_linear(forward, replace(backward, spt=None), bounds(), 1024, 1024)
    full = blocks.forward.full
    padded = BlockList.padded(*full.to_padded(8))
    with pytest.raises(ValueError, match="one after the other"):
        to_linear(replace(blocks, forward=replace(blocks.forward, full=padded)))
