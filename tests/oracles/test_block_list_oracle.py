"""The metadata oracle: silent on right metadata made by hand, one finding for each planted fault."""

from dataclasses import replace

import pytest
import torch

from oracles.block_lists import BlockList, CheckedLists, check, tiles
from oracles.masks import Blocks, Documents, PerHead, Window
from oracles.problem import Problem, mask_tile


def problem(mask, lengths_q=(1024,), lengths_k=(1024,), heads_q=1, heads_kv=1):
    return Problem(lengths_q, lengths_k, heads_q, heads_kv, 32, 32, "bfloat16", mask=mask)


PUBLISHED = problem(Documents((366, 391, 471, 835, 984, 1005, 1017, 1020, 1023)))
ROWS = ["FFM.....", "FFM.....", "MMMM....", "..MMMMM.", "...MFFM.", "...MFFM.", "...MMMMM", "......MM"]


def of_rows(rows, kind):
    """A list from its rows' strings, in CSR."""
    lists = [[col for col, cell in enumerate(row) if cell == kind] for row in rows]
    count = torch.tensor([len(row) for row in lists], dtype=torch.int32).view(1, 1, -1)
    index = torch.tensor([col for row in lists for col in row] or [0], dtype=torch.int32)
    return BlockList(count, index, (count.cumsum(-1) - count).to(torch.int64))


def turned(rows):
    return ["".join(row[n] for row in rows) for n in range(len(rows[0]))]


def published():
    """Metadata of varlen_full_1k, with packed masks from the predicate and ranks in ascending order."""
    forward = (of_rows(ROWS, "M"), of_rows(ROWS, "F"))
    backward = (of_rows(turned(ROWS), "M"), of_rows(turned(ROWS), "F"))
    words = {}
    for m, row in enumerate(ROWS):
        for n, cell in enumerate(row):
            if cell == "M":
                kept = mask_tile(PUBLISHED, 0, 0, (128 * m, 128 * m + 128), (128 * n, 128 * n + 128), "cpu")
                bits = (kept.view(128, 4, 32).long() << torch.arange(32)).sum(-1)
                words[m, n] = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
    slots = {at: slot for slot, at in enumerate(words)}
    ranks = []
    for kind in "MF":
        ranks.append([sum(c != "." for c in ROWS[m][:n]) for n in range(8) for m in range(8) if ROWS[m][n] == kind])
    return CheckedLists(
        128,
        128,
        forward,
        backward,
        words=torch.stack(list(words.values())),
        slot=torch.tensor([slots[m, n] for m in range(8) for n in range(8) if (m, n) in slots]),
        slot_backward=torch.tensor([slots[m, n] for n in range(8) for m in range(8) if (m, n) in slots]),
        ranks=tuple(torch.tensor(one, dtype=torch.int32) for one in ranks),
        launch_order=torch.arange(8).view(1, 1, 8),
    )


def test_tiles_of_the_published_example():
    rows = [["."] * 8 for _ in range(8)]
    for (_, _, m, n), full in tiles(PUBLISHED, 128, 128).items():
        rows[m][n] = "F" if full else "M"
    assert ["".join(row) for row in rows] == ROWS


def test_right_metadata_have_no_finding():
    assert check(PUBLISHED, published()) == []


def put(tensor, at, value):
    changed = tensor.clone()
    changed[at] = value
    return changed


def with_list(metadata, direction, which, **fields):
    lists = list(getattr(metadata, direction))
    lists[which] = replace(lists[which], **fields)
    return replace(metadata, **{direction: tuple(lists)})


