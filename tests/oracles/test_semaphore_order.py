"""The oracle of the semaphore order against a simulator that tries every timing, and on the published deadlock."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.dq_visits import FREE, Visits, launch_visits
from oracles.semaphore_order import findings, predict


def table(rows, tiles):
    """Visits from one list of (tile, rank, release) for each CTA."""
    begin = [0]
    for row in rows:
        begin.append(begin[-1] + len(row))
    flat = [visit for row in rows for visit in row]
    columns = list(zip(*flat, strict=True)) or [(), (), ()]
    return Visits(begin, *columns, [(0, 0, n) for n in range(len(rows))], 1, max(tiles, 1), tiles)


def every_timing(rows, tiles, slots):
    """The set of ways in which it may end, {True, False}, by trying every order of every step. A visit is two steps:
    the wait that is passed, and the release."""
    first = (tuple(0 for _ in rows), tuple(0 for _ in range(tiles)))
    seen, stack, ends = {first}, [first], set()
    while stack:
        steps, value = stack.pop()
        over = [step == 2 * len(row) for step, row in zip(steps, rows, strict=True)]
        started = 0
        for cta in range(len(rows)):  # in launch order, as slots become free
            if started - sum(over[:started]) < slots:
                started = cta + 1
        moves = []
        for cta in range(started):
            if over[cta]:
                continue
            tile, rank, release = rows[cta][steps[cta] // 2]
            following = (*steps[:cta], steps[cta] + 1, *steps[cta + 1 :])
            if steps[cta] % 2:
                moves.append((following, (*value[:tile], value[tile] + release, *value[tile + 1 :])))
            elif rank in (FREE, value[tile]):
                moves.append((following, value))
        if not moves:
            ends.add(all(over))
        for move in moves:
            if move not in seen:
                seen.add(move)
                stack.append(move)
    return ends


VISIT = st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 1, 1, 2, 3, -1, FREE]), st.sampled_from([1, 1, 1, 1, 0, 2]))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(VISIT, max_size=3), min_size=1, max_size=4), st.integers(1, 4))
def test_any_table_against_every_timing(rows, slots):
    truth = every_timing(rows, 3, slots)
    outcome = predict(table(rows, 3), slots)
    if outcome.ends == "depends":
        pairs = [(tile, rank) for row in rows for tile, rank in {(t, r) for t, r, _ in row}]
        assert len(set(pairs)) < len(pairs) or any(rank == FREE for _, rank in pairs)
        assert outcome.text.startswith("possible deadlock")
    else:
        assert truth == {outcome.ends == "always"}


@st.composite
def ranked_tables(draw):
    """Tables with distinct ranks at each tile, possibly with gaps, wrong orders and faulty releases."""
    ctas, tiles = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 10**6))
    chance = random.Random(seed)
    rows = [[] for _ in range(ctas)]
    for tile in range(tiles):
        who = [cta for cta in range(ctas) if chance.random() < 0.6]
        ranks = list(range(len(who)))
        if chance.random() < 0.3:
            chance.shuffle(ranks)
        if chance.random() < 0.15:
            ranks = [rank + chance.randint(0, 1) * (rank == max(ranks)) for rank in ranks]
        for cta, rank in zip(who, ranks, strict=True):
            rows[cta].append((tile, rank, 1 if chance.random() < 0.97 else chance.choice([0, 2])))
    for row in rows:
        if chance.random() < 0.5:
            chance.shuffle(row)
    return rows, tiles


@settings(max_examples=300, deadline=None)
@given(ranked_tables(), st.integers(1, 6))
def test_distinct_ranks_have_one_answer_whatever_the_timing(case, slots):
    rows, tiles = case
    outcome = predict(table(rows, tiles), slots)
    assert outcome.ends in ("always", "never")
    assert every_timing(rows, tiles, slots) == {outcome.ends == "always"}
    assert (outcome.ends == "never") == bool(outcome.incomplete) == bool(outcome.waits)
    assert outcome.visits + sum(tile.remaining for tile in outcome.incomplete) == sum(map(len, rows))
    assert len(findings(outcome)) == (outcome.ends == "never")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_ranks_in_launch_order_end_with_any_number_of_slots_and_any_visiting_order(seed, ctas, tiles):
    chance = random.Random(seed)
    ranks, rows = [0] * tiles, []
    for _ in range(ctas):
        row = []
        for tile in chance.sample(range(tiles), chance.randint(0, tiles)):
            row.append((tile, ranks[tile], 1))
            ranks[tile] += 1
        rows.append(row)
    assert all(predict(table(rows, tiles), slots).ends == "always" for slots in range(1, ctas + 1))


# varlen_full_1k: the lists and ranks that were published for it, by hand.
PARTIAL = [[2], [2], [0, 1, 2, 3], [2, 3, 4, 5, 6], [3, 6], [3, 6], [3, 4, 5, 6, 7], [6, 7]]
FULL = [[0, 1], [0, 1], [], [], [4, 5], [4, 5], [], []]
UP = [[0], [1], [2, 2, 2, 0], [3, 1, 0, 0, 0], [2, 1], [3, 2], [4, 3, 3, 3, 0], [4, 1]], [
    [0, 0], [1, 1], [], [], [1, 1], [2, 2], [], []
]  # fmt: skip
DOWN = [[3], [2], [0, 0, 1, 4], [0, 3, 3, 3, 4], [2, 3], [1, 2], [0, 0, 0, 1, 1], [0, 0]], [
    [2, 2], [1, 1], [], [], [2, 2], [1, 1], [], []
]  # fmt: skip
N_BLOCK = [[n] * len(row) for n, row in enumerate(PARTIAL)], [[n] * len(row) for n, row in enumerate(FULL)]


def csr(rows):
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32).view(1, 1, -1)
    index = torch.tensor([m for row in rows for m in row], dtype=torch.int32)
    return count, index, (count.cumsum(-1) - count).to(torch.int64)


def published(ranks, order, batch=1, heads_q=1, heads_kv=1, **options):
    tensors = tuple(torch.tensor([r for row in rows for r in row], dtype=torch.int32) for rows in ranks)
    launch = torch.tensor(list(order), dtype=torch.int32).view(1, 1, -1)
    shape = {"batch": batch, "heads_q": heads_q, "heads_kv": heads_kv, "m_blocks": 8}
    return launch_visits(csr(PARTIAL), csr(FULL), tensors, launch, **shape, **options)


@pytest.mark.parametrize("ranks, order", [(UP, range(8)), (DOWN, range(7, -1, -1))])
def test_published_ranks_end_in_their_own_order(ranks, order):
    for slots in range(1, 9):
        outcome = predict(published(ranks, order), slots)
        assert outcome.ends == "always"
        assert outcome.semaphores == (3, 3, 4, 5, 4, 4, 5, 2)


def test_ranks_of_the_other_direction_hang_only_while_not_all_are_resident():
    down_launched = [predict(published(UP, range(7, -1, -1)), slots).ends for slots in range(1, 9)]
    assert down_launched[:4] == ["never"] * 4
    assert down_launched[7] == "always"


def test_n_block_as_lock_deadlocks_five_of_eight_tiles_with_any_slots_and_order():
    for order in (range(8), range(7, -1, -1)):
        for slots in range(1, 9):
            outcome = predict(published(N_BLOCK, order), slots)
            assert outcome.ends == "never"
            assert {tile.tile[2] for tile in outcome.incomplete} >= {3, 4, 5, 6, 7}
    outcome = predict(published(N_BLOCK, range(8)), 8)
    assert [tile.tile for tile in outcome.incomplete] == [(0, 0, m) for m in (3, 4, 5, 6, 7)]
    assert [tile.value for tile in outcome.incomplete] == [0] * 5
    at_three = [wait for wait in outcome.waits if wait.tile == (0, 0, 3)]
    assert [(wait.n_block, wait.rank, wait.cause) for wait in at_three] == [(n, n, "no_rank") for n in (2, 3, 4, 5, 6)]
    assert (
        "semaphore dq[b 0, h 0, m 3] is 0; the CTAs of n_block 2…6 wait for 2…6, and no remaining CTA has rank 0"
        in (outcome.text)
    )
    assert findings(outcome)[0].kind == "hang"
    assert findings(outcome)[0].numbers == {"tiles": 5.0, "waiting": 6.0}


def test_a_hang_for_want_of_slots_names_the_cta_that_has_not_started():
    outcome = predict(published(UP, range(7, -1, -1)), 1)
    (wait,) = outcome.waits
    assert (wait.n_block, wait.tile, wait.rank, wait.cause) == (7, (0, 0, 6), 4, "not_resident")


def test_a_value_that_is_past_is_named():
    outcome = predict(table([[(0, 0, 1), (0, 0, 1)]], 1), 1)
    assert outcome.ends == "never"
    assert outcome.waits[0].cause == "passed"


def test_a_circle_of_waits_is_named():
    rows = [[(0, 1, 1), (1, 0, 1)], [(1, 1, 1), (0, 0, 1)]]
    outcome = predict(table(rows, 2), 2)
    assert [wait.cause for wait in outcome.waits] == ["cycle", "cycle"]


def test_who_waits_for_a_circle_is_not_said_to_be_in_it():
    rows = [[(0, 1, 1), (1, 0, 1)], [(1, 1, 1), (0, 0, 1)], [(0, 2, 1)]]
    outcome = predict(table(rows, 2), 3)
    assert [wait.cause for wait in outcome.waits] == ["cycle"] * 3
    assert "waits, directly or through others, for itself" in outcome.text


def test_a_tile_that_a_coming_visit_releases_without_waiting_is_no_gap():
    rows = [[(0, 1, 1)], [(1, 5, 1), (0, FREE, 1)]]
    outcome = predict(table(rows, 2), 2)
    assert [(wait.cta, wait.cause, wait.root[2]) for wait in outcome.waits] == [(0, "no_rank", 1), (1, "no_rank", 1)]


def test_every_query_head_of_a_group_has_its_own_semaphores():
    of = published(UP, range(8), batch=2, heads_q=4, heads_kv=2)
    assert of.ctas == 32
    outcome = predict(of, 3)
    assert outcome.ends == "always"
    assert outcome.semaphores == (3, 3, 4, 5, 4, 4, 5, 2) * 8
    assert of.owner[:5] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1)]
    side_by_side = published(UP, range(8), batch=2, heads_q=4, heads_kv=2, concurrent_pairs=3)
    assert side_by_side.owner[:4] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]
    assert side_by_side.owner[24:26] == [(1, 1, 0), (1, 1, 1)]


def test_a_group_in_two_parts_has_a_cta_for_each():
    whole, parts = (published(UP, range(8), heads_q=4, heads_kv=1, group_split=parts) for parts in (1, 2))
    assert parts.ctas == 2 * whole.ctas and sorted(parts.tile) == sorted(whole.tile)
    assert parts.owner[:3] == [(0, 0, 0), (0, 0, 0), (0, 0, 1)]
    heads = [{tile // 8 for tile in parts.tile[parts.begin[c] : parts.begin[c + 1]]} for c in range(4)]
    assert heads == [{0, 1}, {2, 3}] * 2
    for slots in (1, 3, 16):
        assert predict(parts, slots).ends == "always"
        assert predict(parts, slots).semaphores == predict(whole, slots).semaphores


def test_merged_rows_are_visited_in_ascending_order():
    listed, merged = (published(UP, range(8), merged=merged) for merged in (False, True))
    for c in range(8):
        here = slice(merged.begin[c], merged.begin[c + 1])
        assert list(merged.tile[here]) == sorted(listed.tile[here])
        rank = dict(zip(listed.tile[here], listed.rank[here], strict=True))
        assert [rank[tile] for tile in merged.tile[here]] == list(merged.rank[here])
    assert merged.tile != listed.tile
    assert predict(merged, 1).ends == "always"


def test_blocks_past_the_end_of_the_keys_are_not_visited():
    of = published(UP, range(8), keys=[300], tile_n=128)
    assert [of.begin[n + 1] - of.begin[n] for n in range(8)] == [3, 3, 4, 0, 0, 0, 0, 0]


def test_a_missing_release_is_a_hang_behind_it():
    releases = tuple(torch.ones(size, dtype=torch.int32) for size in (22, 8))
    releases[0][2] = 0  # n_block 2 does not release m_block 0: it is the last there
    assert predict(published(UP, range(8), releases=releases), 8).ends == "always"
    releases[0][5] = 0  # nor m_block 3, where it is the first
    outcome = predict(published(UP, range(8), releases=releases), 8)
    assert outcome.ends == "never"
    assert outcome.incomplete[0].tile == (0, 0, 3)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="resident_ctas"):
        predict(table([[]], 1), 0)
    with pytest.raises(ValueError, match="release"):
        predict(table([[(0, 0, -1)]], 1), 1)
    with pytest.raises(ValueError, match="tile"):
        predict(table([[(1, 0, 1)]], 1), 1)
    count, index, begin = csr(PARTIAL)
    nothing = csr([[]] * 8)
    with pytest.raises(ValueError, match="partial: needs rows within its 22"):
        ranks = (index, nothing[1])
        shape = {"batch": 1, "heads_q": 1, "heads_kv": 1, "m_blocks": 8}
        launch_visits((count + 1, index, begin), nothing, ranks, torch.arange(8).view(1, 1, 8), **shape)
