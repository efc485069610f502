"""Block lists against Python loops over dense masks: every way of building them, transposing, ranking."""

import pytest
import torch
from block_list_tools import classified, contributors, listed, masks_of, ranks_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.bitmask import pack, shared, unpack
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_grid, from_mask, from_predicate
from kernels.blocksparse.lists.intervals import documents, intervals
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, permutation
from kernels.blocksparse.lists.transpose import transpose
from kernels.blocksparse.lists.types import BlockList, BlockLists, spread
from kernels.blocksparse.lists.write_order import with_order, write_order

TILE = st.sampled_from([64, 128])
LENGTH = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 127, 128, 129, 256, 300]), st.integers(0, 400))
LENGTHS = st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=3)


def band_mask(lengths, left, right, align):
    whole = torch.zeros(len(lengths), 1, max(q for q, _ in lengths), max(k for _, k in lengths), dtype=torch.bool)
    for b, (len_q, len_k) in enumerate(lengths):
        q, k = torch.arange(len_q)[:, None], torch.arange(len_k)[None]
        at = q + (len_k - len_q if align == "bottom_right" else 0)
        kept = torch.ones(len_q, len_k, dtype=torch.bool)
        kept &= (k >= at - left) if left is not None else True
        kept &= (k <= at + right) if right is not None else True
        whole[b, 0, :len_q, :len_k] = kept
    return whole


def check(blocks, mask, lengths_q, lengths_k):
    """Lists, transposed lists and ranks are those of the dense mask."""
    if blocks.forward.partial.batch < mask.shape[0]:
        mask = mask[:1]
    truth = classified(mask, lengths_q, lengths_k, blocks.tile_m, blocks.tile_n)
    assert listed(blocks.forward) == truth
    assert listed(blocks.backward, backward=True) == truth
    order = blocks.schedule.launch_order(blocks.backward.rows, "cpu")[0, 0].tolist()
    assert ranks_of(blocks) == contributors(truth, order)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.none() | st.integers(-80, 300), st.none() | st.integers(-80, 300), st.booleans(), TILE, TILE)
def test_bands_list_the_blocks_of_their_tokens(lengths, left, right, bottom, tile_m, tile_n):
    align = "bottom_right" if bottom else "top_left"
    lengths_q, lengths_k = [q for q, _ in lengths], [k for _, k in lengths]
    blocks = band(lengths_q, lengths_k, left=left, right=right, align=align, tile_m=tile_m, tile_n=tile_n)
    check(blocks, band_mask(lengths, left, right, align), lengths_q, lengths_k)


