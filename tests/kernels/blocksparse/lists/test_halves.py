"""Lists over tiles of 128 keys, halved: valid lists of the same mask."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.intervals import intervals
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.types import Bits, BlockLists
from kernels.blocksparse.lists.validate.contents import check_contents
from kernels.blocksparse.lists.validate.shapes import Sizes, check_shapes
from kernels.blocksparse.lists.write_order import with_order

LENGTHS = {"long last half": (300, 450), "no last half": (300, 320), "one": (70, 1), "ragged": ([130, 40], [200, 129])}


def sizes(lengths_q, lengths_k, heads=2):
    q, k = (torch.tensor(x if isinstance(x, list) else [x]) for x in (lengths_q, lengths_k))
    return Sizes(len(q), heads, 1, int(q.max()), int(k.max()), q, k)


def tokens(blocks, batch, heads, len_q, len_k):
    """Tokens that the forward lists and bits keep, bool (batch, heads, len_q, len_k)."""
    found = torch.zeros(batch, heads, blocks.m_blocks * blocks.tile_m, (len_k // 128 + 1) * 128, dtype=torch.bool)
    for kind in ("partial", "full"):
        one = getattr(blocks.forward, kind)
        for b in range(batch):
            for h in range(heads):
                for m in range(one.rows):
                    at = (min(b, one.batch - 1), min(h, one.heads - 1), m)
                    for place in range(int(one.begin[at]), int(one.begin[at]) + int(one.count[at])):
                        n, cell = int(one.index[place]), torch.ones(blocks.tile_m, blocks.tile_n, dtype=torch.bool)
                        if kind == "partial" and isinstance(blocks.mask, Bits):
                            words = blocks.mask.words[int(blocks.mask.slot[place])]
                            cell = (words[..., None] >> torch.arange(32) & 1).flatten(1).bool()
                        rows = slice(m * blocks.tile_m, (m + 1) * blocks.tile_m)
                        found[b, h, rows, n * blocks.tile_n : (n + 1) * blocks.tile_n] |= cell
    return found[:, :, :len_q, :len_k]


def entries_of(one):
    """Each row's blocks, ascending."""
    rows = zip(one.begin.flatten().tolist(), one.count.flatten().tolist(), strict=True)
    return [sorted(one.index[begin : begin + count].tolist()) for begin, count in rows]


