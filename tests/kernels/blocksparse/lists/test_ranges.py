"""Ranges of queries that see ranges of keys, against their definition, query by query."""

from itertools import pairwise

import pytest
import torch
from block_list_tools import classified, listed
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.ranges import (
    BI_CAUSAL,
    CAUSAL,
    FULL,
    INVERSE_CAUSAL,
    bounds_ranges,
    range_bounds,
    ranges,
)


def span(most):
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda x: tuple(sorted(x)))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 200), st.integers(0, 200), st.data())
def test_every_query_sees_the_keys_of_its_ranges(len_q, len_k, data):
    rows = data.draw(st.lists(st.tuples(span(len_q), span(len_k), st.integers(0, 3)), max_size=5))
    q_ranges, k_ranges, types = ([row[i] for row in rows] for i in range(3))
    mask = torch.zeros(1, 1, len_q, len_k, dtype=torch.bool)
    for (q_start, q_end), (k_start, k_end), kind in rows:
        for q in range(q_start, q_end):
            start = k_start + (q - q_start if kind in (INVERSE_CAUSAL, BI_CAUSAL) else 0)
            end = k_end - (q_end - q - 1 if kind in (CAUSAL, BI_CAUSAL) else 0)
            mask[0, 0, q, max(start, 0) : max(end, 0)] = True
    bounds = range_bounds(q_ranges, k_ranges, types, len_q, len_k)
    k = torch.arange(len_k)
    found = k < bounds[0, 0, 0, :, None]
    for i in range(1, bounds.shape[2], 2):
        found |= (k >= bounds[0, 0, i, :, None]) & (k < bounds[0, 0, i + 1, :, None])
    assert torch.equal(found, mask[0, 0])
    blocks = ranges(q_ranges, k_ranges, types, len_q, len_k, tile_m=64, tile_n=64)
    assert listed(blocks.forward) == classified(mask, [len_q], [len_k], 64, 64)


def test_the_published_segments_are_three_functions_per_row():
    cuts = [0, 366, 391, 471, 835, 984, 1005, 1017, 1020, 1023, 1024]
    spans = list(pairwise(cuts))
    bounds = range_bounds(spans, spans, [FULL] * 10, 1024, 1024)
    assert bounds.shape == (1, 1, 3, 1024)
    one = ranges(spans, spans, [FULL] * 10, 1024, 1024)
    other = documents(cuts[1:-1], 1024, 1024)
    assert listed(one.forward) == listed(other.forward)


def test_touching_ranges_are_one_interval():
    assert range_bounds([(0, 4), (0, 4)], [(0, 3), (3, 5)], [0, 0], 4, 8).tolist() == [[[[5, 5, 5, 5]]]]


def test_wrong_ranges_are_refused():
    with pytest.raises(ValueError, match="types: need 1 of each"):
        range_bounds([(0, 1)], [(0, 1)], [], 4, 4)
    with pytest.raises(ValueError, match="k_ranges"):
        range_bounds([(0, 1)], [(0, 5)], [0], 4, 4)
    with pytest.raises(ValueError, match="types: needs 0"):
        range_bounds([(0, 1)], [(0, 1)], [4], 4, 4)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 90), st.integers(0, 90), st.data())
def test_bounds_and_ranges_are_each_the_other_way_of_the_other(len_q, len_k, data):
    rows = data.draw(st.lists(st.tuples(span(len_q), span(len_k), st.integers(0, 3)), max_size=5))
    bounds = range_bounds(*zip(*rows, strict=True) if rows else ((), (), ()), len_q, len_k)
    q_ranges, k_ranges, types = bounds_ranges(bounds)
    assert torch.equal(range_bounds(q_ranges, k_ranges, types, len_q, len_k), bounds)
    covered = torch.zeros(len_q, len_k, dtype=torch.int32)
    for i in range(len(types)):
        one = range_bounds(q_ranges[i : i + 1], k_ranges[i : i + 1], types[i : i + 1], len_q, len_k)
        covered += seen(one, len_k)
    assert torch.equal(covered, seen(bounds, len_k))


@pytest.mark.parametrize("kind", [FULL, CAUSAL, INVERSE_CAUSAL, BI_CAUSAL])
def test_a_range_of_each_type_comes_back_as_it_was(kind):
    given_ranges = [(3, 13)], [(5, 20)], [kind]
    assert bounds_ranges(range_bounds(*given_ranges, 16, 24)) == given_ranges


def test_ranges_of_packed_sequences_are_those_of_each_sequence():
    lengths_q, lengths_k = [70, 0, 130], [90, 8, 130]
    packed = range_bounds([(0, 70), (70, 200)], [(10, 90), (98, 228)], [CAUSAL, BI_CAUSAL], lengths_q, lengths_k)
    assert packed.shape == (3, 1, 3, 130)
    alone = {0: ((0, 70), (10, 90), CAUSAL), 2: ((0, 130), (0, 130), BI_CAUSAL)}
    for b in range(3):
        q, k, kind = ([x] for x in alone[b]) if b in alone else ([], [], [])
        one = range_bounds(q, k, kind, lengths_q[b], lengths_k[b])
        assert torch.equal(seen(packed[b : b + 1], 130)[: lengths_q[b], : lengths_k[b]], seen(one, lengths_k[b]))
    mask = torch.stack([seen(packed[b : b + 1], 130).bool() for b in range(3)])[:, None]
    blocks = ranges([(0, 70), (70, 200)], [(10, 90), (98, 228)], [CAUSAL, BI_CAUSAL], lengths_q, lengths_k)
    assert listed(blocks.forward) == classified(mask, lengths_q, lengths_k, 128, 128)


def test_ranges_across_sequences_are_refused():
    with pytest.raises(ValueError, match="one sequence"):
        range_bounds([(0, 9)], [(0, 4)], [FULL], [8, 8], [8, 8])
    with pytest.raises(ValueError, match="one sequence"):
        range_bounds([(0, 8)], [(8, 12)], [FULL], [8, 8], [8, 8])


def seen(bounds, len_k):
    """int32 (len_q, len_k): 1 where one sequence's query sees a key, by the encoding's definition."""
    k, bounds = torch.arange(len_k), bounds[0, 0, :, :, None]
    found = k < bounds[0]
    for i in range(1, len(bounds), 2):
        found |= (k >= bounds[i]) & (k < bounds[i + 1])
    return found.to(torch.int32)
