"""Packed sequences whose tiles are launched by length (NOTE [sequences by length] of lists/lpt.py): when they are, and
what every kernel computes then on the emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backward_problems import Spec, errors, make
from blocksparse_runs import loaded
from covering import nightly_unless
from emulated_backward import ARCHS, emulated
from forward_cases import Case, problem
from forward_cases import errors as forward_errors

from kernels.blocksparse.launch import forward as launch_forward
from kernels.blocksparse.launch.by_length import (
    order_of_keys,
    order_of_partials,
    order_of_queries,
    order_values,
    tiles_to_launch,
)
from kernels.blocksparse.launch.concurrency import concurrent_pairs, group_split_of
from kernels.blocksparse.lists.bands import band, causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_grid
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.lpt import sequence_order
from kernels.blocksparse.lists.schedule import permutation
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.validate.contents import check_contents
from kernels.blocksparse.lists.validate.shapes import Sizes, check_shapes
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.ops import flatten, unflatten
from kernels.blocksparse.planner.planner import least_blocking
from kernels.blocksparse.spec.signature import ordered
from oracles.dq_visits import Visits, by_sequences, launch_visits
from oracles.semaphore_order import predict

LENGTHS = (70, 0, 330, 10, 200)
TILES = {"tile_m": 64, "tile_n": 64}


def rows(lengths=LENGTHS, heads=4, dim=64):
    """Packed rows, without storage."""
    return torch.empty(sum(lengths), heads, dim, dtype=torch.bfloat16, device="meta")


def without_order(blocks: BlockSparse) -> BlockSparse:
    """Lists whose sequences are launched as they come."""
    return replace(blocks, lpt=blocks.lpt and replace(blocks.lpt, queries=None, keys=None))


def grid(lengths=LENGTHS, seed=0, heads=1, share=0.5) -> BlockSparse:
    """Random blocks, rows and columns without any among them."""
    size = -(-max(lengths) // 64)
    cells = torch.rand(len(lengths), heads, size, size, generator=torch.Generator().manual_seed(seed)) < share
    cells[:, :, ::3] = False
    cells[:, :, :, 1::3] = False
    return from_grid(cells, lengths, lengths, **TILES)


def test_sequences_come_by_their_number_of_tiles():
    order = sequence_order(torch.tensor(LENGTHS), 64)
    assert order.sequence.tolist() == [2, 4, 0, 3, 1] and order.start.tolist() == [0, 6, 10, 12, 13, 13]
    assert order.sequence.dtype == order.start.dtype == torch.int32
    assert sequence_order(torch.tensor([5, 64, 1]), 64).sequence.tolist() == [0, 1, 2]


def test_packed_sequences_of_unequal_lengths_have_an_order_and_no_others():
    for blocks in (causal(LENGTHS, LENGTHS, **TILES), dense(LENGTHS, LENGTHS, **TILES), grid()):
        for of in (order_of_queries, order_of_keys, order_of_partials):
            assert of(rows(), blocks).sequence.tolist() == [2, 4, 0, 3, 1]
            assert of(rows()[None], blocks) is None  # padded
            assert of(rows(), without_order(blocks)) is None and of(rows(), replace(blocks, lpt=None)) is None
    alike = causal([330, 330], [330, 330], **TILES)
    assert alike.lpt.queries is None
    for lengths in ((320, 320), (320, 310), (330, 321)):  # as many tiles each: an order would save none
        blocks = causal(lengths, lengths, **TILES)
        assert order_of_queries(rows(lengths), blocks) is None and order_of_keys(rows(lengths), blocks) is None
    forward_only = causal(LENGTHS, LENGTHS, backward=False, **TILES)
    assert forward_only.lpt.keys is None and order_of_keys(rows(), forward_only) is None
    assert order_of_partials(rows(), replace(grid(), tile_n=256)) is None  # of pairs of CTAs


def test_no_order_of_keys_under_a_permutation_that_may_mix_them():
    blocks = grid()
    assert blocks.schedule.own_first and order_of_keys(rows(), blocks) is not None
    shuffled = with_order(blocks, permutation(blocks.schedule.positions.flip(-1).contiguous()))
    assert order_of_keys(rows(), shuffled) is None and order_of_partials(rows(), shuffled) is not None


def test_as_many_tiles_are_launched_as_there_can_be_of_so_many_rows():
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        lengths = torch.randint(0, 400, (5,), generator=draw)
        order = sequence_order(lengths, 64)
        blocks = -(-int(lengths.max()) // 64)
        launched = tiles_to_launch(order, rows(lengths.tolist()), 64, 5, blocks)
        assert int(order.start[-1]) <= launched <= int(order.start[-1]) + 5
    assert tiles_to_launch(None, rows(), 64, 5, 6) == 30
    assert order_values(None, "key_") == {"key_order_sequence": 0, "key_order_start": 0}


@pytest.mark.parametrize("seed", range(6))
def test_launch_orders_have_each_sequences_own_blocks_first(seed):
    """Whatever the lists: for one sequence each, or one for all."""
    for blocks in (grid(seed=seed, heads=2), grid(seed=seed, share=0.05), causal(LENGTHS, LENGTHS, **TILES)):
        for positions in (blocks.lpt.rows, blocks.lpt.columns):
            for b, length in enumerate(LENGTHS):
                own = -(-length // 64)
                for of_head in positions[b % len(positions)].tolist():
                    assert sorted(of_head[:own]) == list(range(own))


def test_lists_that_halves_are_made_of_keep_an_order():
    blocks = causal(LENGTHS, LENGTHS, tile_m=128, tile_n=128)
    halved = halve_keys(blocks, torch.tensor(LENGTHS))
    assert halved.lpt.queries is blocks.lpt.queries
    assert halved.lpt.keys.start.tolist() == [0, 6, 10, 12, 13, 13]
    for batch in (5, 1):
        whole = from_grid(torch.ones(batch, 1, 3, 3, dtype=torch.bool), LENGTHS, LENGTHS)
        of_grid = halve_keys(whole, torch.tensor(LENGTHS))
        assert of_grid.schedule.own_first and order_of_keys(rows(), of_grid).start.tolist() == [0, 6, 10, 12, 13, 13]
        lengths = torch.tensor(LENGTHS)
        check_contents(of_grid, Sizes(5, 4, 2, 330, 330, lengths, lengths))


def test_they_travel_with_the_lists():
    for blocks in (grid(), without_order(grid()), causal(LENGTHS, LENGTHS, backward=False, **TILES)):
        tensors, numbers = flatten(blocks)
        again = unflatten(tensors, numbers)
        assert again.schedule.own_first == blocks.schedule.own_first
        for name in ("queries", "keys"):
            one, other = getattr(blocks.lpt, name), getattr(again.lpt, name)
            assert one is other is None or (one.sequence is other.sequence and one.start is other.start)


WRONG = {
    r"blocks\.lpt\.queries: needs a SequenceOrder, got int": {"queries": 3},
    r"blocks\.lpt\.keys\.start: needs shape \(6,\), got \(5,\)": {"keys": {"start": torch.zeros(5, dtype=torch.int32)}},
    r"blocks\.lpt\.keys\.sequence: needs torch\.int32": {"keys": {"sequence": torch.arange(5)}},
    r"blocks\.lpt\.queries\.sequence: needs every sequence once": {
        "queries": {"sequence": torch.zeros(5, dtype=torch.int32)}
    },
    r"blocks\.lpt\.queries\.start: needs sums of the sequences' tiles": {
        "queries": {"start": torch.tensor([0, 5, 10, 12, 13, 13], dtype=torch.int32)}
    },
    r"blocks\.lpt\.queries: needs each sequence's own blocks before": {
        "rows": torch.tensor([5, 4, 3, 2, 1, 0], dtype=torch.int32).expand(5, 1, 6).contiguous()
    },
}


@pytest.mark.parametrize("message", WRONG)
def test_orders_that_would_leave_tiles_out_are_refused(message):
    blocks = grid()
    changes = {
        name: replace(getattr(blocks.lpt, name), **value) if isinstance(value, dict) else value
        for name, value in WRONG[message].items()
    }
    lengths = torch.tensor(LENGTHS)
    sizes = Sizes(5, 4, 2, 330, 330, lengths, lengths)
    check_contents(blocks, sizes)
    with pytest.raises(ValueError, match=message):
        check_shapes(replace(blocks, lpt=replace(blocks.lpt, **changes)), sizes)
        check_contents(replace(blocks, lpt=replace(blocks.lpt, **changes)), sizes)


def test_a_schedule_says_wrongly_that_own_blocks_come_first():
    blocks = grid()
    mixed = replace(permutation(blocks.schedule.positions.flip(-1).contiguous()), own_first=True)
    lengths = torch.tensor(LENGTHS)
    with pytest.raises(ValueError, match=r"schedule\.positions: needs each sequence's own blocks before"):
        check_contents(with_order(blocks, mixed), Sizes(5, 4, 2, 330, 330, lengths, lengths))


def planned(blocks: BlockSparse, pairs: int) -> BlockSparse:
    """Under the order of `least_blocking`, of 4 query heads on 2 KV heads."""
    plan = least_blocking(blocks, heads_q=4, heads_kv=2, batch=len(LENGTHS), slots=3, pairs=pairs)
    assert plan.blocks.schedule.own_first
    lengths = torch.tensor(LENGTHS)
    check_contents(plan.blocks, Sizes(5, 4, 2, 330, 330, lengths, lengths))
    return plan.blocks


def visits_of(blocks: BlockSparse, heads: tuple[int, int], pairs: int, group_split: int) -> Visits:
    """The visits of all CTAs of a launch by length."""
    partial, full, order = blocks.backward.partial, blocks.backward.full, blocks.order
    of_keys = order_of_keys(rows(), blocks)
    return launch_visits(
        (partial.count, partial.index, partial.begin),
        (full.count, full.index, full.begin),
        (order.partial, order.full),
        blocks.schedule.launch_order(blocks.backward.rows, "cpu"),
        batch=len(LENGTHS),
        heads_q=heads[0],
        heads_kv=heads[1],
        m_blocks=blocks.m_blocks,
        concurrent_pairs=pairs,
        group_split=group_split,
        merged=blocks.merged,
        sequence_tiles=list(zip(of_keys.sequence.tolist(), of_keys.start.diff().tolist(), strict=True)),
    )


@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("mask", ["causal", "window", "full", "random", "random, planned", "causal, planned"])
def test_ranks_follow_the_launch_order(mask, pairs):
    """So the launch ends with any number of resident CTAs, and each tile's ranks are 0 … c - 1 as CTAs are launched."""
    blocks = {
        "causal": lambda: causal(LENGTHS, LENGTHS, **TILES),
        "window": lambda: window(LENGTHS, LENGTHS, left=90, **TILES),
        "full": lambda: dense(LENGTHS, LENGTHS, **TILES),
        "random": grid,
        "random, planned": lambda: planned(grid(heads=4), pairs),
        "causal, planned": lambda: planned(causal(LENGTHS, LENGTHS, **TILES), pairs),
    }[mask]()
    visits = visits_of(blocks, (4, 2), pairs, 2 if pairs == 2 else 1)
    ranks: dict[int, list[int]] = {}
    for tile, rank in zip(visits.tile, visits.rank, strict=True):
        ranks.setdefault(tile, []).append(rank)
    assert ranks and all(found == list(range(len(found))) for found in ranks.values())
    assert all(predict(visits, slots).ends == "always" for slots in (1, 2, 7))


