"""The choice of blocks by itself: the largest scores, the lower of equal ones, in rows of any length."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from covering import nightly_unless

from kernels.nsa import selection
from kernels.nsa.api import checked
from kernels.nsa.choice import allowed_blocks, ascending, group_scores, top
from kernels.nsa.config import GROUP, SEGMENT, WIDTHS
from kernels.nsa.launches import choose
from kernels.nsa.operands import Operands
from kernels.nsa.plans import compressed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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


def operands_of(length, starts=None, heads=(4, 2), draw=torch.randn, **options):
    """Operands of two sequences of a length, or of a packed call."""
    rows = (length,) if starts else (2, length)
    q, k, v = (draw(*rows, n, 16, device=DEVICE, dtype=torch.float16) for n in (heads[0], *[heads[1]] * 2))
    options |= {"compress_block_size": 16, "window_size": 64}
    if starts:
        options |= {"cu_seqlens": torch.tensor(starts, dtype=torch.int32, device=DEVICE), "max_seqlen": max(starts)}
    return checked(q, k, v, **options)[0]


@pytest.mark.parametrize(
    ("draw", "causal", "number", "layout"),
    [
        nightly_unless(at == 8, *case)
        for at, case in enumerate(
            product(
                ["distinct", "equal"],
                [False, True, "strict"],
                [1, 5],
                [(None, (4, 2)), ((0, 60, 60, 199, 200), (2, 2))],
            )
        )
    ],
)
def test_the_kernel_chooses_what_tensor_operations_choose(monkeypatch, draw, causal, number, layout):
    options = {"num_selected_blocks": number, "causal": causal, "q_tile_size": 64}
    starts, heads = layout
    operands = operands_of(200, starts, heads, {"distinct": torch.randn, "equal": torch.zeros}[draw], **options)
    k_mean = compressed(operands).k
    found = selection.select(operands, k_mean).blocks
    monkeypatch.setattr(selection, "WIDEST", 0)
    assert torch.equal(found, selection.select(operands, k_mean).blocks)


@pytest.mark.parametrize("width", [1, WIDTHS[0], WIDTHS[0] + 1, WIDTHS[1] + 1])
@pytest.mark.parametrize("kind", ["distinct", "few values", "zeros of both signs", "infinite"])
def test_the_kernel_chooses_the_largest_and_of_equal_ones_the_lower(width, kind):
    draw = torch.Generator().manual_seed(width)
    scores = torch.randn(1, 1, 3, width, generator=draw)
    if kind == "few values":
        scores = scores.round()
    elif kind != "distinct":
        scores = torch.copysign(torch.full(scores.shape, 0.0 if kind[0] == "z" else torch.inf), scores)
    small = operands_of(1, heads=(1, 1), num_selected_blocks=3, q_tile_size=64)
    q, k, v = (x[:1, :1].expand(1, 16 * width, 1, 16) for x in (small.q, small.k, small.v))
    settings = replace(small.settings, longest=16 * width, causal=0, tile=64, scale=1.0)
    operands = Operands(q, k, v, None, None, None, None, settings)
    tiles = min(3, settings.tiles)
    blocks = torch.full((1, 1, settings.tiles, min(3, width)), 7, dtype=torch.int32, device=DEVICE)
    operands.launcher.triton(choose(operands, scores[:, :, :tiles].contiguous().to(DEVICE), blocks, 0, tiles))
    for tile in range(tiles):
        assert blocks[0, 0, tile].tolist() == wanted(scores[0, 0, tile], [True] * width, 3)
    assert (blocks[:, :, tiles:] == 7).all()


@pytest.mark.nightly
def test_a_chunk_of_tiles_is_written_where_it_lies(monkeypatch):
    operands = operands_of(500, num_selected_blocks=4, q_tile_size=64)
    k_mean = compressed(operands).k
    whole = selection.select(operands, k_mean).blocks
    steps = replace(operands.settings.steps, tiles_at_once=lambda scores_of_a_tile: 3)
    monkeypatch.setattr(type(operands.settings), "steps", steps)
    assert torch.equal(selection.select(operands, k_mean).blocks, whole)
