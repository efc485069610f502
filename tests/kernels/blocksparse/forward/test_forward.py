"""What the forward kernel computes, on a GPU where there is one and on the emulated one elsewhere."""

import dataclasses

import pytest
import torch
from blocksparse_runs import DEVICE
from blocksparse_runs import run_forward as run
from covering import covering, nightly_unless
from forward_cases import Case, errors, problem

pytest.importorskip("cutlass")

from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.lists.types import OPEN, Band, BlockList, BlockLists, Intervals, replaced
from kernels.blocksparse.spec.variant import Injection

BF16, FP16 = torch.bfloat16, torch.float16


def check(case, **changes):
    p = dataclasses.replace(problem(case, DEVICE), **changes)
    run(p)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 128, 200])
def test_dense_lengths_around_the_tiles(length):
    check(Case((length,), (length,), dim=32))


@pytest.mark.parametrize("dim", [nightly_unless(dim not in (80, 96, 104, 120), dim) for dim in range(32, 136, 8)])
def test_every_head_dim(dim):
    check(Case((70,), (90,), dim=dim, heads_q=1, heads_kv=1, dtype=FP16 if dim % 16 else BF16, mask="blocks"))


LARGE = [(136, 64), (160, 128), (168, 128), (192, 64), (200, 64), (256, 128)]


@pytest.mark.parametrize(("dim", "tile_m"), [nightly_unless(case[0] == 136, *case) for case in LARGE])
def test_head_dims_above_128(dim, tile_m):
    check(Case((130,), (90,), dim=dim, heads_q=2, heads_kv=1, mask="tokens", tile_m=tile_m, tile_n=64))
    check(Case((70, 20), (150, 9), dim=dim, mask="band", tile_m=tile_m, tile_n=128, packed=True))


@pytest.mark.parametrize(
    ("mask", "tile_m", "tile_n"), covering(["tokens", "intervals", "band"], [64, 128], [64, 128], strength=1)
)
def test_masks_in_every_tile(mask, tile_m, tile_n):
    check(Case((150,), (170,), dim=64, mask=mask, tile_m=tile_m, tile_n=tile_n, left=40, right=9, align="bottom_right"))


@pytest.mark.parametrize("left,right_,align", [(None, 0, "top_left"), (None, 0, "bottom_right"), (0, 0, "top_left")])
@pytest.mark.parametrize("lengths", [(60, 130), (130, 60)])
def test_bands_where_queries_and_keys_differ_in_number(lengths, left, right_, align):
    check(Case(lengths[:1], lengths[1:], dim=32, mask="band", left=left, right=right_, align=align))


@pytest.mark.parametrize("n_func", [1, 3, 7])
def test_intervals_of_any_number_per_row(n_func):
    check(Case((100,), (140,), dim=32, mask="intervals", n_func=n_func))


@pytest.mark.parametrize("heads_q,heads_kv", [(4, 1), (6, 2), (3, 3)])
def test_query_heads_share_key_heads(heads_q, heads_kv):
    check(Case((70,), (70,), heads_q, heads_kv, dim=32, mask="tokens"))


@pytest.mark.parametrize("mask", ["dense", "tokens", "intervals", "band"])
@pytest.mark.parametrize("packed", [True, False])
def test_sequences_of_many_lengths(packed, mask):
    check(Case((65, 0, 1, 100), (30, 40, 0, 130), dim=32, mask=mask, packed=packed))


@pytest.mark.parametrize("mask", ["tokens", "blocks"])
def test_rows_and_heads_without_keys_are_zero(mask):
    check(Case((130,), (130,), 3, 3, dim=32, mask=mask, empty=True))


def test_one_mask_serves_all_sequences_and_heads():
    check(Case((70, 70), (70, 70), 4, 2, dim=32, mask="tokens", varied=False))
    check(Case((70, 70), (70, 70), 4, 2, dim=32, mask="intervals", varied=False))


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_heads_in_sections_of_the_cache_are_all_computed(monkeypatch, heads):
    # five KV heads of 130 keys, 32 wide, of which `heads` fit: the last section is smaller for 2 and 3
    for name in ("L2_BYTES", "UNEVEN_L2_BYTES"):
        monkeypatch.setattr(launch, name, heads * 2 * 130 * 32 * 2)
    for mask in ("tokens", "band"):
        check(Case((130,), (130,), 10, 5, dim=32, mask=mask))


@pytest.mark.parametrize(
    ("left", "tokens", "dim", "heads"),
    [
        (None, 8192, 128, 2),
        (None, 32768, 128, 1),
        (OPEN, 8192, 128, 4),
        (OPEN, 8192, 64, 8),
        (OPEN, 65536, 128, 1),
        (2047, 32768, 128, 3),  # a window: of each head the keys that tiles in flight look at
        (2047, 4096, 128, 8),
    ],
)
def test_heads_of_a_section_are_those_whose_keys_the_cache_holds(left, tokens, dim, heads):
    mask = None if left is None else Band(left, 0, torch.zeros(1, dtype=torch.int32))
    assert launch.l2_head_section(keys(tokens, dim), 1, mask) == heads