def test_heads_of_one_sequence_are_concurrent_more_of_a_shorter_one():
    launched = list(by_sequences([(1, 2), (0, 1)], 3, 2, 2))
    assert launched == [
        *((1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1), (1, 2, 0), (1, 2, 1)),
        *((0, 0, 0), (0, 1, 0), (0, 2, 0)),
    ]


def test_what_the_launcher_chooses():
    """Concurrent units are those of the longest sequence; a KV head has more units where lengths are unequal."""
    lengths = [6400, *[200] * 30]
    blocks, k = causal(lengths, lengths), rows(lengths, 2, 128)
    q = rows(lengths, 16, 128)
    assert group_split_of(blocks, 31, q, k, False) > group_split_of(replace(blocks, lpt=None), 31, q, k, False)
    assert concurrent_pairs(q, k, blocks, False, 4) == 4 and concurrent_pairs(q, k, blocks, True, 4) == 2
    assert concurrent_pairs(q, q, dense(lengths, lengths), False) == 1


# One of each way in which kernels take their tiles
KERNELS = {
    "mma.sync": Spec(LENGTHS, (90, 60, 200, 0, 330), 4, 2, mask="random"),
    "mma.sync, a group that is split": Spec(LENGTHS, LENGTHS, 4, 1, mask="causal", group_split=2),
    "wgmma, 64 keys": Spec(LENGTHS, LENGTHS, 1, 1, dim=256, tile_m=128, products="wgmma", mask="causal"),
    "transposed": Spec(LENGTHS, LENGTHS, 2, 1, tile_m=128, tile_n=128, products="wgmma", mask="causal"),
    "transposed, a group that is split": Spec(
        LENGTHS, LENGTHS, 2, 1, tile_m=128, tile_n=128, products="wgmma", mask="window", group_split=2
    ),
    "runs": Spec(
        *((400, 130, 30), (300, 20, 140), 2, 2),
        dim=128,
        tile_m=128,
        tile_n=128,
        products="wgmma",
        tuning=(("runs", 1),),
    ),
    "tcgen05": Spec(LENGTHS, LENGTHS, 1, 1, tile_m=128, tile_n=128, products="tcgen05", mask="causal"),
    "pairs of CTAs": Spec((500, 20, 130), (600, 30, 150), 2, 1, dim=128, tile_m=128, tile_n=256, products="tcgen05"),
    "separate dQ": Spec(LENGTHS, LENGTHS, 2, 2, tile_m=128, tile_n=128, products="wgmma", separate_dq=True),
}
DAILY = ("mma.sync", "transposed")