@st.composite
def interval_masks(draw):
    lengths = draw(LENGTHS)
    batch, heads = draw(st.sampled_from([1, len(lengths)])), draw(st.sampled_from([1, 2]))
    count = draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    longest = max(q for q, _ in lengths)
    keys = max(k for _, k in lengths)
    coarse = draw(st.sampled_from([1, 32, 64]))
    size = (batch, heads, 2 * count - 1, longest + draw(st.sampled_from([0, 5])))
    bounds = torch.randint(0, keys // coarse + 2, size, generator=generator) * coarse
    if draw(st.booleans()):  # long runs of equal rows, so that blocks become full
        bounds = bounds[..., (torch.arange(size[-1]) // 128) * 128 % size[-1]] if size[-1] else bounds
    return lengths, bounds.to(torch.int32)


def interval_mask(bounds, lengths):
    batch = max(len(lengths), bounds.shape[0])
    longest, keys = max(q for q, _ in lengths), max(k for _, k in lengths)
    whole = torch.zeros(batch, bounds.shape[1], longest, keys, dtype=torch.bool)
    k = torch.arange(keys)[None, None]
    for b in range(batch):
        row = bounds[b % bounds.shape[0], ..., :longest, None]
        kept = k < row[:, 0]
        for i in range(1, row.shape[1], 2):
            kept |= (k >= row[:, i]) & (k < row[:, i + 1])
        len_q, len_k = lengths[b % len(lengths)]
        kept[:, len_q:] = False
        kept[:, :, len_k:] = False
        whole[b] = kept
    return whole


@settings(max_examples=150, deadline=None)
@given(interval_masks(), TILE, TILE)
def test_intervals_list_the_blocks_of_their_tokens(case, tile_m, tile_n):
    lengths, bounds = case
    lengths_q, lengths_k = [q for q, _ in lengths], [k for _, k in lengths]
    blocks = intervals(bounds, lengths_q, lengths_k, tile_m=tile_m, tile_n=tile_n)
    check(blocks, interval_mask(bounds, lengths), lengths_q, lengths_k)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(0, 1000), st.sampled_from([0.0, 0.001, 0.5, 1.0]), TILE, TILE, st.booleans())
def test_any_mask_is_its_lists_and_bits(lengths, seed, density, tile_m, tile_n, predicate):
    lengths_q, lengths_k = [q for q, _ in lengths], [k for _, k in lengths]
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(len(lengths), 2, max(lengths_q), max(lengths_k), generator=generator) < density
    if seed % 3 == 0:
        mask[..., : 2 * tile_n] = True
    options = {"tile_m": tile_m, "tile_n": tile_n}
    if predicate:
        keep = lambda b, h, q, k: mask[b, h][q, k]  # noqa: E731
        blocks = from_predicate(keep, lengths_q, lengths_k, heads=2, batch=len(lengths), **options)
    else:
        blocks = from_mask(mask, lengths_q, lengths_k, **options)
    assert blocks.forward.partial.batch == len(lengths)
    check(blocks, mask, lengths_q, lengths_k)
    for direction in ("forward", "backward"):
        for (b, h, m, n), words in masks_of(blocks, direction).items():
            rows = slice(m * tile_m, min((m + 1) * tile_m, lengths_q[b]))
            cols = slice(n * tile_n, min((n + 1) * tile_n, lengths_k[b]))
            tile = mask[b, h, rows, cols]
            assert torch.equal(unpack(words)[: tile.shape[0], : tile.shape[1]], tile)


def test_word_bits_are_keys_from_the_lowest():
    tiles = torch.zeros(1, 64, 64, dtype=torch.bool)
    tiles[0, 3, 33] = tiles[0, 3, 63] = True
    words = pack(tiles)
    assert words.shape == (1, 64, 2) and words.dtype == torch.int32
    assert words[0, 3].tolist() == [0, 2 - (1 << 31)]
    assert words.count_nonzero() == 1


def test_blocks_of_equal_masks_share_a_slot():
    lower = torch.ones(512, 512, dtype=torch.bool).tril()[None, None]
    blocks = from_mask(lower, tile_m=64, tile_n=64)
    assert blocks.mask.words.shape == (1, 64, 2)
    assert not blocks.mask.slot[:8].any()


def test_sharing_survives_colliding_hashes(monkeypatch):
    words = torch.arange(4 * 64 * 2, dtype=torch.int32).view(4, 64, 2) % 256
    monkeypatch.setattr(
        "kernels.blocksparse.lists.bitmask._hashes", lambda flat: torch.zeros(len(flat), 2, dtype=torch.int64)
    )
    distinct, slot = shared(words)
    assert len(distinct) == 2
    assert torch.equal(distinct[slot.long()], words)


def test_documents_are_their_intervals():
    q = torch.arange(300)
    document = torch.bucketize(q, torch.tensor([100, 100, 228]), right=True)
    mask = (document[:, None] == document[None])[None, None]
    check(documents([100, 100, 228], 300, 300, tile_m=64, tile_n=64), mask, [300], [300])
    check(documents([100, 100, 228], 300, 300, tile_m=64, tile_n=64, causal=True), mask.tril(), [300], [300])


def test_documents_of_keys_may_differ_in_number():
    q, k = torch.arange(200), torch.arange(330)
    for k_bounds in ([10, 20, 200], [100], [], [64, 128, 192, 256]):
        in_q, in_k = (torch.bucketize(x, torch.tensor(e), right=True) for x, e in ((q, [50, 60]), (k, k_bounds)))
        mask = (in_q[:, None] == in_k[None])[None, None]
        check(documents([50, 60], 200, 330, k_bounds=k_bounds, tile_m=64, tile_n=64), mask, [200], [330])


def test_dense_lists_every_block_as_full():
    lengths_q, lengths_k = [130, 0, 64], [70, 200, 0]
    mask = torch.zeros(3, 1, 130, 200, dtype=torch.bool)
    for b in range(3):
        mask[b, 0, : lengths_q[b], : lengths_k[b]] = True
    blocks = dense(lengths_q, lengths_k, tile_m=64, tile_n=64)
    check(blocks, mask, lengths_q, lengths_k)
    assert not blocks.forward.partial.count.any()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9), st.integers(1, 9))
