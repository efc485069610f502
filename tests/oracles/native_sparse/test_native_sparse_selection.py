"""The selection as an answer: what is accepted, and the rule that each wrong one breaks."""

from __future__ import annotations

import pytest
import torch

from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.selection import differing, malformed, scores_of, true_selection, wrong_choices

P = NativeSparse((300,), 2, 1, 16, "bfloat16", compress_block_size=16, num_selected_blocks=3, q_tile=64)


def made(p, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = p.shapes()
    return {n: torch.randn(shape[n], generator=generator).to(p.torch_dtype) for n in ("q", "k", *p.weights)}


def changed(tile, blocks):
    choices = true_selection(P, made(P))
    choices["blocks"][0, 1, tile] = torch.tensor(blocks, dtype=torch.int32)
    return choices


def pattern(findings):
    return [(f.oracle, f.tensor, f.place.pattern) for f in findings]


@pytest.mark.parametrize("causal", [True, False, "strict"])
@pytest.mark.parametrize("w_k", [False, True])
def test_the_top_of_the_scores_as_a_kernel_rounds_them_is_accepted(causal, w_k):
    p = P.edited(causal=causal, w_k=w_k, lengths=(300, 300))
    for seed in range(5):
        given = made(p, seed)
        rounded = given | {"q": given["q"].double() * (1 + torch.randn(given["q"].shape) * 2**-10)}
        choices = true_selection(p, rounded)
        assert not malformed(p, choices) + wrong_choices(p, given, choices)


def test_strict_tiles_may_have_no_block():
    p = P.edited(causal="strict")
    assert true_selection(p, made(p))["blocks"][0, :, 0].tolist() == [[-1, -1, -1]] * 2


@pytest.mark.parametrize("blocks", [[3, 1, 2], [1, 1, 2], [-1, 1, 2], [0, 1, 19], [0, 1, -2]])
def test_lists_that_are_none(blocks):
    assert pattern(malformed(P, changed(4, blocks))) == [("selection", "blocks", "list")]


@pytest.mark.parametrize(
    ("tile", "blocks", "why"), [(0, [0, 1, 4], "not allowed"), (4, [0, 1, -1], "count"), (0, [-1, -1, -1], "count")]
)
def test_a_block_that_is_not_allowed_and_a_list_of_another_length(tile, blocks, why):
    choices = changed(tile, blocks)
    assert not malformed(P, choices)
    assert pattern(wrong_choices(P, made(P), choices)) == [("selection", "blocks", why)]


def test_a_block_of_a_lower_score():
    given = made(P)
    scores = scores_of(P, given["q"][0], given["k"][0], None)["blocks"].scores[1, 4]
    worst = scores.argsort()[:3].sort().values.tolist()
    assert pattern(wrong_choices(P, given, changed(4, worst))) == [("selection", "blocks", "not the top")]


def test_of_blocks_with_the_same_tokens_the_lower_one_comes_first():
    given = made(P)
    given["k"][:] = given["k"][:, :, :1]
    assert true_selection(P, given)["blocks"][0, 0, 3].tolist() == [0, 1, 2]
    choices = true_selection(P, given)
    choices["blocks"][0, 0, 3] = torch.tensor([0, 1, 5])
    assert pattern(wrong_choices(P, given, choices)) == [("selection", "blocks", "tie")]


@pytest.mark.parametrize("causal", [True, "strict"])
def test_groups_of_the_largest_mean_score(causal):
    p = NativeSparse(
        (700,), 2, 1, 16, "bfloat16", compress_block_size=2, num_cmp_selected_blocks=1, q_tile=64, causal=causal
    )
    given = made(p)
    choices = true_selection(p, given)
    assert choices["groups"].shape == (1, 2, 11, 1)
    assert not wrong_choices(p, given, choices)
    choices["groups"][0, 0, 10, 0] = (choices["groups"][0, 0, 10, 0] + 1) % 3
    assert pattern(wrong_choices(p, given, choices)) == [("selection", "groups", "not the top")]


def test_repeats_that_chose_otherwise_are_not_deterministic():
    first, other = changed(4, [0, 1, 2]), changed(4, [0, 1, 3])
    assert [f.kind for f in differing([first, first, other])] == ["nondeterministic"]
    assert not differing([first, first])