def random_mask(batch, heads, len_q, len_k):
    draw = torch.Generator().manual_seed(3)
    tiles = torch.rand(batch, heads, -(-len_q // 64), -(-len_k // 64), generator=draw) < 0.6
    kept = tiles.repeat_interleave(64, 2).repeat_interleave(64, 3)[:, :, :len_q, :len_k]
    kept = kept & (torch.rand(kept.shape, generator=draw) < 0.7)
    kept[..., :128, :128] = True  # a full block, where it is of 128 keys
    kept[..., :128, 128:192] = False  # half of one has no pair
    kept[..., 128:256, 128:192] = True  # half of one is full
    return kept


@pytest.mark.parametrize("given", LENGTHS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_bits_say_the_same_and_lists_are_valid(given, shared, tile_m):
    lengths_q, lengths_k = LENGTHS[given]
    known = sizes(lengths_q, lengths_k)
    batch, heads = (1, 1) if shared and given != "ragged" else (known.batch, 2)
    mask = random_mask(batch, heads, known.longest_q, known.longest_k)
    for b, (q, k) in enumerate(zip(known.lengths_q.tolist(), known.lengths_k.tolist(), strict=True)):
        mask[b, :, q:] = mask[b, :, :, k:] = False
    made = from_mask(mask, lengths_q, lengths_k, tile_m=tile_m)
    halved = halve_keys(made, lengths_k)
    check_shapes(halved, known)
    check_contents(halved, known)
    for b, (q, k) in enumerate(zip(known.lengths_q.tolist(), known.lengths_k.tolist(), strict=True)):
        found = tokens(halved, known.batch, 2, known.longest_q, known.longest_k)[b, :, :q, :k]
        assert torch.equal(found, mask[b, :, :q, :k].expand(2, -1, -1))
    direct = from_mask(mask, lengths_q, lengths_k, tile_m=tile_m, tile_n=64)
    here, there = ([entries_of(getattr(x.forward, kind)) for kind in ("partial", "full")] for x in (halved, direct))
    # Full ones are told by their bits, which mean nothing past a sequence's end.
    assert here == there if given != "ragged" else all(set(x) <= set(y) for x, y in zip(here[1], there[1], strict=True))
    both = [[sorted([*partial, *full]) for partial, full in zip(*x, strict=True)] for x in (here, there)]
    assert both[0] == both[1]
    assert halved.merged and (halved.order is None) == (made.order is None) and halved.lpt is not None


@pytest.mark.parametrize("given", LENGTHS)
@pytest.mark.parametrize("kind", ["band", "intervals"])
def test_masks_that_are_computed_list_the_same_tokens(given, kind):
    lengths_q, lengths_k = LENGTHS[given]
    known = sizes(lengths_q, lengths_k)
    if kind == "band":
        made = band(lengths_q, lengths_k, left=70, right=30, tile_m=64)
    else:
        bounds = torch.randint(0, known.longest_k + 1, (1, 2, 3, known.longest_q), generator=torch.manual_seed(1))
        made = intervals(bounds.to(torch.int32), lengths_q, lengths_k, tile_m=64)
    halved = halve_keys(made, lengths_k)
    check_shapes(halved, known)
    check_contents(halved, known)
    where = (known.batch, 2, known.longest_q, known.longest_k)
    before, after = tokens(made, *where), tokens(halved, *where)
    for b, (q, k) in enumerate(zip(known.lengths_q.tolist(), known.lengths_k.tolist(), strict=True)):
        assert torch.equal(before[b, :, :q, :k], after[b, :, :q, :k])


def test_a_list_for_all_sequences_has_a_second_half_where_the_sequence_has():
    made = band(256, 256, left=None, right=None)
    ragged = [256, 129]  # the last block's second half begins at key 192
    halved = halve_keys(made, ragged)
    assert (halved.forward.full.count + halved.forward.partial.count).tolist() == [[[4, 4]], [[3, 3]]]
    check_contents(halved, sizes([256, 256], ragged))


@pytest.mark.parametrize("length", [450, 320])
def test_schedules_stay(length):
    for schedule in (ASCENDING, DESCENDING):
        halved = halve_keys(band(300, length, left=None, right=0, schedule=schedule), length)
        assert halved.schedule.kind == schedule.kind
    n_blocks = -(-length // 128)
    order = torch.arange(n_blocks, dtype=torch.int32).roll(1).view(1, 1, -1)
    made = band(300, length, left=None, right=0, schedule=permutation(order))
    positions = halve_keys(made, length).schedule.positions
    assert positions.flatten().tolist() == [
        2 * n + half for n in order.flatten().tolist() for half in (0, 1) if 2 * n + half < -(-length // 64)
    ]


def test_the_pairs_and_units_of_a_schedule_stay():
    order = torch.arange(4, dtype=torch.int32).roll(1).view(1, 1, -1)
    for schedule in (Schedule("descending", None, 3, 2), Schedule("permutation", order, 3, 2)):
        halved = halve_keys(band(300, 450, left=None, right=0, schedule=schedule), 450).schedule
        assert (halved.kind, halved.pairs, halved.group_split) == (schedule.kind, 3, 2)


def visits(blocks, batch):
    """Each row's m blocks in the order of their visits, a partial one with its words: of every sequence and head."""
    found = {}
    partial, full = blocks.backward.partial, blocks.backward.full
    for b in range(batch):
        for h in range(partial.heads):
            for n in range(partial.rows):
                at = (min(b, partial.batch - 1), h, n)
                rows = [range(int(x.begin[at]), int(x.begin[at] + x.count[at])) for x in (partial, full)]
                words = blocks.mask.words[blocks.mask.slot_backward[list(rows[0])].long()].tolist()
                found[b, h, n] = (
                    list(zip((int(partial.index[i]) for i in rows[0]), words, strict=True)),
                    [int(full.index[i]) for i in rows[1]],
                )
    return found


@pytest.mark.parametrize("given", LENGTHS)
@pytest.mark.parametrize("shared", [True, False])
def test_both_halves_of_a_row_are_visited_in_its_order(given, shared):
    """Backward lists that are not merged have the order of a plan."""
    lengths_q, lengths_k = LENGTHS[given]
    known = sizes(lengths_q, lengths_k)
    batch, heads = (1, 1) if shared and given != "ragged" else (known.batch, 2)
    made = from_mask(random_mask(batch, heads, known.longest_q, known.longest_k), lengths_q, lengths_k, tile_m=64)
    turned = []
    for one in (made.backward.partial, made.backward.full):  # each row from its end
        place = torch.arange(one.capacity)
        for begin, count in zip(one.begin.flatten().tolist(), one.count.flatten().tolist(), strict=True):
            place[begin : begin + count] = place[begin : begin + count].flip(0)
        turned.append((replace(one, index=one.index[place]), place))
    mask = replace(made.mask, slot_backward=made.mask.slot_backward[turned[0][1]])
    planned = with_order(
        replace(made, backward=BlockLists(turned[0][0], turned[1][0]), mask=mask, merged=False, order=None)
    )
    halved = halve_keys(planned, lengths_k)
    check_shapes(halved, known)
    check_contents(halved, known)
    assert not halved.merged and halved.order is not None
    rows, found = visits(planned, known.batch), visits(halved, known.batch)
    expected = {}
    for (b, h, n), (partial, full) in rows.items():
        for half in range(2):
            cut = [(m, [row[2 * half : 2 * half + 2] for row in words]) for m, words in partial]
            there = 2 * n + half < -(-int(known.lengths_k.expand(known.batch)[b]) // 64)
            some = [(m, w) for m, w in cut if any(map(any, w))]
            ones = [m for m, w in some if all(x == -1 for row in w for x in row)]
            expected[b, h, 2 * n + half] = ([x for x in some if x[0] not in ones], full + ones) if there else ([], [])
    assert found == {key: expected[key] for key in found}
    listed = {key for key, row in expected.items() if any(row)}
    assert listed <= set(found)


def test_lists_without_a_backward_pass_stay_so():
    halved = halve_keys(band(300, 300, left=None, right=0, backward=False), 300)
    assert halved.backward is None and halved.order is None


def test_the_device_is_asked_nothing():
    with FakeTensorMode():
        lengths = torch.ones(2, dtype=torch.int32)
        made = band(lengths, lengths, left=9, right=0, capacity=(50, 60), longest=(300, 400))
        halved = halve_keys(made, lengths, longest=400)
        assert halved.forward.partial.capacity == 100 and halved.backward.full.rows == 7


def test_other_tiles_are_refused():
    made = band(300, 300, left=None, right=0, tile_n=64)
    with pytest.raises(ValueError, match=r"blocks\.tile_n: needs 128, got 64"):
        halve_keys(made, 300)
    with pytest.raises(ValueError, match="lengths_k: needs"):
        halve_keys(replace(made, tile_n=128), [])
