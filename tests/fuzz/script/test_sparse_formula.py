"""The functions that scripts of native sparse attention take along give the reference's answers, and see a wrong
selection."""

from __future__ import annotations

import pytest
import torch

from fuzz.script.sparse_formula import answers, exactly, wrong_selection
from fuzz.script.sparse_page import FIELDS
from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.reference import reference


def settings(p):
    found = {name: getattr(p, name) for name in FIELDS}
    found |= {"scale": p.scale_value, "groups": p.num_cmp_selected_blocks, "lengths": list(p.lengths)}
    return found | {"packed": p.layout == "packed"}


@pytest.mark.parametrize("causal", [True, False, "strict"])
@pytest.mark.parametrize("lengths", [(70, 0, 131), (300, 300)])
def test_the_text_of_a_script_is_the_reference(lengths, causal):
    p = NativeSparse(
        lengths, 4, 2, 8, "float32", "packed" if 0 in lengths else "padded", compress_block_size=2, q_tile=64,
        num_selected_blocks=3, window_size=20, num_cmp_selected_blocks=1, causal=causal,
        w_k=True, w_v=True, w_gate=True,
    )  # fmt: skip
    shape = p.shapes()
    torch.manual_seed(0)
    given = {name: torch.randn(shape[name]) for name in ("q", "k", "v", "do", *p.weights)}
    right = reference(p, given)
    found = answers(given, right.choices(), settings(p), exactly)
    for name, x in right.items():
        torch.testing.assert_close(found[name], x, rtol=1e-9, atol=1e-9)
    assert not wrong_selection(given, right.choices(), settings(p))
    other = right.choices()
    other["blocks"][0, 0, 0] = other["blocks"][0, 0, 0].flip(0).sort().values + 1
    assert wrong_selection(given, other, settings(p))