def test_layouts_of_one_list_are_one_list(seed, batch, heads, rows, columns):
    generator = torch.Generator().manual_seed(seed)
    grid = torch.rand(batch, heads, rows, columns, generator=generator) < 0.4
    count, index = grid.sum(-1), grid.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    lists = [BlockList.padded(count, index), BlockList.csr(grid.sum(-1), grid.nonzero()[:, -1])]
    lists += [lists[0].to_csr(), BlockList.padded(*lists[1].to_padded(columns))]
    truth = {(*at, "M") for at in map(tuple, grid.nonzero().tolist())}
    for one in lists:
        found = listed(BlockLists(one, BlockList.empty(batch, heads, rows)))
        assert {(*at, kind) for at, kind in found.items()} == truth
        turned, source = transpose(one, columns)
        back = listed(BlockLists(turned, BlockList.empty(batch, heads, columns)), backward=True)
        assert {(*at, kind) for at, kind in back.items()} == truth
        total = int(turned.count.sum())
        from_row = torch.full((one.capacity,), -1)
        for b, h, r in torch.cartesian_prod(*map(torch.arange, (batch, heads, rows))).view(-1, 3).tolist():
            begin = int(one.begin[b, h, r])
            from_row[begin : begin + int(one.count[b, h, r])] = r
        assert torch.equal(from_row[source[:total]].int(), turned.index[:total])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8), st.sampled_from([(1, 1), (1, 2), (2, 2), (2, 4)]))
