"""Block lists in the eyes of the oracles, which share no code with the kernels' builders."""

from kernels.blocksparse.lists.types import Band, Bits, Intervals
from oracles.block_lists import BlockList, CheckedLists, check
from oracles.dq_visits import launch_visits
from oracles.semaphore_order import predict


def as_metadata(blocks):
    """BlockSparse as the metadata oracle takes it."""
    mask, lists = blocks.mask, {}
    for direction in ("forward", "backward"):
        both = getattr(blocks, direction)
        lists[direction] = tuple(BlockList(one.count, one.index, one.begin) for one in (both.partial, both.full))
    bits = isinstance(mask, Bits)
    return CheckedLists(
        blocks.tile_m,
        blocks.tile_n,
        **lists,
        words=mask.words if bits else None,
        slot=mask.slot if bits else None,
        slot_backward=mask.slot_backward if bits else None,
        bounds=mask.bounds if isinstance(mask, Intervals) else None,
        band=(mask.left, mask.right, mask.offset) if isinstance(mask, Band) else None,
        ranks=(blocks.order.partial, blocks.order.full),
        launch_order=blocks.schedule.launch_order(blocks.backward.rows, "cpu"),
    )


def as_visits(blocks, problem, pairs=None):
    """BlockSparse as the protocol oracle takes it."""
    lists = [(one.count, one.index, one.begin) for one in (blocks.backward.partial, blocks.backward.full)]
    return launch_visits(
        *lists,
        (blocks.order.partial, blocks.order.full),
        blocks.schedule.launch_order(blocks.backward.rows, "cpu"),
        batch=problem.batch,
        heads_q=problem.heads_q,
        heads_kv=problem.heads_kv,
        m_blocks=blocks.m_blocks,
        concurrent_pairs=pairs,
        keys=problem.lengths_k,
        tile_n=blocks.tile_n,
        merged=blocks.merged,
    )


def assert_accepted(blocks, problem):
    """Asserts that the lists are right, and that the backward pass ends with any number of resident CTAs and pairs."""
    assert check(problem, as_metadata(blocks)) == []
    for slots, pairs in ((1, None), (2, 1), (3, 8), (1000, None)):
        outcome = predict(as_visits(blocks, problem, pairs), slots)
        assert outcome.ends == "always", outcome.text
