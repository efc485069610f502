"""Ranges of queries that see ranges of keys, against their definition, query by query."""

from itertools import pairwise

import pytest
import torch
from block_list_tools import classified, listed
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.ranges import BI_CAUSAL, CAUSAL, FULL, INVERSE_CAUSAL, range_bounds, ranges


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
