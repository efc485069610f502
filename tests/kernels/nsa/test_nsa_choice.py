"""The choice of blocks by itself: the largest scores, the lower of equal ones, in rows of any length."""

import pytest
import torch

from kernels.nsa.choice import allowed_blocks, ascending, group_scores, top
from kernels.nsa.config import GROUP, SEGMENT


def wanted(scores, allowed, number):
    """By sorting."""
    columns = sorted((j for j in range(len(scores)) if allowed[j]), key=lambda j: (-float(scores[j]), j))[:number]
    return sorted(columns) + [-1] * (min(number, len(scores)) - len(columns))


@pytest.mark.parametrize("width", [1, 5, 64, 2 * 3 * SEGMENT, 2 * 3 * SEGMENT + 1, 1000])
@pytest.mark.parametrize("kind", ["distinct", "few values", "one value"])
def test_the_largest_are_chosen_and_of_equal_ones_the_lower(width, kind):
    draw = torch.Generator().manual_seed(width)
    scores = torch.randn(2, 3, 4, width, generator=draw)
    if kind != "distinct":
        scores = scores.round() if kind == "few values" else torch.copysign(torch.zeros(scores.shape), scores)
    allowed = torch.rand(2, 1, 4, width, generator=draw) < 0.7
    allowed[:, :, 0] = False
    allowed[:, :, 1, 2:] = False
    found = top(scores, allowed, 3, ascending)
    assert found.dtype == torch.int32 and found.shape == (2, 3, 4, min(3, width))
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
        assert found[b, h, t].tolist() == wanted(scores[b, h, t], allowed[b, 0, t], 3)


def test_infinite_scores_are_scores():
    scores = torch.full((1, 1, 1, 1000), -torch.inf)
    scores[..., 700], scores[..., 800] = torch.inf, -1e38
    allowed = torch.ones(1, 1, 1, 1000, dtype=torch.bool)
    allowed[..., :100] = False
    assert top(scores, allowed, 4, ascending).tolist() == [[[[100, 101, 700, 800]]]]


def test_rules_of_causality():
    block, tile = torch.arange(8), torch.arange(3)[:, None]
    published, strict = (allowed_blocks(block, tile, 48, 64, causal).sum(1).tolist() for causal in (1, 2))
    assert published == [2, 3, 4]  # begun before token 64, 128, 192
    assert strict == [0, 1, 2]  # ended with token 0, 64, 128
    assert allowed_blocks(block, tile, 48, 64, 0).all()


def test_a_groups_score_is_the_mean_of_those_that_count():
    score = torch.arange(200.0).view(1, 1, 1, 200)
    counted = torch.ones_like(score, dtype=torch.bool)
    counted[..., 150:] = False
    found, some = group_scores(score, counted)
    assert found.tolist() == [[[[63.5, sum(range(GROUP, 150)) / (150 - GROUP)]]]] and some.all()
