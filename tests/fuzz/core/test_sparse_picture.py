"""The picture of a selection: what is selected, in the window, seen as a mean, hidden."""

from __future__ import annotations

import torch

from fuzz.core.sparse_picture import sparse_picture
from oracles.native_sparse.problem import NativeSparse


def test_each_tile_shows_what_it_sees_of_each_block():
    p = NativeSparse((96,), 1, 1, 8, "float32", compress_block_size=16, num_selected_blocks=1, window_size=8, q_tile=32)
    choices = {"blocks": torch.tensor([[[[1], [0], [0]]]], dtype=torch.int32)}
    lines = sparse_picture(p, choices, 0, 0, bad_rows=(40, 41))
    assert lines[1:] == ["     0 ▒█····", "    32 █▒▒▒·· ◀ wrong", "    64 █++▒▒▒"]
    assert len(sparse_picture(p, choices, 0, 0, width=2)[1]) == len("     0 ▒█…")