@pytest.mark.parametrize("name", [nightly_unless(name in DAILY, name) for name in KERNELS])
def test_gradients_and_bits(name):
    """Right in every kernel, and with ordered adds, which have no runs, the same bits with other numbers of resident
    CTAs."""
    spec = replace(KERNELS[name], packed=True, schedule="descending")
    for one in (replace(spec, deterministic=False), replace(spec, deterministic=True, pairs=2, tuning=())):
        case = make(one)
        assert order_of_keys(case.operands["k"], case.blocks) is not None
        assert order_of_queries(case.operands["q"], case.blocks) is not None
        first = None
        for resident, warps in ((3, "in_order"), (1, "random"), (7, "oldest_last")):
            out = emulated(case, resident, warps)
            assert max(errors(case, out).values()) <= 1, errors(case, out)
            first = first or out
            if one.deterministic:
                assert all(map(torch.equal, first.values(), out.values()))


PLANNED = {
    "mma.sync": ((4, 2), {**TILES}),
    "transposed": ((2, 1), {"tile_m": 128, "tile_n": 128, "products": "wgmma"}),
    "wgmma, halves of 128 keys": ((2, 2), {"dim": 256, "tile_m": 128, "tile_n": 128, "products": "wgmma"}),
}


@pytest.mark.parametrize("name", [nightly_unless(name == "transposed", name) for name in PLANNED])
def test_gradients_and_bits_under_a_planned_order(name):
    """Sequences are launched by length under an order of `least_blocking`, also where lists of 128 keys are halved."""
    heads, options = PLANNED[name]
    case = make(Spec(LENGTHS, LENGTHS, *heads, mask="random", packed=True, deterministic=True, **options))
    sizes = {"heads_q": heads[0], "heads_kv": heads[1], "batch": len(LENGTHS)}
    blocks = least_blocking(case.blocks, **sizes, dim=case.spec.dim, slots=5).blocks
    if "halves" in name:
        blocks = halve_keys(blocks, torch.tensor(LENGTHS))
    case = replace(case, blocks=blocks)
    assert blocks.schedule.own_first and order_of_keys(case.operands["k"], blocks) is not None
    results = [emulated(case, resident, warps) for resident, warps in ((3, "in_order"), (1, "random"), (7, "random"))]
    assert max(errors(case, results[0]).values()) <= 1, errors(case, results[0])
    assert all(torch.equal(results[0][key], other[key]) for other in results for key in other)