FAULTS = {
    "row beyond the index": (
        lambda x: with_list(x, "forward", 0, count=put(x.forward[0].count, (0, 0, 7), 3)),
        {("malformed", "forward"), ("missing", "forward"), ("mismatched", "backward")},
    ),
    "negative count": (
        lambda x: with_list(x, "forward", 1, count=put(x.forward[1].count, (0, 0, 0), -1)),
        {("malformed", "forward"), ("missing", "forward"), ("mismatched", "backward")},
    ),
    "block out of range": (
        lambda x: with_list(x, "forward", 0, index=put(x.forward[0].index, 0, 8)),
        {("malformed", "forward"), ("missing", "forward"), ("mismatched", "backward")},
    ),
    "duplicate": (
        lambda x: with_list(x, "forward", 0, index=put(x.forward[0].index, 3, 0)),
        {("duplicate", "forward"), ("missing", "forward"), ("mismatched", "backward")},
    ),
    "partial and full": (
        lambda x: with_list(x, "forward", 0, index=put(x.forward[0].index, 0, 0)),
        {("duplicate", "forward"), ("missing", "forward"), ("wrong", "forward"), ("mismatched", "backward")},
    ),
    "one short": (
        lambda x: with_list(x, "backward", 0, count=put(x.backward[0].count, (0, 0, 2), 3)),
        {("missing", "backward"), ("mismatched", "backward"), ("order", "ranks")},
    ),
    "mask of another block": (lambda x: replace(x, slot=put(x.slot, 0, 5)), {("wrong", "forward")}),
    "slot out of range": (lambda x: replace(x, slot_backward=put(x.slot_backward, 0, 99)), {("wrong", "backward")}),
    "one bit": (
        lambda x: replace(x, words=put(x.words, (0, 5, 3), 1 << 7)),
        {("wrong", "forward"), ("wrong", "backward")},
    ),
    "rank": (lambda x: replace(x, ranks=(put(x.ranks[0], 3, 3), x.ranks[1])), {("order", "ranks")}),
    "ranks of each list on its own": (
        lambda x: replace(x, ranks=(x.ranks[0] * 0, x.ranks[1])),
        {("order", "ranks")},
    ),
    "n_block as rank": (
        lambda x: replace(x, ranks=tuple(n_of(one) for one in x.backward)),
        {("order", "ranks")},
    ),
    "launched the other way": (lambda x: replace(x, launch_order=x.launch_order.flip(-1)), {("order", "ranks")}),
    "no permutation": (lambda x: replace(x, launch_order=x.launch_order * 0), {("order", "launch_order")}),
}


def n_of(one):
    return torch.arange(8).repeat_interleave(one.count.flatten().long()).int()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    plant, expected = FAULTS[fault]
    found = check(PUBLISHED, plant(published()))
    assert {(finding.kind, finding.tensor) for finding in found} == expected
    assert all(finding.oracle == "block_lists" and finding.message for finding in found)


def test_a_full_block_that_is_masked_is_found():
    rows = [row.replace("M", "F", 1) if m == 0 else row for m, row in enumerate(ROWS)]
    forward = (of_rows(rows, "M"), of_rows(rows, "F"))
    found = check(PUBLISHED, replace(published(), forward=forward, backward=None))
    wrong = [finding for finding in found if "listed as full" in finding.message]
    assert [finding.place.tile for finding in wrong] == [(0, 1)]
    assert "(batch 0, head 0, m_block 0, n_block 2)" in wrong[0].message


def test_intervals_and_bands_are_evaluated():
    asked = problem(Window(left=30, right=10), (100,), (100,))
    rows = ["MM", "MM"]
    band = (30, 10, torch.zeros(1, dtype=torch.int32))
    metadata = CheckedLists(64, 64, (of_rows(rows, "M"), of_rows(rows, "F")), band=band)
    assert check(asked, metadata) == []
    assert [finding.kind for finding in check(asked, replace(metadata, band=(31, 10, band[2])))] == ["wrong"]
    q = torch.arange(100)
    bounds = torch.stack((q * 0, (q - 30).clamp(min=0), q + 11)).int().view(1, 1, 3, 100)
    assert check(asked, replace(metadata, band=None, bounds=bounds)) == []
    wrong = check(asked, replace(metadata, band=None, bounds=put(bounds, (0, 0, 2, 99), 99)))
    assert [finding.kind for finding in wrong] == ["wrong"]


def test_heads_and_sequences_are_told_apart():
    grids = [Blocks(64, 64, ("F.", ".F")), Blocks(64, 64, (".F", "F."))]
    asked = problem(PerHead(tuple(grids)), (128, 64), (128, 128), heads_q=2)
    lists = [of_rows(rows, "F") for rows in (["F.", ".F"], [".F", "F."])]
    count = torch.cat([one.count for one in lists], 1).repeat(2, 1, 1)
    count[1, :, 1] = 0
    index = torch.cat([one.index for one in lists])
    begin = torch.tensor([[[0, 1], [2, 3]]] * 2)
    nothing = BlockList(count * 0, index, begin)
    assert check(asked, CheckedLists(64, 64, (nothing, BlockList(count, index, begin)))) == []
    for_all = BlockList(count[:1, :1], index, begin[:1, :1])
    found = check(asked, CheckedLists(64, 64, (nothing, for_all)))
    assert {finding.kind for finding in found} == {"missing", "wrong", "malformed"}


def test_full_forward_and_partial_backward_is_right_where_the_mask_keeps_all():
    asked = problem(Window(left=127, right=127), (128,), (128,))
    bounds = torch.full((1, 1, 1, 128), 128, dtype=torch.int32)
    full, partial = ((of_rows([cell * 2] * 2, "M"), of_rows([cell * 2] * 2, "F")) for cell in "FM")
    assert check(asked, CheckedLists(64, 64, full, partial, bounds=bounds)) == []
    (found,) = check(asked, CheckedLists(64, 64, partial, full, bounds=bounds))
    assert (found.kind, found.tensor) == ("mismatched", "backward")
    assert "full here and partial forward" in found.message
