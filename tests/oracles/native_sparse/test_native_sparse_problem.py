"""NativeSparse: what it refuses, its shapes, and how a reduction edits it."""

from __future__ import annotations

import pytest
import torch

from oracles.masks import Causal, Full, Window
from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.rules import sees_window


def problem(**changes):
    return NativeSparse(
        **({"lengths": (300, 130), "heads_q": 4, "heads_kv": 2, "dim": 16, "dtype": "bfloat16"} | changes)
    )


@pytest.mark.parametrize(
    "changes", [{"lengths": ()}, {"lengths": (-1,)}, {"heads_kv": 3}, {"window_size": -1}, {"q_tile": 0}, {"dim": 0}]
)
def test_a_value_out_of_bounds_is_refused_by_its_name(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        problem(**changes)


def test_a_window_of_no_token_is_empty_and_one_that_is_not_causal_has_the_row_itself():
    assert not sees_window(problem(window_size=0), 5, "cpu").any()
    assert torch.equal(sees_window(problem(window_size=0, causal=False), 5, "cpu")[0], torch.eye(5, dtype=torch.bool))


def test_shapes_of_weights_lists_and_their_gradients():
    shape = problem(layout="packed", w_k=True, w_gate=True, compress_block_size=16, q_tile=64).shapes()
    assert shape["q"] == (430, 4, 16)
    assert shape["w_k"] == shape["dw_k"] == (2, 16, 16)
    assert shape["dw_gate"] == (4, 3, 16)
    assert "w_v" not in shape
    assert shape["blocks"] == (2, 4, 5, 16)  # 300 tokens are 5 tiles; 19 blocks, of which 16 are selected
    assert "groups" not in shape


def test_groups_are_a_choice_only_where_there_are_more_than_are_seen():
    assert problem(lengths=(129,), compress_block_size=1, num_cmp_selected_blocks=1).choices == ("blocks", "groups")
    assert problem(lengths=(128,), compress_block_size=1, num_cmp_selected_blocks=1).choices == ("blocks",)


def test_edits_in_attentions_words():
    p = problem()
    assert p.edited(lengths_q=(7,), lengths_k=(7,)).lengths == (7,)
    assert p.edited(mask=Full()).causal is False
    assert problem(causal="strict").edited(mask=Causal()).causal == "strict"
    assert p.edited(dim=8, dim_v=8, bias=None, softcap=0.0).dim == 8


@pytest.mark.parametrize(
    "changes", [{"mask": Window(3)}, {"softcap": 1.0}, {"lengths_q": (7,), "lengths_k": (8,)}, {"dim": 8}]
)
def test_what_the_operation_has_not_cannot_be_edited(changes):
    with pytest.raises(ValueError, match=r"mask|softcap|lengths_k|dim_v"):
        problem().edited(**changes)
