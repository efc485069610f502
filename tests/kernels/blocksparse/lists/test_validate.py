"""Each way in which block lists can be wrong is refused, by the name of its field; what the builders make is not."""

from dataclasses import replace

import pytest
import torch

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.schedule import ALIKE, ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import OPEN, Band, Bits, BlockList, BlockSparse, Intervals, WriteOrder
from kernels.blocksparse.lists.validate.contents import check_contents
from kernels.blocksparse.lists.validate.shapes import Sizes, check_shapes
from kernels.blocksparse.lists.write_order import with_order

SIZES = Sizes(batch=2, heads_q=4, heads_kv=2, longest_q=300, longest_k=400)


def some_blocks(batch=1, heads=1):
    mask = torch.rand(batch, heads, 300, 400, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[..., :128] = True
    mask[:, :, 64:128, 128:256] = False
    return from_mask(mask, tile_m=64, tile_n=64)


def check(blocks, sizes=SIZES, **options):
    check_shapes(blocks, sizes, **options)
    check_contents(blocks, sizes)


@pytest.mark.parametrize("batch, heads", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_what_the_builders_make_is_accepted(batch, heads):
    check(some_blocks(batch, heads), backward=True)
    check(band(300, 400, left=100, right=20), backward=True)
    check(documents([100, 200], 300, 400, k_bounds=[50, 300]), backward=True)
    check(with_order(some_blocks(batch, heads), DESCENDING))
    positions = torch.arange(6, -1, -1, dtype=torch.int32).expand(batch, min(heads, 2), 7).contiguous()
    check(with_order(some_blocks(batch, heads), permutation(positions)))


def test_ragged_and_empty_sequences_are_accepted():
    lengths_q, lengths_k = [300, 0, 17], [0, 400, 64]
    sizes = Sizes(3, 4, 2, 300, 400, torch.tensor(lengths_q), torch.tensor(lengths_k))
    check(band(lengths_q, lengths_k, left=100, right=20), sizes, backward=True)
    check(from_mask(torch.ones(3, 1, 300, 400, dtype=torch.bool), lengths_q, lengths_k), sizes, backward=True)


def test_a_list_for_all_sequences_must_fit_the_shortest():
    sizes = replace(SIZES, lengths_k=torch.tensor([400, 100]))
    with pytest.raises(ValueError, match=r"blocks\.forward\.partial\.index.*below 2"):
        check(some_blocks(), sizes)


@pytest.mark.parametrize("lengths", [(300, 400), ([300, 0, 17], [0, 400, 64])])
def test_rows_of_a_full_mask_are_alike(lengths):
    blocks = dense(*lengths)
    assert blocks.forward.alike
    ragged = [torch.tensor(one) for one in lengths] if isinstance(lengths[0], list) else [None, None]
    check(blocks, Sizes(3, 4, 2, 300, 400, *ragged), backward=True)


@pytest.mark.parametrize("which", ["count", "index"])
def test_rows_that_are_not_alike_are_refused(which):
    """One row more or less, or one block for another, in lists that say that their rows are alike."""
    keep = torch.ones(1, 1, 5, 6, dtype=torch.bool)
    if which == "count":
        keep[0, 0, 3, 2] = False
    else:
        keep[0, 0, :, 2], keep[0, 0, 3, 2], keep[0, 0, 3, 4] = False, True, False
    mask = keep.repeat_interleave(64, 2).repeat_interleave(64, 3)
    blocks = from_mask(mask, tile_m=64, tile_n=64)
    sizes = Sizes(1, 4, 2, 320, 384)
    check(blocks, sizes, backward=True)
    with pytest.raises(ValueError, match=r"blocks\.forward\.full: .* row 3 differs"):
        check(replace(blocks, forward=replace(blocks.forward, alike=True)), sizes, backward=True)


@pytest.mark.parametrize("which", ["none is left out", "a row without blocks", "count", "index", "kind"])
def test_backward_rows_that_have_blocks_are_alike_where_the_schedule_says_so(which):
    """As kernels rely on it: a row without blocks is not in their way, one of another kind of blocks is."""
    keep = torch.ones(1, 1, 5, 6, dtype=torch.bool)
    if which == "a row without blocks":
        keep[0, 0, :, 0] = keep[0, 0, :, 3] = False
    elif which == "count":
        keep[0, 0, 2, 3] = False
    elif which == "index":
        keep[0, 0, 2], keep[0, 0, 2, 3], keep[0, 0, 4, 3] = False, True, False
    mask = keep.repeat_interleave(64, 2).repeat_interleave(64, 3)
    if which == "kind":
        mask[..., 3 * 64] = False
    blocks = with_order(replace(from_mask(mask, tile_m=64, tile_n=64), order=None), ALIKE)
    sizes = Sizes(1, 4, 2, 320, 384)
    if which in ("none is left out", "a row without blocks"):
        check(blocks, sizes, backward=True)
    else:
        with pytest.raises(ValueError, match=r"^blocks\.backward\.(partial|full): .*schedule\.alike says, row 3"):
            check(blocks, sizes, backward=True)


HALVES = Sizes(1, 4, 2, 300, 330)


def halved_band(schedule: Schedule) -> BlockSparse:
    made = halve_keys(band(300, 330, left=None, right=0, schedule=schedule), 330)
    assert made.backward is not None and made.backward.halves
    return made


@pytest.mark.parametrize("schedule", [ASCENDING, permutation(torch.tensor([[[2, 0, 1]]], dtype=torch.int32))])
def test_halves_of_tiles_have_the_same_blocks(schedule):
    """Of three tiles the last one has one half."""
    check(halved_band(schedule), HALVES, backward=True)


def test_halves_with_other_blocks_are_refused():
    made = from_mask(torch.ones(1, 1, 300, 330, dtype=torch.bool).tril(), tile_m=128, tile_n=64)
    assert made.backward is not None and not made.backward.halves
    check(made, HALVES, backward=True)
    promised = replace(made, backward=replace(made.backward, halves=True))
    with pytest.raises(ValueError, match=r"^blocks\.backward\.(partial|full): .*backward\.halves says, row \d differs"):
        check(promised, HALVES, backward=True)


def test_halves_that_are_not_launched_one_after_the_other_are_refused():
    positions = torch.tensor([[[0, 2, 1, 3, 4, 5]]], dtype=torch.int32)
    made = with_order(halved_band(ASCENDING), permutation(positions))
    check(made, HALVES, backward=True)
    promised = replace(made, schedule=replace(made.schedule, halves=True))
    with pytest.raises(ValueError, match=r"^schedule\.positions: .*schedule\.halves says, in a sequence of 6 tiles"):
        check(promised, HALVES, backward=True)


NESTED = Sizes(1, 4, 2, 330, 400)


@pytest.mark.parametrize("right", [0, 60, 1000, -200])
@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_rows_of_a_band_with_an_open_side_are_nested(align, right):
    for lengths in ((330, 400), ([330, 0, 17], [300, 400, 64])):
        ragged = [torch.tensor(one) for one in lengths] if isinstance(lengths[0], list) else [None, None]
        blocks = band(*lengths, left=None, right=right, align=align, tile_m=64, tile_n=64, nested=True)
        assert blocks.forward.nested
        check(blocks, Sizes(3, 4, 2, 330, 400, *ragged), backward=True)


@pytest.mark.parametrize(
    ("kind", "row", "blocks_of_row", "why"),
    [
        (
            "full",
            3,
            [0, 2, 1],
            "blocks.forward.full: needs the full blocks of the row before as the first ones of row 3",
        ),
        ("full", 3, [0], "blocks.forward.full: needs the full blocks of the row before as the first ones of row 3"),
        ("partial", 1, [], "blocks.forward: needs all blocks of the row before in row 1"),
        ("partial", 2, [4], "blocks.forward: needs all blocks of the row before in row 3"),
        ("full", 2, [0], "blocks.forward: needs a band that hides from the row before what it lacks of row 3"),
    ],
)
def test_rows_that_are_not_nested_are_refused(kind, row, blocks_of_row, why):
    """Row r of this mask has r full blocks, and block r in part."""
    blocks = band(330, 400, left=None, right=0, tile_m=64, tile_n=64, backward=False)
    lists = [list(range(r)) if kind == "full" else [r] for r in range(6)]
    lists[row] = blocks_of_row
    if kind == "partial" and row == 1:
        lists[0] = [1]
    count = torch.tensor([len(one) for one in lists], dtype=torch.int32).view(1, 1, 6)
    other = BlockList.csr(count, torch.tensor([block for one in lists for block in one], dtype=torch.int32))
    forward = replace(blocks.forward, **{kind: other}, nested=True)
    check(replace(blocks, forward=replace(forward, nested=False)), NESTED)
    with pytest.raises(ValueError, match=f"^{why}, as blocks.forward.nested says"):
        check(replace(blocks, forward=forward), NESTED)


def test_nested_rows_need_a_band():
    blocks = from_mask(torch.ones(1, 1, 330, 400, dtype=torch.bool), tile_m=64, tile_n=64, backward=False)
    with pytest.raises(ValueError, match=r"blocks\.forward\.nested: needs a mask that is a band, got Bits"):
        check(replace(blocks, forward=replace(blocks.forward, nested=True)), NESTED)


def put(tensor, at, value):
    changed = tensor.clone()
    changed[at] = value
    return changed


def change(blocks, path, **fields):
    """A copy with fields of the thing at a dotted path exchanged."""
    if not path:
        return replace(blocks, **fields)
    name, _, rest = path.partition(".")
    return replace(blocks, **{name: change(getattr(blocks, name), rest, **fields)})


def partial(blocks):
    return blocks.forward.partial


SHAPES = {
    "blocks: needs a BlockSparse": lambda b: "lists",
    r"blocks\.forward: needs a BlockLists, got NoneType": lambda b: replace(b, forward=None),
    r"blocks\.backward\.full: needs a BlockList, got Tensor": lambda b: change(b, "backward", full=torch.zeros(1)),
    r"blocks\.forward\.full\.count: needs a Tensor, got list": lambda b: change(b, "forward.full", count=[0]),
    r"blocks\.mask\.words: needs a Tensor, got NoneType": lambda b: change(b, "mask", words=None),
    r"blocks\.mask\.left: needs an int within .* got 0\.5": lambda b: replace(
        b, mask=Band(0.5, 0, torch.zeros(1).int())
    ),
    r"blocks\.mask\.offset: needs a Tensor, got int": lambda b: replace(b, mask=Band(0, 0, 0)),
    r"blocks\.schedule: needs a Schedule, got str": lambda b: replace(b, schedule="descending"),
    r"schedule\.positions: needs a Tensor, got list": lambda b: replace(b, schedule=permutation([0])),
    r"blocks\.order: needs a WriteOrder, got tuple": lambda b: replace(b, order=(b.order.partial, b.order.full)),
    r"blocks\.lpt: needs a LPTOrder, got Tensor": lambda b: replace(b, lpt=b.lpt.rows),
    r"blocks\.tile_m": lambda b: replace(b, tile_m=96),
    r"blocks\.forward\.partial\.count: needs shape \(1 or 2, 1 or 4, 3\)": lambda b: replace(b, tile_m=128),
    r"blocks\.forward\.partial\.count: needs torch\.int32, got torch\.int64": lambda b: change(
        b, "forward.partial", count=partial(b).count.long()
    ),
    r"blocks\.forward\.partial\.begin: needs torch\.int64": lambda b: change(
        b, "forward.partial", begin=partial(b).begin.int()
    ),
    r"blocks\.forward\.full\.index: needs to be on cpu, got meta": lambda b: change(
        b, "forward.full", index=b.forward.full.index.to("meta")
    ),
    r"blocks\.forward\.partial\.index: needs one dimension": lambda b: change(
        b, "forward.partial", index=partial(b).index[None]
    ),
    r"blocks\.forward\.full\.count: needs to be contiguous": lambda b: change(
        b, "forward.full", count=torch.zeros(1, 1, 10, dtype=torch.int32)[..., ::2]
    ),
    r"blocks\.forward\.full\.count: needs batch and heads as": lambda b: change(
        b, "forward.full", count=b.forward.full.count.expand(2, 1, 5).contiguous()
    ),
    r"blocks\.backward: needs backward lists": lambda b: replace(b, backward=None, order=None),
    r"blocks\.order\.partial: needs shape": lambda b: replace(
        b, order=WriteOrder(b.order.partial[:-1].contiguous(), b.order.full)
    ),
    r"blocks\.mask: needs Bits": lambda b: replace(b, mask="causal"),
    r"blocks\.mask\.words: needs shape": lambda b: change(b, "mask", words=b.mask.words[:, :, :1]),
    r"blocks\.mask\.slot: needs shape": lambda b: change(b, "mask", slot=b.mask.slot[:-1]),
    r"blocks\.mask\.slot_backward: needs a Tensor": lambda b: change(b, "mask", slot_backward=None),
    r"blocks\.mask\.bounds: needs shape .* at least 300": lambda b: replace(
        b, mask=Intervals(torch.zeros(1, 1, 3, 299, dtype=torch.int32))
    ),
    r"blocks\.mask\.bounds: needs shape .* odd n_func": lambda b: replace(
        b, mask=Intervals(torch.zeros(1, 1, 2, 300, dtype=torch.int32))
    ),
    r"blocks\.mask\.offset: needs shape": lambda b: replace(b, mask=Band(0, 0, torch.zeros(3, dtype=torch.int32))),
    r"blocks\.mask\.left": lambda b: replace(b, mask=Band(1 << 30, 0, torch.zeros(1, dtype=torch.int32))),
    r"schedule\.kind": lambda b: replace(b, schedule=Schedule("spt")),
    r"schedule\.positions: needs a tensor for": lambda b: replace(b, schedule=Schedule("permutation")),
    r"schedule\.positions: needs shape \(1, 1, 7\)": lambda b: replace(
        b, schedule=permutation(torch.zeros(1, 2, 7, dtype=torch.int32))
    ),
    r"schedule\.positions: needs torch\.int32": lambda b: replace(
        b, schedule=permutation(torch.arange(7).view(1, 1, 7))
    ),
}


@pytest.mark.parametrize("message", SHAPES)
def test_wrong_types_and_shapes_are_refused_without_reading_anything(message):
    with pytest.raises(ValueError, match=message):
        check_shapes(SHAPES[message](some_blocks()), SIZES, backward=True)


def band_with_offset(offset):
    return replace(band(300, 400, left=None, right=0), mask=Band(OPEN, 0, torch.tensor([0, offset], dtype=torch.int32)))


CONTENTS = {
    r"blocks\.forward\.partial\.count: needs no negative": lambda b: change(
        b, "forward.partial", count=put(partial(b).count, (0, 0, 1), -1)
    ),
    r"blocks\.forward\.partial\.count: needs rows to end within": lambda b: change(
        b, "forward.partial", count=put(partial(b).count, (0, 0, 4), 99)
    ),
    r"blocks\.forward\.full\.count: needs rows to end within": lambda b: change(
        b, "forward.full", begin=put(b.forward.full.begin, (0, 0, 0), (1 << 63) - 1)
    ),
    r"blocks\.forward\.partial\.begin: needs no negative": lambda b: change(
        b, "forward.partial", begin=put(partial(b).begin, (0, 0, 1), -1)
    ),
    r"blocks\.forward\.partial\.begin: needs rows that share no": lambda b: change(
        b, "forward.partial", begin=put(partial(b).begin, (0, 0, 1), 0)
    ),
    r"blocks\.forward\.partial\.index: needs n_blocks of the sequence, below 7, got 7 at 3": lambda b: change(
        b, "forward.partial", index=put(partial(b).index, 3, 7)
    ),
    r"blocks\.forward\.partial\.index: needs n_blocks of the sequence.* got -1": lambda b: change(
        b, "forward.partial", index=put(partial(b).index, 3, -1)
    ),
    r"blocks\.forward\.partial\.index: needs each n_block once in a row, got 2 more than once in row 0": lambda b: (
        change(b, "forward.partial", index=put(partial(b).index, 1, 2))
    ),
    r"blocks\.forward: needs partial and full blocks apart, got 1 in both, first n_block 1 of row 0": lambda b: change(
        b, "forward.partial", index=put(partial(b).index, 0, 1)
    ),
    r"blocks\.backward\.partial: needs the transpose of blocks\.forward\.partial, got lists that differ first at "
    r"m_block 0, n_block 2, only in forward": lambda b: replace(
        b,
        backward=replace(
            b.backward, partial=replace(b.backward.partial, count=put(b.backward.partial.count, (0, 0, 2), 0))
        ),
    ),
    r"blocks\.backward\.partial: needs the transpose": lambda b: change(
        b, "backward.partial", index=put(b.backward.partial.index, 0, 1)
    ),
    r"blocks\.backward\.full: needs the transpose": lambda b: change(
        b, "backward.full", count=put(b.backward.full.count, (0, 0, 0), 4)
    ),
    r"blocks\.mask\.slot: needs slots below": lambda b: change(b, "mask", slot=put(b.mask.slot, 5, len(b.mask.words))),
    r"blocks\.mask\.slot_backward: needs slots below": lambda b: change(
        b, "mask", slot_backward=put(b.mask.slot_backward, 5, -1)
    ),
    r"blocks\.mask\.slot_backward: needs the masks of slot": lambda b: change(
        b, "mask", slot_backward=b.mask.slot_backward.flip(0)
    ),
    r"blocks\.order\.partial: needs the ascending schedule's ranks": lambda b: replace(
        b, order=with_order(b, DESCENDING).order
    ),
    r"blocks\.order\.partial: needs the descending schedule's ranks": lambda b: replace(b, schedule=DESCENDING),
    r"blocks\.order\.full: needs the ascending schedule's ranks, 1 at element 5, got 0, and 0 more": lambda b: change(
        b, "order", full=put(b.order.full, 5, 0)
    ),
    r"blocks\.mask\.bounds: needs no number below": lambda b: replace(
        documents([100, 200], 300, 400), mask=Intervals(torch.full((1, 1, 1, 300), -(1 << 31), dtype=torch.int32))
    ),
    r"blocks\.mask\.offset: needs -1073741423 to 1073741523, got 1073741524 at 1": lambda b: band_with_offset(
        1073741524
    ),
    r"blocks\.mask\.offset: needs .* got -1073741424 at 1": lambda b: band_with_offset(-1073741424),
    r"schedule\.positions: needs every n_block once": lambda b: replace(
        b, schedule=permutation(torch.tensor([[[0, 1, 2, 3, 4, 5, 5]]], dtype=torch.int32)), order=None
    ),
}


@pytest.mark.parametrize("message", CONTENTS)
def test_wrong_contents_are_refused(message):
    blocks = CONTENTS[message](some_blocks())
    check_shapes(blocks, SIZES, backward=True)
    with pytest.raises(ValueError, match=message):
        check_contents(blocks, SIZES)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("block", [-1, 7, 1 << 30])
def test_lists_out_of_range_are_refused_after_transposing_and_ranking(block, heads):
    blocks = some_blocks(1, heads)
    for kind in ("partial", "full"):
        index = getattr(blocks.forward, kind).index
        for at in (0, len(index) - 1):
            wrong = with_order(with_backward(change(blocks, f"forward.{kind}", index=put(index, at, block)), 7))
            with pytest.raises(ValueError, match=rf"blocks\.forward\.{kind}\.index.* got {block} at {at}"):
                check(wrong)
        index = getattr(blocks.backward, kind).index
        wrong = with_order(change(blocks, f"backward.{kind}", index=put(index, 0, block)))
        with pytest.raises(ValueError, match=rf"blocks\.backward\.{kind}\.index.* got {block} at 0"):
            check(wrong)
    positions = torch.tensor([[[0, 1, 2, 3, 4, 5, block]]], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"schedule\.positions: needs every n_block once"):
        check(with_order(blocks, permutation(positions)))


def test_rows_past_the_end_of_a_sequence_are_refused():
    blocks = some_blocks(2)
    sizes = replace(SIZES, lengths_q=torch.tensor([300, 100]))
    with pytest.raises(ValueError, match=r"blocks\.forward\.partial\.count: needs 0 for rows past .* \(1, 0, 2\)"):
        check(blocks, sizes)


def test_masks_shared_the_same_way_in_both_directions_may_differ_in_slot():
    blocks = some_blocks()
    twice = torch.cat((blocks.mask.words, blocks.mask.words))
    moved = blocks.mask.slot_backward + len(blocks.mask.words)
    check(replace(blocks, mask=Bits(twice, blocks.mask.slot, moved)))


def test_an_order_is_refused_under_another_schedule_in_every_head():
    blocks = some_blocks(2, 4)
    positions = torch.arange(7, dtype=torch.int32).expand(2, 2, 7).contiguous()
    good = with_order(blocks, permutation(positions))
    check(good)
    positions = put(put(positions, (1, 1, 0), 1), (1, 1, 1), 0)
    with pytest.raises(ValueError, match=r"blocks\.order"):
        check(replace(good, schedule=permutation(positions)))
    check(replace(good, schedule=ASCENDING))


def test_an_order_without_backward_lists_is_refused():
    with pytest.raises(ValueError, match=r"blocks\.order: needs backward lists"):
        check_shapes(replace(some_blocks(), backward=None), SIZES)


def test_lists_on_another_device_than_the_queries_are_refused():
    with pytest.raises(ValueError, match=r"blocks\.forward\.partial\.count: needs to be on cuda:0, got cpu"):
        check_shapes(some_blocks(), SIZES, device=torch.device("cuda:0"))
