"""What the builders make, in the eyes of the oracles, which share no code with them: every tile, mask, rank; and that
the deterministic backward pass ends with any number of resident CTAs."""

import pytest
import torch
from accepted_by_oracles import as_visits, assert_accepted
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.from_mask import from_predicate
from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, permutation
from kernels.blocksparse.lists.write_order import with_order
from oracles.dq_visits import launch_visits
from oracles.masks import And, Blocks, Causal, Documents, Full, Not, PerBatch, PerHead, Prefix, Window, keep
from oracles.problem import Problem
from oracles.semaphore_order import predict

LENGTH = st.one_of(st.sampled_from([0, 1, 64, 65, 128, 200]), st.integers(0, 300))
LEAF = st.one_of(
    st.just(Full()),
    st.sampled_from([Causal(), Causal("bottom_right"), Prefix(70), Not(Full())]),
    st.builds(Window, st.none() | st.integers(0, 150), st.none() | st.integers(0, 150)),
    st.builds(lambda x: Documents(tuple(sorted(x))), st.lists(st.integers(0, 300), max_size=4)),
    st.builds(
        lambda rows, seed: Blocks(64, 64, tuple(rows), seed),
        st.lists(st.text("FM.", min_size=0, max_size=4), max_size=4),
        st.integers(0, 9),
    ),
)
MASK = st.one_of(
    LEAF,
    st.builds(lambda a, b: And((a, b)), LEAF, LEAF),
    st.builds(lambda a, b: PerHead((a, b)), LEAF, LEAF),
    st.builds(lambda a, b: PerBatch((a, b)), LEAF, LEAF),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=2),
    st.sampled_from([(1, 1), (2, 1), (2, 2)]),
    MASK,
    st.sampled_from([(64, 64), (64, 128), (128, 64), (128, 128)]),
    st.sampled_from(["ascending", "descending", "shuffled"]),
)
def test_any_mask_is_accepted_by_the_oracles(lengths, heads, mask, tile, kind):
    lengths_q, lengths_k = (tuple(x) for x in zip(*lengths, strict=True))
    problem = Problem(lengths_q, lengths_k, *heads, 32, 32, "bfloat16", mask=mask)
    blocks = from_predicate(
        lambda b, h, q, k: keep(mask, q, k, batch=b, head=h, len_q=lengths_q[b], len_k=lengths_k[b]),
        lengths_q,
        lengths_k,
        heads=heads[0],
        batch=len(lengths),
        tile_m=tile[0],
        tile_n=tile[1],
    )
    n_blocks = blocks.backward.rows
    shuffled = torch.stack([torch.randperm(n_blocks) for _ in range(len(lengths) * heads[1])]).int()
    schedules = {"ascending": ASCENDING, "descending": DESCENDING}
    schedule = schedules.get(kind, permutation(shuffled.view(len(lengths), heads[1], n_blocks)))
    assert_accepted(with_order(blocks, schedule), problem)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=3),
    st.none() | st.integers(0, 200),
    st.none() | st.integers(0, 200),
    st.sampled_from(["top_left", "bottom_right"]),
    st.sampled_from([(64, 64), (64, 128), (128, 64), (128, 128)]),
)
def test_bands_are_accepted_by_the_oracles(lengths, left, right, align, tile):
    lengths_q, lengths_k = (tuple(x) for x in zip(*lengths, strict=True))
    problem = Problem(lengths_q, lengths_k, 2, 1, 32, 32, "bfloat16", mask=Window(left, right, align))
    blocks = band(lengths_q, lengths_k, left=left, right=right, align=align, tile_m=tile[0], tile_n=tile[1])
    assert_accepted(blocks, problem)


@pytest.mark.parametrize("schedule", [ASCENDING, DESCENDING])
def test_the_published_deadlock_is_predicted_from_our_own_metadata(schedule):
    bounds = (366, 391, 471, 835, 984, 1005, 1017, 1020, 1023)
    problem = Problem((1024,), (1024,), 8, 1, 32, 32, "bfloat16", mask=Documents(bounds))
    blocks = documents(bounds, 1024, 1024, schedule=schedule)
    assert_accepted(blocks, problem)
    locks = []
    for lists in (blocks.backward.partial, blocks.backward.full):
        locks.append(torch.arange(8, dtype=torch.int32).repeat_interleave(lists.count.flatten().long()))
    of = as_visits(blocks, problem)
    bad = launch_visits(
        *((one.count, one.index, one.begin) for one in (blocks.backward.partial, blocks.backward.full)),
        tuple(locks),
        schedule.launch_order(8, "cpu"),
        batch=1,
        heads_q=8,
        heads_kv=1,
        m_blocks=8,
        merged=blocks.merged,
    )
    assert bad.tile == of.tile
    for slots in (1, 4, 8):
        outcome = predict(bad, slots)
        assert outcome.ends == "never"
        assert {tile.tile[2] for tile in outcome.incomplete if tile.tile[1] == 7} >= {3, 4, 5, 6, 7}
