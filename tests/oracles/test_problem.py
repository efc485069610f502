"""Problem: shapes, views of sequences, masks with padding, every broadcast of a bias, refusals that name the field."""

from __future__ import annotations

import math
from itertools import product

import msgspec
import pytest
import torch

from oracles.masks import And, Causal, Full, Not, PerBatch, PerHead, Prefix, Window, keep
from oracles.problem import Bias, Problem, bias_view, cumulative, dense_mask, mask_tile, sequence_view, shapes


def problem(**changes) -> Problem:
    plain = {"lengths_q": (3, 5), "lengths_k": (4, 2), "heads_q": 6, "heads_kv": 2, "dim": 8, "dim_v": 16}
    return Problem(**{**plain, "dtype": "float32", **changes})


def test_sizes_that_follow_from_the_fields():
    p = problem()
    assert (p.batch, p.len_q, p.len_k, p.group, p.ragged) == (2, 5, 4, 3, True)
    assert p.pairs == 6 * (3 * 4 + 5 * 2)
    assert (
        p.scale_value == 8**-0.5 and problem(scale=0.0).scale_value == 0.0 and problem(scale=-2.0).scale_value == -2.0
    )
    assert problem(dtype="bfloat16").torch_dtype is torch.bfloat16
    assert not problem(lengths_q=(5, 5), lengths_k=(2, 2)).ragged
    assert problem(lengths_q=(5, 5), lengths_k=(2, 3)).ragged


def test_shapes_of_a_padded_problem():
    found = shapes(problem(bias=Bias()))
    assert found == {
        "q": (2, 6, 5, 8),
        "k": (2, 2, 4, 8),
        "v": (2, 2, 4, 16),
        "o": (2, 6, 5, 16),
        "do": (2, 6, 5, 16),
        "lse": (2, 6, 5),
        "dq": (2, 6, 5, 8),
        "dk": (2, 2, 4, 8),
        "dv": (2, 2, 4, 16),
        "bias": (1, 1, 5, 4),
        "dbias": (1, 1, 5, 4),
    }


def test_shapes_of_a_packed_problem():
    found = shapes(problem(layout="packed"))
    assert found["q"] == (8, 6, 8) and found["k"] == (6, 2, 8) and found["v"] == (6, 2, 16)
    assert found["o"] == found["do"] == (8, 6, 16) and found["lse"] == (6, 8)
    assert found["dq"] == (8, 6, 8) and found["dk"] == (6, 2, 8) and found["dv"] == (6, 2, 16)
    assert "bias" not in found


@pytest.mark.parametrize("flags", list(product((False, True), repeat=4)))
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_every_broadcast_of_a_bias(flags, layout):
    p = problem(bias=Bias(*flags), layout=layout)
    whole = shapes(p)["bias"]
    assert whole == tuple(size if there else 1 for there, size in zip(flags, (2, 6, 5, 4), strict=True))
    bias = torch.arange(math.prod(whole)).view(whole)
    full = bias.expand(2, 6, 5, 4)
    for b in range(2):
        part = bias_view(p, bias, b)
        assert torch.equal(
            part.expand(6, p.lengths_q[b], p.lengths_k[b]), full[b, :, : p.lengths_q[b], : p.lengths_k[b]]
        )
        assert part.data_ptr() >= bias.data_ptr() and part._base is not None


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("name", ["q", "k", "v", "o", "do", "lse", "dq", "dk", "dv"])
def test_the_view_of_a_sequence_is_a_view_without_padding(layout, name):
    p = problem(layout=layout)
    whole = torch.arange(math.prod(shapes(p)[name])).view(shapes(p)[name])
    keys = name in ("k", "v", "dk", "dv")
    lengths = p.lengths_k if keys else p.lengths_q
    for b, length in enumerate(lengths):
        part = sequence_view(p, name, whole, b)
        assert part.shape[:2] == (2 if keys else 6, length) and part.untyped_storage().data_ptr() == whole.data_ptr()
        for h in range(part.shape[0]):
            for i in range(length):
                if layout == "padded":
                    there = whole[b, h, i]
                elif name == "lse":
                    there = whole[h, sum(lengths[:b]) + i]
                else:
                    there = whole[sum(lengths[:b]) + i, h]
                assert torch.equal(part[h, i], there)