FORWARD = {
    "mma.sync": Case(LENGTHS, LENGTHS, 4, 2, mask="blocks"),
    "mma.sync, a band": Case(LENGTHS, LENGTHS, 4, 2, mask="band"),
    "wgmma": Case(LENGTHS, LENGTHS, 2, 1, tile_m=128, tile_n=128, mask="band", products="wgmma"),
    "wgmma, without TMA": Case(
        *(LENGTHS, LENGTHS, 2, 1), tile_m=128, tile_n=128, mask="blocks", products="wgmma", tuning=(("tma", 0),)
    ),
    "tcgen05": Case(LENGTHS, LENGTHS, 2, 1, tile_m=128, tile_n=128, mask="band", products="tcgen05"),
}


@pytest.mark.parametrize("name", [nightly_unless(name in ("wgmma", "mma.sync"), name) for name in FORWARD])
def test_outputs_are_those_of_all_tiles(name):
    """By few CTAs that take one tile after the other, and by one for each; bitwise as without an order."""
    p = problem(replace(FORWARD[name], packed=True), "cpu")
    assert order_of_queries(p.q, p.blocks) is not None
    results = []
    for blocks in (p.blocks, without_order(p.blocks)):
        for resident in (None, 1, 3):
            if resident and p.case.products is None:
                continue
            one = replace(p, blocks=blocks, o=torch.full_like(p.o, torch.nan), lse=torch.full_like(p.lse, torch.nan))
            counter = None if resident is None else torch.zeros(1, dtype=torch.int32)
            values = one.values(resident=resident, tile_counter=counter)
            loaded(one.variant, ARCHS[p.case.products])(*ordered("forward", values))
            assert max(forward_errors(one)) <= 1
            results.append((one.o, one.lse))
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))


def test_a_launch_has_the_tiles_that_there_can_be():
    blocks = band(LENGTHS, LENGTHS, left=None, right=0, **TILES)
    q = torch.empty(sum(LENGTHS), 4, 64, dtype=torch.bfloat16)
    assert launch_forward.tiles_of_queries(q, blocks, 5) == 4 * (610 // 64 + 5)
    assert launch_forward.tiles_of_queries(q, without_order(blocks), 5) == 4 * 5 * 6
