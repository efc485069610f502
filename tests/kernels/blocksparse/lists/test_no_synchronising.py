"""What runs on the device path asks the device nothing: under fake tensors, whose values nobody knows, a question
raises."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.intervals import intervals
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, permutation
from kernels.blocksparse.lists.transpose import transpose
from kernels.blocksparse.lists.types import BlockList, BlockLists
from kernels.blocksparse.lists.write_order import write_order


def fake_list(batch=2, heads=3, rows=5, capacity=40):
    shape = (batch, heads, rows)
    return BlockList(
        torch.ones(shape, dtype=torch.int32),
        torch.zeros(capacity, dtype=torch.int32),
        torch.zeros(shape, dtype=torch.int64),
    )


def test_transposition_layouts_and_ranks():
    with FakeTensorMode():
        one = fake_list()
        turned, source = transpose(one, 7)
        assert turned.count.shape == (2, 3, 7) and turned.capacity == source.numel() == 40
        assert one.to_csr().capacity == 40
        assert one.to_padded(4)[1].shape == (2, 3, 5, 4)
        for schedule in (ASCENDING, DESCENDING, permutation(torch.zeros((2, 3, 5), dtype=torch.int32))):
            order = write_order(BlockLists(one, fake_list(capacity=9)), schedule, 7)
            assert order.partial.shape == (40,) and order.full.shape == (9,)


@pytest.mark.parametrize("capacity", [(50, 60), None])
def test_building_with_a_capacity_and_known_lengths(capacity):
    with FakeTensorMode():
        lengths = torch.ones(2, dtype=torch.int32)
        bounds = torch.zeros((1, 2, 3, 300), dtype=torch.int32)
        options = {"capacity": capacity, "longest": (300, 400)}
        for build in (
            lambda: band(lengths, lengths, left=10, right=0, align="bottom_right", **options),
            lambda: intervals(bounds, lengths, lengths, **options),
        ):
            if capacity is None:
                with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
                    build()
            else:
                blocks = build()
                assert blocks.order.partial.shape == (50,) and blocks.order.full.shape == (60,)
