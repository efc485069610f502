"""Reports of deadlocks: semaphores explained by the prediction from the block lists, or as they were read."""

from __future__ import annotations

import torch

from fuzz.core.case import Case
from fuzz.devices.deadlock import explain
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.hang_report import semaphores_explained
from kernels.mutants.blocksparse.table import effective
from oracles.dq_visits import Visits, launch_visits
from oracles.masks import Documents
from oracles.problem import Problem
from oracles.semaphore_order import predict

# Seed: ten packed segments of 1,024 tokens, tiles of 128, the lock of a KV tile its own number.
SEGMENTS = (366, 391, 471, 835, 984, 1005, 1017, 1020, 1023)
CASE = Case(
    "blocksparse!lock_is_n_block",
    Problem((1024,), (1024,), 1, 1, 128, 128, "bfloat16", mask=Documents(SEGMENTS)),
)


def visits_of(case: Case, mutant: str) -> Visits:
    blocks = blocks_of(case)
    order, releases = effective(mutant, blocks)
    partial, full = blocks.backward.partial, blocks.backward.full
    return launch_visits(
        (partial.count, partial.index, partial.begin),
        (full.count, full.index, full.begin),
        (order.partial, order.full),
        blocks.schedule.launch_order(blocks.backward.rows, "cpu"),
        batch=1, heads_q=1, heads_kv=1, m_blocks=8, keys=(1024,), tile_n=128, releases=releases,
    )  # fmt: skip


def test_the_correct_order_ends_with_one_resident_cta() -> None:
    assert predict(visits_of(CASE, ""), 1).ends == "always"


def test_ranks_by_n_block_deadlock_with_five_of_eight_tiles_incomplete() -> None:
    of = visits_of(CASE, "lock_is_n_block")
    predicted = predict(of, 8)
    assert predicted.ends == "never" and len({tile.tile for tile in predicted.incomplete}) == 5
    found = explain(of, predicted.semaphores, resident=132)
    assert found.resident_ctas == 8
    assert found.line.startswith("deadlock with 8 resident CTAs: 5 of 8 dQ tiles lack some of their adds; ")
    assert "m 3] is 0; the CTAs of n_block 2…6 wait for 2…6, and no remaining CTA has rank 0" in found.text


def test_semaphores_that_differ_from_the_prediction_are_reported_as_they_are() -> None:
    of = visits_of(CASE, "")
    seen = [0] * of.tiles
    found = explain(of, seen, resident=132)
    assert found.resident_ctas is None
    assert (
        "semaphore dq[b 0, h 0, m 2] is 0 of 4; still to add: n_block 0 with rank 0, n_block 1 with rank 1"
        in found.text
    )
    assert (
        "the CTA of n_block 0 could run" in found.text
        and "prediction from the block lists: ends: all 30 adds" in found.text
    )


def test_a_lost_release_is_told_apart_from_a_wrong_rank() -> None:
    of = visits_of(CASE, "release_missing")
    predicted = predict(of, 8)
    found = explain(of, predicted.semaphores, resident=132)
    assert found.resident_ctas == 8 and predicted.semaphores == (0,) * 8


def test_ranks_per_entry_of_a_list_are_its_n_blocks() -> None:
    blocks = blocks_of(CASE)
    order, _ = effective("lock_is_n_block", blocks)
    one = blocks.backward.partial
    for n in range(8):
        start = int(one.begin[0, 0, n])
        assert torch.all(order.partial[start : start + int(one.count[0, 0, n])] == n)


def test_semaphores_that_did_not_begin_at_0_have_their_last_values() -> None:
    of = visits_of(CASE, "")
    found = semaphores_explained("backward", predict(of, 8).semaphores, of, 132)
    assert found["explained"].startswith("every semaphore has its last value, and yet CTAs wait")
    assert "\nprediction from the block lists: ends: all 30 adds" in found["explained"]


def test_semaphores_of_another_number_than_the_tiles_are_reported() -> None:
    of = visits_of(CASE, "")
    found = semaphores_explained("backward", [0] * 4, of, 132)
    assert found["explained"] == "backward does not end; its launch has 4 semaphores, its block lists 8 dQ tiles"


def test_without_ordered_adds_in_the_lists_semaphores_are_left_as_evidence() -> None:
    found = semaphores_explained("backward", [0] * 4, None, 132)
    assert found == {
        "explained": "backward does not end; its semaphores are in the evidence, and nothing is predicted for them"
    }
