"""The mutant of the unmasked row statistics is wrong in exactly the elements that its pull request's table counts.

FlagGems, "Add backward of SDPA", observations of dV: with tiles of 64 queries, offset = mod(64 - mod(len, 64), 64)
(Expression 1); of n heads that are no groups (n - 1) * dim * offset elements are wrong, those of the first tokens of
every head but the first (Expression 2). With grouped heads the first KV head is wrong too. The programs of a launch run
one after the other here, as Triton's interpreter has them: of two that store a row, the one that must not is last.
"""

import pytest
import torch
from covering import nightly_unless
from sdpa_cases import DEVICE, qkv, run

from kernels.mutants.sdpa.table import MUTANTS
from kernels.sdpa import scaled_dot_product_attention

TILE = 64
# Query heads, KV heads, length, head dim, and the mismatches that were published, found within a tolerance.
TABLE = {
    1: (8, 8, 128, 64, 0),
    2: (8, 8, 127, 64, 447),
    3: (8, 8, 120, 64, 3554),
    4: (8, 8, 64, 64, 0),
    5: (8, 8, 129, 64, 27299),
    6: (8, 8, 255, 64, 448),
    7: (8, 4, 128, 64, 0),
    8: (8, 4, 127, 64, 256),
    9: (8, 4, 120, 64, 2033),
    10: (8, 4, 129, 64, 15684),
    11: (8, 8, 128, 128, 0),
    12: (8, 8, 127, 128, 895),
    13: (8, 8, 120, 128, 7109),
    14: (8, 8, 64, 128, 0),
}


def offset_of(length: int) -> int:
    """Expression 1."""
    return (TILE - length % TILE) % TILE


@pytest.mark.skipif(
    DEVICE == "cuda", reason="two CTAs write the same rows; which of them is last is not fixed on a GPU"
)
@pytest.mark.parametrize("row", [nightly_unless(n in (1, 9), n) for n in TABLE])
def test_wrong_elements_are_those_of_the_published_expressions(guarded, row):
    heads_q, heads_kv, length, dim, published = TABLE[row]
    inputs = qkv(1, heads_q, heads_kv, length, length, dim)
    options = {"return_lse": True, "is_causal": True, "enable_gqa": heads_q > heads_kv}
    got = run(MUTANTS["unmasked_row_statistics"], inputs, **options)
    right = run(scaled_dot_product_attention, inputs, **options)
    wrong = {name: got[name] != right[name] for name in ("out", "lse", "dvalue")}

    offset = offset_of(length)
    heads = torch.arange(heads_q) > 0  # query heads into whose first rows another head's last tile stores
    first = torch.arange(length) < offset
    assert not wrong["out"].any()
    assert torch.equal(wrong["lse"][0], heads[:, None] & first)
    kv_heads = heads.view(heads_kv, -1).any(1)
    assert torch.equal(wrong["dvalue"][0].all(-1), kv_heads[:, None] & first)  # every element of these tokens
    assert torch.equal(wrong["dvalue"].any(-1), wrong["dvalue"].all(-1))  # and none of others
    count = int(wrong["dvalue"].sum())
    assert count == (heads_q - 1 if heads_q == heads_kv else heads_kv) * dim * offset  # Expression 2
    assert (count == 0) == (published == 0) and published <= count
