"""Launch orders by length: longest first, shared by the heads where one is needed, never a change of results."""

from dataclasses import replace

import pytest
import torch
from backward_problems import Spec, errors, make
from blocksparse_runs import DEVICE, gradients
from blocksparse_runs import run_forward as run
from forward_cases import Case, problem

from kernels.blocksparse.launch.concurrency import concurrent_pairs
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_grid
from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.lpt import even_share
from kernels.blocksparse.lists.schedule import ASCENDING
from kernels.blocksparse.lists.types import LPTOrder
from kernels.blocksparse.lists.validate.contents import check_contents
from kernels.blocksparse.lists.validate.shapes import Sizes, check_shapes
from kernels.blocksparse.ops import flatten, unflatten
from kernels.blocksparse.planner.group_split import PAIRS
from kernels.blocksparse.planner.planner import estimate


def random_grid(heads=2):
    draw = torch.Generator().manual_seed(0)
    return from_grid(torch.rand(1, heads, 9, 7, generator=draw) < 0.4, 9 * 64, 7 * 64, tile_m=64, tile_n=64)


def test_rows_come_by_length_and_of_equal_ones_the_last_first():
    blocks = random_grid()
    rows = (blocks.forward.partial.count + blocks.forward.full.count)[0]
    for head in range(2):
        wanted = sorted(range(9), key=lambda m: (-int(rows[head, m]), -m))
        assert blocks.lpt.rows[0, head].tolist() == wanted
    columns = (blocks.backward.partial.count + blocks.backward.full.count)[0].sum(0)
    assert blocks.lpt.columns[0, 0].tolist() == sorted(range(7), key=lambda n: (-int(columns[n]), n))
    assert causal(640, 640, tile_m=64, tile_n=64).lpt.rows.flatten().tolist() == list(range(9, -1, -1))
    assert dense(640, 640, backward=False).lpt.columns is None


def test_grids_launch_the_longest_first_by_default_and_their_ranks_follow():
    blocks = random_grid()
    assert torch.equal(blocks.schedule.positions, blocks.lpt.columns)
    check_shapes(blocks, Sizes(1, 2, 2, 9 * 64, 7 * 64))
    check_contents(blocks, Sizes(1, 2, 2, 9 * 64, 7 * 64))
    draw, grid = torch.Generator().manual_seed(1), torch.empty(1, 1, 64, 64)
    ratios = []
    for density in (0.1, 0.1, 0.3, 0.5, 0.8):
        blocks = from_grid(grid.uniform_(generator=draw) < density, 8192, 8192)
        times = [estimate(blocks, s, heads_q=16, heads_kv=16).makespan for s in (blocks.schedule, ASCENDING)]
        ratios.append(times[0] / times[1])
    assert max(ratios) < 1.0 and sum(ratios) / len(ratios) < 0.96


def test_they_travel_with_the_lists():
    for blocks in (random_grid(), replace(random_grid(), lpt=None), dense(300, 300, backward=False)):
        tensors, numbers = flatten(blocks)
        again, _ = flatten(unflatten(tensors, numbers))
        assert len(again) == len(tensors) and all(one is other for one, other in zip(again, tensors, strict=True))


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (torch.zeros(1, 2, 9), None, r"blocks\.lpt\.rows: needs torch\.int32"),
        (torch.zeros(1, 2, 8, dtype=torch.int32), None, r"blocks\.lpt\.rows: needs shape \(1, 1 or 2, 9\)"),
        (None, torch.zeros(1, 2, 7, dtype=torch.int32), r"blocks\.lpt\.columns: needs shape \(1, 1, 7\)"),
        (torch.zeros(1, 2, 9, dtype=torch.int32), None, r"blocks\.lpt\.rows: needs every m_block once"),
        (None, torch.zeros(1, 1, 7, dtype=torch.int32), r"blocks\.lpt\.columns: needs every n_block once"),
    ],
)
def test_orders_that_would_skip_tiles_are_refused(rows, columns, message):
    blocks, sizes = random_grid(), Sizes(1, 2, 2, 9 * 64, 7 * 64)
    right = blocks.lpt
    wrong = LPTOrder(right.rows if rows is None else rows, right.columns if columns is None else columns)
    with pytest.raises(ValueError, match=message):
        check_shapes(replace(blocks, lpt=wrong), sizes)
        check_contents(replace(blocks, lpt=wrong), sizes)