def test_views_of_sequences_without_tokens_are_empty():
    p = problem(lengths_q=(0, 3, 0), lengths_k=(2, 0, 0), layout="packed")
    q, k = torch.zeros(shapes(p)["q"]), torch.zeros(shapes(p)["k"])
    assert [sequence_view(p, "q", q, b).shape[1] for b in range(3)] == [0, 3, 0]
    assert [sequence_view(p, "k", k, b).shape[1] for b in range(3)] == [2, 0, 0]


MASKS = {
    "full": Full(),
    "causal": Causal(),
    "bottom_right": Causal("bottom_right"),
    "window": Window(1, 0, "bottom_right"),
    "per_head": PerHead((Causal(), Full(), Prefix(1))),
    "per_batch": PerBatch((Not(Causal()), Full())),
    "mixed": And((PerBatch((Full(), Causal("bottom_right"))), PerHead((Prefix(3), Full())))),
}


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_the_dense_mask_is_the_predicate_of_each_sequence_and_leaves_padding_out(name, ragged, layout):
    lengths = {} if ragged else {"lengths_q": (5, 5), "lengths_k": (4, 4)}
    p = problem(mask=MASKS[name], layout=layout, **lengths)
    whole = dense_mask(p)
    assert whole.shape[0] == (2 if ragged or name in ("per_batch", "mixed") else 1)
    assert whole.shape[1] == (6 if name in ("per_head", "mixed") else 1)
    whole = whole.expand(2, 6, 5, 4)
    for b, h, q, k in product(range(2), range(6), range(5), range(4)):
        inside = q < p.lengths_q[b] and k < p.lengths_k[b]
        at = torch.tensor(q), torch.tensor(k)
        here = {"batch": b, "head": h, "len_q": p.lengths_q[b], "len_k": p.lengths_k[b]}
        assert bool(whole[b, h, q, k]) == (inside and bool(keep(p.mask, *at, **here)))


def test_bottom_right_goes_by_each_sequences_own_lengths():
    p = problem(mask=Causal("bottom_right"), lengths_q=(2, 4), lengths_k=(4, 2))
    whole = dense_mask(p)
    assert whole[0, 0].sum(1).tolist() == [3, 4, 0, 0]
    assert whole[1, 0].sum(1).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("name", MASKS)
def test_a_tile_is_a_piece_of_the_dense_mask(name):
    p = problem(mask=MASKS[name], lengths_q=(9, 9), lengths_k=(7, 7))
    whole = dense_mask(p).expand(2, 6, 9, 7)
    for b, h in product(range(2), range(6)):
        assert torch.equal(mask_tile(p, b, h, (2, 6), (3, 7), "cpu"), whole[b, h, 2:6, 3:7])


def test_cumulative_lengths():
    assert cumulative((3, 0, 5)) == (0, 3, 3, 8) and cumulative(()) == (0,)


def test_a_problem_is_a_value():
    p = problem(mask=MASKS["mixed"], bias=Bias(grad=False), softcap=3.0)
    back = msgspec.json.decode(msgspec.json.encode(p), type=Problem)
    assert back == p and hash(back) == hash(p)
    with pytest.raises(AttributeError):
        p.dim = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"heads_q": 0}, "heads_q: must be at least 1, got 0"),
        ({"heads_kv": -1}, "heads_kv: must be at least 1, got -1"),
        ({"dim": 0}, "dim: must be at least 1, got 0"),
        ({"dim_v": 0}, "dim_v: must be at least 1, got 0"),
        ({"lengths_q": ()}, r"lengths_q: needs at least one length, none negative, got \[\]"),
        ({"lengths_k": (4, -1)}, r"lengths_k: needs at least one length, none negative, got \[4, -1\]"),
        ({"lengths_k": (4,)}, "lengths_k: needs 2 lengths as lengths_q has, got 1"),
        ({"heads_kv": 4}, "heads_kv: must divide heads_q = 6, got 4"),
        ({"scale": math.nan}, "scale: must be finite in float32, got nan"),
        ({"scale": math.inf}, "scale: must be finite in float32, got inf"),
        ({"scale": -1e39}, "scale: must be finite in float32, got -1e"),
        ({"softcap": -1.0}, "softcap: must be 0"),
        ({"softcap": math.inf}, "softcap: must be 0"),
    ],
)
def test_a_wrong_problem_names_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        problem(**changes)
