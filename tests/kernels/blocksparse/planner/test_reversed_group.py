"""Concurrent pairs of causal masks with ordered adds: the model of their launch beside one that follows every block,
and beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernels.blocksparse.launch.concurrency import concurrent_pairs
from kernels.blocksparse.lists.bands import causal
from kernels.blocksparse.planner.group_split import L2_BYTES, SLOTS, unit_bytes
from kernels.blocksparse.planner.reversed_group import LAG, OF_CACHE, START, causal_concurrent_pairs, launch_time

MEASURED = Path(__file__).parents[4] / "ci" / "results" / "reversed_groups_h200.json"


def followed(units: int, blocks: int, pairs: int, slots: int, reverse: bool) -> float:
    """The time of a launch over `blocks` x `blocks` tiles, block by block: each waits until its dQ tile has been added
    to by the CTAs before its own."""
    released: dict[tuple[int, int], float] = {}
    free, end, groups = [0.0] * slots, 0.0, -(-units // pairs)
    for group in range(groups):
        members = range(group * pairs, min(units, (group + 1) * pairs))
        last = reverse and group == groups - 1
        for row in range(blocks) if last else range(blocks - 1, -1, -1):
            for unit in members:
                slot = min(range(slots), key=free.__getitem__)
                time = free[slot] + START
                for tile in range(blocks - 1, row - 1, -1) if last else range(row, blocks):
                    time = max(time, released.get((unit, tile), 0.0))
                    released[unit, tile] = time + LAG
                    time += 1
                free[slot], end = time, max(end, time)
    return end


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize(
    ("units", "blocks", "pairs", "slots"), [(8, 8, 2, 13), (4, 16, 4, 20), (9, 12, 4, 40), (2, 6, 1, 3)]
)
def test_the_model_has_the_time_of_a_launch_that_is_followed_block_by_block(units, blocks, pairs, slots, reverse):
    modelled = launch_time(units, blocks, blocks, 1, pairs, slots=slots, reverse=reverse)
    assert modelled == pytest.approx(followed(units, blocks, pairs, slots, reverse), rel=0.01)


def test_groups_before_the_last_ones_take_as_long_as_all_sms_need_for_them():
    short, long = (launch_time(units, 64, 64, 1, 2) for units in (20, 40))
    assert long - short == pytest.approx(20 * (64 * 65 / 2 + 64 * START) / SLOTS, rel=0.02)


@pytest.mark.parametrize("tokens", [512, 1024, 2048, 4096, 8192, 32768])
@pytest.mark.parametrize("units", [1, 3, 16, 128])
def test_pairs_fit_the_cache_and_fill_the_sms_if_they_can(tokens, units):
    blocks, size = tokens // 128, unit_bytes(tokens, 1, 128)
    pairs = causal_concurrent_pairs(units, blocks, blocks, 1, size, 128)
    assert 1 <= pairs <= units and (pairs == 1 or pairs * size <= L2_BYTES)
    assert pairs * blocks >= 0.9 * SLOTS or pairs == max(1, min(units, L2_BYTES // size))


def test_tiles_past_the_last_query_have_a_cta_too():
    """More keys than queries: a row has a block at least."""
    assert launch_time(1, 64, 4, 1, 1) >= 1 and causal_concurrent_pairs(1, 64, 4, 1, 1 << 20, 128) == 1


def rows_measured():
    return [row for row in json.loads(MEASURED.read_text())["rows"] if row["row"].startswith("causal")]


def of_launcher(row) -> int:
    """The concurrent pairs that the launcher chooses."""
    tile_n = 64 if row["dim"] > 128 else 128
    shape = (row["batch"], row["tokens"], row["heads"][0], row["dim"])
    q = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    blocks = causal(row["tokens"], row["tokens"], tile_n=tile_n)
    return concurrent_pairs(q, q[:, :, : row["heads"][1]], blocks, True, row["group_split"])


@pytest.mark.parametrize("row", rows_measured(), ids=lambda row: f"{row['row']} x {row['batch']}")
def test_the_launcher_chooses_what_was_measured_fast(row):
    """Within 4 % of the best number of pairs that the cache holds; and the model, relative to the mean of the row, is
    within 8 % of each time."""
    heads = row["heads"][0] // row["heads"][1] // row["group_split"]
    units, n_blocks = row["batch"] * row["heads"][0] // heads, row["tokens"] // (64 if row["dim"] > 128 else 128)
    size, lag = unit_bytes(row["tokens"], heads, row["dim"]), LAG * 128 / min(row["dim"], 128)
    modelled, measured, of_pairs = [], [], {}
    for way, pairs in row["pairs"].items():
        if way.startswith(("default", "unreversed")) and pairs * size <= L2_BYTES:
            reverse = way != "unreversed"
            time = launch_time(units, n_blocks, row["tokens"] // 128, heads, pairs, lag=lag, reverse=reverse)
            modelled.append(time * (1 + OF_CACHE * pairs * size / L2_BYTES))
            measured.append(row["main_ms"][way])
            if reverse:
                of_pairs[pairs] = min(measured[-1], of_pairs.get(pairs, measured[-1]))
    assert of_pairs[of_launcher(row)] <= 1.04 * min(of_pairs.values())
    scale = sum(measured) / sum(modelled)
    assert [scale * time for time in modelled] == pytest.approx(measured, rel=0.08)