def test_the_forward_pass_is_bitwise_the_same_in_any_order():
    p = problem(Case((330, 70), (260, 130), 4, 2, dim=32, mask="blocks"), DEVICE)
    results = []
    for lpt in (p.blocks.lpt, None, LPTOrder(p.blocks.lpt.rows.flip(-1).contiguous())):
        other = replace(p, blocks=replace(p.blocks, lpt=lpt))
        run(other)
        results.append([x.nan_to_num(nan=9.0) for x in (other.o, other.lse)])  # rows of padding are not written
    assert p.blocks.lpt is not None and all(map(torch.equal, results[0], results[1]))
    assert all(map(torch.equal, results[0], results[2]))


@pytest.mark.parametrize("pairs", [None, 1, 3])
def test_the_atomic_backward_pass_is_right_in_that_order(pairs):
    spec = make(Spec((200, 90), (330, 150), 4, 2, dim=32, mask="random", deterministic=False, pairs=pairs))
    assert spec.blocks.lpt.columns is not None
    out, reports = gradients(spec)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * 3
    assert max(errors(spec, out).values()) <= 1


def test_the_last_group_of_heads_is_as_full_as_can_be():
    assert [even_share(16, most) for most in (1, 2, 3, 4, 5, 7, 16, 99)] == [1, 2, 2, 4, 4, 4, 16, 16]
    assert even_share(7, 4) == 4 and even_share(0, 3) == 1
    for pairs in range(1, 40):
        for most in range(1, 20):
            share = even_share(pairs, most)
            assert min(most, pairs) / 2 <= share <= min(most, pairs)


def test_as_many_heads_side_by_side_as_the_cache_holds():
    blocks = causal(8192, 8192)
    q = torch.empty(1, 8192, 16, 128, dtype=torch.bfloat16, device="meta")
    assert concurrent_pairs(q, q, blocks, False) == 4  # 8 MiB each
    assert concurrent_pairs(q, q[:, :, :2], blocks, False) == 2
    assert concurrent_pairs(q, q, replace(blocks, merged=False), True) == PAIRS
    assert concurrent_pairs(q[0], q[0], blocks, False) == 4


def test_masks_of_few_rows_a_cta_take_more_heads_side_by_side():
    """The numbers of pairs that were faster on an H100 and an H200: of windows, pairs for a wave and a half of CTAs, of
    documents for four waves."""
    q = torch.empty(1, 8192, 16, 128, dtype=torch.bfloat16, device="meta")
    assert concurrent_pairs(q, q, window(8192, 8192, left=2047), False) == 4
    assert concurrent_pairs(q, q, documents([1000, 4000], 8192, 8192), False) == 8
    q = torch.empty(1, 32768, 16, 128, dtype=torch.bfloat16, device="meta")
    assert concurrent_pairs(q, q, causal(32768, 32768), False) == 1
    assert concurrent_pairs(q, q, documents([1000, 20000], 32768, 32768), False) == 2


def test_ordered_adds_take_what_the_cache_holds_where_no_cta_waits_long():
    """The numbers of concurrent pairs of windows are those that were fastest on an H100 or H200, or within 3 % of
    that."""
    for tokens, dim in ((8192, 128), (8192, 64), (32768, 128), (32768, 64)):
        q = torch.empty(1, tokens, 16, dim, dtype=torch.bfloat16, device="meta")
        narrow = window(tokens, tokens, left=2047)
        assert concurrent_pairs(q, q, narrow, True) == 4
        for other in (replace(narrow, schedule=ASCENDING), replace(narrow, merged=False)):
            assert concurrent_pairs(q, q, other, True) == PAIRS