def test_rows_of_unequal_length_have_larger_sections():
    documents = Intervals(torch.zeros(1, 1, 3, 8192, dtype=torch.int32))
    assert launch.l2_head_section(keys(8192, 128), 1, documents) == 4
    assert launch.l2_head_section(keys(8192, 128), 1, None) == 2


def keys(tokens: int, dim: int) -> torch.Tensor:
    return torch.empty(1, tokens, 16, dim, dtype=torch.bfloat16, device="meta")


def test_operands_may_be_slices():
    check(Case((70,), (80,), 2, 1, dim=40, mask="tokens", view=True))
    check(Case((70, 9), (80, 70), 2, 1, dim=40, view=True, packed=True))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_scores_are_capped_before_the_mask(softcap):
    check(Case((70,), (130,), dim=64, mask="tokens", softcap=softcap, spread=3.0))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0])
def test_scores_of_any_size(scale):
    check(Case((64,), (130,), dim=64, mask="tokens", scale=scale, spread=2.0))


TUNINGS = [
    {"stages": 1},
    {"q_in_registers": 0},
    {"step": 32},
    {"warps": 2},
    {"stages": 1, "step": 128},
    {"pipelined": 1},
    {"pipelined": 1, "step": 32, "q_in_registers": 0},
]


TUNED = [
    Case((130,), (200,), dim=64, mask="tokens", tile_n=128),
    Case((130, 0, 7), (60, 3, 0), dim=64, mask="intervals", packed=True, tile_n=128),
    Case((70,), (300,), dim=64, tile_m=128, tile_n=128),
]


@pytest.mark.parametrize(
    ("values", "case"),
    [
        nightly_unless(not case.marks and case.values[0] in (TUNINGS[2], TUNINGS[6]), *case.values)
        for case in covering(TUNINGS, TUNED, strength=1)
    ],
)
def test_every_tuning_computes_the_same(values, case):
    # the portable kernel's tunings: on sm_90a the default is wgmma, whose kernel has others
    check(dataclasses.replace(case, tuning=tuple(sorted(values.items())), products="mma"))


def test_entries_may_come_in_any_order_and_start_anywhere():
    p = problem(Case((130,), (300,), dim=32, mask="blocks", density=0.7), DEVICE)

    def moved(blocks):
        # rows in reverse, five unused elements before each, entries of a row in descending order
        count, index = blocks.count.flatten().tolist(), blocks.index.tolist()
        begin, flat = [], []
        for row, at in reversed(list(enumerate(blocks.begin.flatten().tolist()))):
            flat += [-7] * 5
            begin.insert(0, len(flat))
            flat += index[at : at + count[row]][::-1]
        begin = torch.tensor(begin, dtype=torch.int64, device=DEVICE).view(blocks.begin.shape)
        return BlockList(blocks.count, torch.tensor([*flat, -7], dtype=torch.int32, device=DEVICE), begin)

    lists = p.blocks.forward
    assert not int(lists.partial.count.sum())  # moved() does not move the slots
    p = dataclasses.replace(p, blocks=replaced(p.blocks, forward=BlockLists(lists.partial, moved(lists.full))))
    run(p)
    assert max(errors(p)) <= 1


def test_a_partial_block_whose_mask_allows_all_is_a_full_one():
    p = problem(Case((100,), (130,), dim=32), DEVICE)
    full = p.blocks.forward.full
    nothing = BlockList.empty(1, 1, full.rows, DEVICE)
    bounds = torch.full((1, 1, 1, 100), 130, dtype=torch.int32, device=DEVICE)
    p = dataclasses.replace(p, blocks=replaced(p.blocks, forward=BlockLists(full, nothing), mask=Intervals(bounds)))
    run(p)
    assert max(errors(p)) <= 1


@pytest.mark.parametrize("point", ["keep_keys", "correction"])
def test_a_planted_bug_is_seen(point):
    from cutlass import Float32, cute

    @cute.jit
    def nothing(mask_rows, keys_left):
        pass

    @cute.jit
    def one(old, new, to_log2):
        return Float32(1.0)

    p = problem(Case((64,), (150,), 1, 1, dim=32, spread=2.0), DEVICE)
    run(p, Injection(f"no {point}", {point: {"keep_keys": nothing, "correction": one}[point]}))
    assert max(errors(p)) > 1


def test_what_the_launch_cannot_take_is_refused_by_name():
    p = problem(Case((64,), (64,), dim=32), DEVICE)
    with pytest.raises(ValueError, match=r"^k: needs a dense last dim"):
        dataclasses.replace(p, k=p.k.transpose(-1, -2)).values()
    with pytest.raises(ValueError, match=r"^q: needs .* 16-byte aligned"):
        dataclasses.replace(p, q=torch.zeros(p.q.numel() + 1, dtype=BF16)[1:].view(p.q.shape)).values()
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^scale: must be positive"):
            dataclasses.replace(p, scale=scale).values()
