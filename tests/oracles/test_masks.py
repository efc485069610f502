"""Masks: every kind against a literal predicate in plain Python; joins, heads and batches; JSON and refusals."""

from __future__ import annotations

import random
from bisect import bisect_right

import msgspec
import pytest
import torch

from oracles import masks as m
from oracles.masks import KINDS, Mask, keep, kinds, parts, tag, varies_by_batch, varies_by_head


def said(mask: Mask, b: int, h: int, q: int, k: int, len_q: int, len_k: int) -> bool:
    """The documented meaning, one pair at a time."""
    here = (b, h, q, k, len_q, len_k)
    shift = len_k - len_q if getattr(mask, "align", "") == "bottom_right" else 0
    match mask:
        case m.Full():
            return True
        case m.Causal():
            return k <= q + shift
        case m.Window(left, right):
            return (left is None or q + shift - left <= k) and (right is None or k <= q + shift + right)
        case m.Prefix(length):
            return k < length
        case m.Documents(q_bounds, k_bounds):
            return bisect_right(q_bounds, q) == bisect_right(q_bounds if k_bounds is None else k_bounds, k)
        case m.Intervals(rows):
            return q < len(rows) and any(start <= k < stop for start, stop in rows[q])
        case m.Tokens(rows):
            return q < len(rows) and k < len(rows[q]) and rows[q][k] == "1"
        case m.Blocks(tile_m, tile_n, rows, seed):
            row = rows[q // tile_m] if q // tile_m < len(rows) else ""
            cell = row[k // tile_n] if k // tile_n < len(row) else "."
            return cell == "F" or (cell == "M" and pair_hash(q, k, seed) % 100 < m.PARTIAL_PERCENT)
        case m.And(of):
            return all(said(part, *here) for part in of)
        case m.Or(of):
            return any(said(part, *here) for part in of)
        case m.Not(of):
            return not said(of, *here)
        case m.TopK(width, of, seed, sequence, head):
            row = (b if sequence is None else sequence) * 0x10001 + (h // GROUP if head is None else head)
            seen = [key for key in range(len_k) if said(of, b, h, q, key, len_q, len_k)]
            best = sorted(seen, key=lambda key: (-pair_hash(row, key, seed), key))
            return k in best[:width]
        case m.PerHead(of):
            return said(of[h % len(of)], *here)
        case m.PerBatch(of):
            return said(of[b % len(of)], *here)
    raise AssertionError(mask)


def pair_hash(q: int, k: int, seed: int) -> int:
    """The hash in integers without a width, cut to 32 bits where the definition cuts."""
    x = (q * 0x9E3779B1 + k * 0x85EBCA77 + seed * 0x27D4EB2F) % 2**32
    x = ((x ^ x >> 15) * 0x2C1B3C6D) % 2**32
    x = ((x ^ x >> 12) * 0x297A2D39) % 2**32
    return (x ^ x >> 15) % 2**31


LEAVES: dict[str, Mask] = {
    "full": m.Full(),
    "causal": m.Causal(),
    "causal_br": m.Causal("bottom_right"),
    "window": m.Window(2, 1),
    "window_br": m.Window(3, 0, "bottom_right"),
    "window_left": m.Window(left=4),
    "window_right": m.Window(right=2, align="bottom_right"),
    "window_open": m.Window(),
    "prefix": m.Prefix(3),
    "prefix_0": m.Prefix(0),
    "prefix_long": m.Prefix(100),
    "documents": m.Documents((2, 2, 5)),
    "documents_0": m.Documents((0, 4)),
    "documents_k": m.Documents((2, 5), (1, 7)),
    "documents_none": m.Documents(()),
    "intervals": m.Intervals((((0, 2), (4, 6)), (), ((3, 3), (1, 5), (2, 8)), ((5, 2),), ((-3, 1),), ((0, 99),))),
    "intervals_none": m.Intervals(()),
    "tokens": m.Tokens(("1011", "", "0000001", "1" * 40)),
    "tokens_none": m.Tokens(()),
    "blocks": m.Blocks(2, 3, ("F.M", "", "MM", ".F"), 5),
    "blocks_big": m.Blocks(64, 64, ("M",)),
    "blocks_1": m.Blocks(1, 1, ("FM." * 3, "M.F" * 3)),
}
JOINED: dict[str, Mask] = {
    "and": m.And((m.Causal(), m.Window(2, None))),
    "or": m.Or((m.Prefix(2), m.Causal("bottom_right"), m.Tokens(("0000011",)))),
    "not": m.Not(m.Causal()),
    "deep": m.Not(m.Or((m.And((m.Full(), m.Not(m.Prefix(1)))), m.Documents((3,))))),
    "top_k": m.TopK(3, m.Causal("bottom_right"), seed=7),
    "top_k_all": m.TopK(20, m.Window(2, 3)),
    "top_k_none": m.TopK(0),
    "top_k_pinned": m.TopK(2, m.Full(), 1, sequence=1, head=2),
    "per_head": m.PerHead((m.Causal(), m.Full(), m.Blocks(2, 2, ("FM", ".F")))),
    "per_batch": m.PerBatch((m.Prefix(1), m.Causal("bottom_right"))),
    "both": m.PerBatch((m.PerHead((m.Full(), m.Causal())), m.Not(m.PerHead((m.Causal(), m.Prefix(3)))))),
}
GROUP = 2  # query heads of a KV head
LENGTHS = [(0, 5), (5, 0), (1, 1), (6, 6), (4, 9), (9, 4), (1, 8), (8, 1)]


def table(mask: Mask, b: int, h: int, len_q: int, len_k: int) -> list[list[bool]]:
    return [[said(mask, b, h, q, k, len_q, len_k) for k in range(len_k)] for q in range(len_q)]


def kept(mask: Mask, b: int, h: int, len_q: int, len_k: int) -> torch.Tensor:
    q, k = torch.arange(len_q)[:, None], torch.arange(len_k)[None, :]
    return keep(mask, q, k, batch=b, head=h, len_q=len_q, len_k=len_k, group=GROUP)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", [*LEAVES, *JOINED])
def test_the_predicate_is_what_the_text_says(name, lengths):
    mask = (LEAVES | JOINED)[name]
    for b in range(3):
        for h in range(4):
            found = kept(mask, b, h, *lengths)
            assert found.dtype == torch.bool and found.shape == lengths
            assert found.tolist() == table(mask, b, h, *lengths)


def test_the_table_holds_every_kind():
    assert set().union(*(kinds(mask) for mask in (*LEAVES.values(), *JOINED.values()))) == set(KINDS)


@pytest.mark.parametrize("name", [*LEAVES, *JOINED])
def test_any_positions_broadcast_as_a_tile_does(name):
    mask, (len_q, len_k) = (LEAVES | JOINED)[name], (9, 7)
    q, k = torch.tensor([8, 3, 3, 0]), torch.tensor([6, 0, 5, 5])
    whole = kept(mask, 1, 1, len_q, len_k)
    here = {"batch": 1, "head": 1, "len_q": len_q, "len_k": len_k, "group": GROUP}
    assert torch.equal(keep(mask, q, k, **here), whole[q, k])
    assert torch.equal(keep(mask, q[:, None], k[None, :], **here), whole[q][:, k])


@pytest.mark.parametrize("seed", range(20))
def test_random_tables_of_rows(seed):
    roll = random.Random(seed)
    len_q, len_k = roll.randint(1, 20), roll.randint(1, 20)
    rows = roll.randint(0, len_q + 2)
    intervals = m.Intervals(
        tuple(tuple((roll.randint(0, 20), roll.randint(0, 24)) for _ in range(roll.randint(0, 3))) for _ in range(rows))
    )
    tokens = m.Tokens(tuple("".join(roll.choice("01") for _ in range(roll.randint(0, 22))) for _ in range(rows)))
    tiles = tuple("".join(roll.choice("FM.") for _ in range(roll.randint(0, 5))) for _ in range(roll.randint(0, 5)))
    blocks = m.Blocks(roll.randint(1, 6), roll.randint(1, 6), tiles, roll.randint(0, 99))
    for mask in (intervals, tokens, blocks):
        assert kept(mask, 0, 0, len_q, len_k).tolist() == table(mask, 0, 0, len_q, len_k), mask


def test_a_partial_tile_keeps_about_half_of_its_pairs_and_depends_on_its_seed():
    one = kept(m.Blocks(256, 256, ("M",), 0), 0, 0, 256, 256)
    two = kept(m.Blocks(256, 256, ("M",), 1), 0, 0, 256, 256)
    assert 0.48 < one.float().mean() < 0.52
    assert 0.45 < (one != two).float().mean() < 0.55
    assert one.float().mean(0).min() > 0.3 and one.float().mean(1).min() > 0.3


@pytest.mark.parametrize("q, k, seed", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (65_535, 65_535, 65_535), (1 << 20, 7, 3)])
def test_the_pair_hash_does_not_overflow_at_long_sequences(q, k, seed):
    assert int(m._pair_hash(torch.tensor(q), torch.tensor(k), seed)) == pair_hash(q, k, seed)


@pytest.mark.parametrize("name", [*LEAVES, *JOINED])
def test_json_both_ways(name):
    mask = (LEAVES | JOINED)[name]
    text = msgspec.json.encode(mask)
    back = msgspec.json.decode(text, type=Mask)
    assert back == mask and hash(back) == hash(mask) and type(back) is type(mask)
    assert msgspec.json.decode(text)["kind"] == tag(mask)


def test_parts_kinds_and_what_varies():
    deep = JOINED["both"]
    assert kinds(deep) == {"per_batch", "per_head", "full", "causal", "not", "prefix"}
    assert [tag(part) for part in parts(deep)] == ["per_head", "not"] and parts(m.Full()) == ()
    assert varies_by_head(deep) and varies_by_batch(deep)
    assert not varies_by_head(m.Not(m.Causal())) and not varies_by_batch(JOINED["per_head"])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: m.Window(-1), "left: must be at least 0, got -1"),
        (lambda: m.Window(0, -2), "right: must be at least 0, got -2"),
        (lambda: m.Prefix(-1), "length: must be at least 0, got -1"),
        (lambda: m.Documents((3, 1)), r"q_bounds: must ascend, got \[3, 1\]"),
        (lambda: m.Documents((1,), (4, 2)), r"k_bounds: must ascend, got \[4, 2\]"),
        (lambda: m.Blocks(0, 1, ()), "tile_m: must be at least 1, got 0"),
        (lambda: m.Blocks(1, 0, ()), "tile_n: must be at least 1, got 0"),
        (lambda: m.Blocks(1, 1, ("FX",)), "rows: a block row holds only 'F', 'M' and '.', got 'FX'"),
        (lambda: m.Tokens(("012",)), "rows: a token row holds only '0' and '1', got '012'"),
        (lambda: m.And(()), "of: must name at least one mask"),
        (lambda: m.Or(()), "of: must name at least one mask"),
        (lambda: m.PerHead(()), "of: must name at least one mask"),
        (lambda: m.PerBatch(()), "of: must name at least one mask"),
    ],
)
def test_a_wrong_mask_names_the_field(make, message):
    with pytest.raises(ValueError, match=message):
        make()