def test_ranks_follow_any_permutation_per_kv_head(seed, m_blocks, n_blocks, heads):
    heads_kv, heads_q = heads
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(2, heads_q, m_blocks * 64, n_blocks * 64, generator=generator) < 0.0002
    mask[..., : 64 * (n_blocks // 2)] |= torch.rand(2, heads_q, 1, 1, generator=generator) < 0.5
    blocks = from_mask(mask, tile_m=64, tile_n=64)
    positions = torch.rand(2, heads_kv, n_blocks, generator=generator).argsort(-1).to(torch.int32)
    blocks = with_order(blocks, permutation(positions))
    found = ranks_of(blocks)
    truth = {}
    for b in range(2):
        for h in range(heads_q):
            kinds = [at for at in listed(blocks.forward) if at[:2] == (b, h)]
            truth |= contributors(kinds, positions[b, h // (heads_q // heads_kv)].tolist())
    assert found == truth


def test_lists_of_every_head_are_copies_of_a_shared_one():
    blocks = band(300, 300, left=None, right=0, tile_m=64, tile_n=64)
    one = blocks.forward.partial
    many = spread(one, 2, 3)
    expected = {(b, h, m, n) for b in range(2) for h in range(3) for _, _, m, n in listed(blocks.forward)}
    full = spread(blocks.forward.full, 2, 3)
    assert set(listed(BlockLists(many, full))) == expected
    with pytest.raises(ValueError, match="heads"):
        spread(many, 2, 4)


def test_a_schedule_finer_than_the_lists_is_refused():
    blocks = band(300, 300, left=None, right=0, tile_m=64, tile_n=64)
    fine = permutation(torch.arange(5, dtype=torch.int32).expand(1, 2, 5))
    with pytest.raises(ValueError, match=r"schedule\.positions"):
        write_order(blocks.backward, fine, 5)


BUILDERS = {
    "lengths_q: needs at least one length, .* got \\[-1\\]": lambda: band(-1, 5, left=0, right=0),
    "lengths_q: needs at least one length, .* got \\[1.5, 2\\]": lambda: band([1.5, 2], 5, left=0, right=0),
    "left: needs None or a whole number within .* got 1.5": lambda: band(5, 5, left=1.5, right=0),
    "right: needs None or a whole number within .* got True": lambda: band(5, 5, left=0, right=True),
    "mask: needs one sequence .* got 0 and 1": lambda: from_mask(torch.ones(0, 1, 5, 5, dtype=torch.bool)),
    "mask: needs one sequence .* got 1 and 0": lambda: from_mask(torch.ones(1, 0, 5, 5, dtype=torch.bool)),
    "grid: needs one sequence .* got 0 and 1": lambda: from_grid(torch.ones(0, 1, 1, 1, dtype=torch.bool), 5, 5),
    "batch, heads: needs one sequence .* got 1 and 0": lambda: from_predicate(lambda b, h, q, k: q >= k, 5, 5, heads=0),
    "lengths_k: needs at least one length, got none": lambda: dense(5, torch.zeros(0, dtype=torch.int32)),
    "lengths_k: needs no negative length, got -1": lambda: dense(5, torch.tensor([3, -1])),
    "lengths_k: needs 3 lengths as lengths_q, got 2": lambda: dense([5, 5, 5], [1, 2]),
    "q_bounds: needs positions that ascend": lambda: documents([200, 100], 300, 300),
    "k_bounds: needs positions that ascend": lambda: documents([100, 200], 300, 300, k_bounds=[200, 100]),
    "keep: needs to return a bool tensor, got torch.uint8": lambda: from_predicate(
        lambda b, h, q, k: (q >= k).to(torch.uint8), 100, 100
    ),
    "count: needs at most 2 entries in a row, index's width, got 3": lambda: BlockList.padded(
        torch.tensor([[[3, 0]]]), torch.tensor([[[[0, 1], [2, 3]]]])
    ),
    "index: needs integers, got torch.float32": lambda: BlockList.csr(torch.tensor([[[1]]]), torch.tensor([0.5])),
    "schedule: needs a Schedule, got str": lambda: band(5, 5, left=0, right=0, schedule="descending"),
    r"schedule\.positions: needs shape .* got \(3,\)": lambda: with_order(
        band(300, 300, left=0, right=0), permutation(torch.tensor([0, 1, 2], dtype=torch.int32))
    ),
}


@pytest.mark.parametrize("message", BUILDERS)
def test_wrong_arguments_of_builders_are_refused(message):
    with pytest.raises(ValueError, match=message):
        BUILDERS[message]()


def test_numbers_of_more_than_32_bits_do_not_wrap_into_range():
    assert BlockList.csr(torch.tensor([[[2]]]), torch.tensor([1 << 32, -(1 << 32)])).index.tolist() == [2**31 - 1, -1]


def test_a_capacity_gives_the_same_lists_and_one_too_small_is_loud():
    asked = band([300, 100], [300, 50], left=100, right=0, tile_m=64, tile_n=64)
    told = band([300, 100], [300, 50], left=100, right=0, tile_m=64, tile_n=64, capacity=(40, 40), longest=(300, 300))
    assert listed(told.forward) == listed(asked.forward)
    assert ranks_of(told) == ranks_of(asked)
    with pytest.raises(RuntimeError, match="capacity"):
        band(300, 300, left=100, right=0, capacity=(1, 1))


def test_the_published_example_has_its_published_tables():
    """varlen_full_1k of the block-sparse deadlock report: ten packed segments, tiles of 128."""
    blocks = documents([366, 391, 471, 835, 984, 1005, 1017, 1020, 1023], 1024, 1024)
    rows = ["FFM.....", "FFM.....", "MMMM....", "..MMMMM.", "...MFFM.", "...MFFM.", "...MMMMM", "......MM"]
    truth = {(0, 0, m, n): kind for m, row in enumerate(rows) for n, kind in enumerate(row) if kind != "."}
    assert listed(blocks.forward) == truth
    backward = blocks.backward
    assert backward.partial.begin.flatten().tolist() == [0, 1, 2, 6, 11, 13, 15, 20]
    assert backward.full.begin.flatten().tolist() == [0, 2, 4, 4, 4, 6, 8, 8]
    index = [2, 2, 0, 1, 2, 3, 2, 3, 4, 5, 6, 3, 6, 3, 6, 3, 4, 5, 6, 7, 6, 7]
    assert backward.partial.index.tolist() == index
    assert backward.full.index.tolist() == [0, 1, 0, 1, 4, 5, 4, 5]
    up, down = (with_order(blocks, schedule).order for schedule in (ASCENDING, DESCENDING))
    assert up.partial.tolist() == [0, 1, 2, 2, 2, 0, 3, 1, 0, 0, 0, 2, 1, 3, 2, 4, 3, 3, 3, 0, 4, 1]
    assert up.full.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert down.partial.tolist() == [3, 2, 0, 0, 1, 4, 0, 3, 3, 3, 4, 2, 3, 1, 2, 0, 0, 0, 1, 1, 0, 0]
    assert down.full.tolist() == [2, 2, 1, 1, 2, 2, 1, 1]


@settings(max_examples=50, deadline=None)
@given(interval_masks(), TILE, TILE)
def test_intervals_with_a_capacity_give_the_same_lists(case, tile_m, tile_n):
    lengths, bounds = case
    lengths_q, lengths_k = [q for q, _ in lengths], [k for _, k in lengths]
    options = {"tile_m": tile_m, "tile_n": tile_n}
    asked = intervals(bounds, lengths_q, lengths_k, **options)
    told = intervals(bounds, lengths_q, lengths_k, capacity=(400, 400), **options)
    assert listed(told.forward) == listed(asked.forward)
    assert ranks_of(told) == ranks_of(asked)


def test_a_grid_lists_its_blocks_inside_the_lengths():
    grid = torch.rand(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    lengths_q, lengths_k = [300, 128, 0], [500, 1, 77]
    blocks = from_grid(grid, lengths_q, lengths_k)
    mask = grid.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :300, :500].repeat(3, 1, 1, 1)
    for b in range(3):
        mask[b, :, lengths_q[b] :] = False
        mask[b, :, :, lengths_k[b] :] = False
    check(blocks, mask, lengths_q, lengths_k)
    assert not blocks.forward.partial.count.any()
    with pytest.raises(ValueError, match="grid: needs bool"):
        from_grid(grid, 300, 300)


def test_lists_that_travel_at_once_arrive_as_they_were() -> None:
    mask = torch.rand(2, 2, 300, 200, generator=torch.Generator().manual_seed(3)) < 0.3
    lists = with_order(from_mask(mask, (300, 170), (200, 65), tile_m=64, tile_n=64, schedule=DESCENDING))
    moved = lists._at_once("cpu")
    assert lists.elements == moved.elements > 100
    for one, other in zip(lists.tensors(), moved.tensors(), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other) and other.is_contiguous()
        assert one.data_ptr() != other.data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: band((300, 70), (200, 90), left=50, right=3, align="bottom_right", **o),
        lambda **o: dense(300, 200, **o),
    ],
)
def test_lists_of_wide_tiles_beside_the_others(make):
    both, alone = make(wide=True), make(tile_m=192, backward=False)
    assert both.wide.tile_m == 192 and both.wide.backward is None and both.tile_m == 128
    for one, other in zip(both.wide.tensors(), alone.tensors(), strict=True):
        assert torch.equal(one, other)
    moved = both.to("cpu").wide
    assert [x.shape for x in moved.tensors()] == [x.shape for x in alone.tensors()]
    assert make().wide is None


def test_lists_of_wide_tiles_have_no_capacity_given():
    with pytest.raises(ValueError, match=r"^wide: needs capacity None"):
        band(300, 300, left=None, right=0, capacity=(20, 20), longest=(300, 300), wide=True)
