"""Tiles of keys of a full mask's last wave whose queries several CTAs share (NOTE [split tiles] of
common/split_tiles.py): which kernels may split them, what they compute on the emulated GPU, and that it finds what is
wrong with them."""

from dataclasses import replace

import pytest
import torch
from backward_problems import Spec, errors
from covering import nightly_unless
from transposed_backward import check, run

pytest.importorskip("cutlass")

from planted_splits import FAULTS

from kernels.blocksparse.launch import backward as launch
from kernels.blocksparse.launch.split_tiles import Split, may_split
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.variant import Injection

LONG = Spec(
    *((1500,), (300,), 2, 2), dim=128, tile_m=128, tuning=(("runs", 1), ("splits", 1)), deterministic=False,
    group_split=1,
)  # fmt: skip
# a problem, the first tile that is split, and parts
SPLITS = {
    "runs": (LONG, 4, 2),
    "all tiles": (LONG, 0, 3),
    "two heads of a CTA, several sequences": (replace(LONG, lens_q=(700, 700), lens_k=(130, 130), heads_kv=1), 1, 4),
    "more parts than blocks": (replace(LONG, lens_q=(300,)), 3, 5),
    "float32 gradients of float16": (replace(LONG, lens_q=(700,), dtype=torch.float16, float32=True), 2, 2),
    "without runs": (replace(LONG, lens_q=(700,), tuning=(("runs", 0), ("splits", 1))), 2, 3),
    "head dim 64": (replace(LONG, lens_q=(700,), dim=64, tuning=(("splits", 1),)), 2, 3),
}
DAILY = ("more parts than blocks",)


@pytest.mark.parametrize("name", [nightly_unless(name in DAILY, name) for name in SPLITS])
def test_gradients_and_the_same_bits_of_dk_and_dv(name, monkeypatch):
    """Right with any number of resident CTAs and under random schedules; dK and dV have the same bits whichever part
    is last."""
    spec, first, parts = SPLITS[name]
    monkeypatch.setattr(launch, "split_of", lambda tiles, *_: Split(first, tiles - first, parts))
    results = [
        check(spec, resident_ctas=resident, warp_schedule=schedule, seed=resident, dispatch="permuted")
        for resident, schedule in ((1, "random"), (3, "oldest_last"), (20, "random"))
    ]
    for key in ("dk", "dv"):
        assert all(torch.equal(results[0][key], other[key]) for other in results[1:])


def test_atomic_adds_of_full_masks_at_head_dim_128_may_split_tiles_and_no_others():
    def splits(lists, dim=128, **options):
        q = torch.empty(2, 1024, 4, dim, dtype=torch.bfloat16, device="meta")
        return may_split(launch.backward_variants(q, lists, products="wgmma", **options)[-2])

    full = dense([1024] * 2, [1024] * 2)
    assert splits(full) and splits(full, 120) and not splits(full, 64)
    assert not splits(full, deterministic=True) and not splits(full, softcap=20.0)
    assert not splits(band(1024, 1024, left=None, right=0))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("lengths", "heads", "packed"),
    [((500, 400), (2, 2), False), ((500, 400), (2, 2), True), ((500,), (4, 1), False)],
)
def test_sequences_of_unequal_lengths_and_groups_that_are_split_have_none(lengths, heads, packed, monkeypatch):
    """They are launched with the kernel that splits none."""
    splits = list[bool]()
    real = launch.split_sums
    monkeypatch.setattr(launch, "split_sums", lambda *of: splits.append(real(*of) is not None))
    group_split = 2 if heads == (4, 1) else 1
    check(replace(LONG, lens_q=lengths, lens_k=lengths, heads_q=heads[0], heads_kv=heads[1], packed=packed,
                  group_split=group_split))  # fmt: skip
    assert splits == [False]


@pytest.mark.nightly
@pytest.mark.parametrize("fault", list(FAULTS))
def test_what_is_wrong_with_them_is_found(fault, monkeypatch):
    """By the emulated GPU, or in the gradients."""
    point, replacement = FAULTS[fault]
    monkeypatch.setattr(launch, "split_of", lambda tiles, *_: Split(2, tiles - 2, 2))
    injection = Injection(f"planted {fault}", {point: replacement})
    found = False
    for seed in range(4):
        problem, out, reports = run(LONG, injection, warp_schedule="random", seed=seed, dispatch="permuted")
        found = found or any(r.status != "finished" or r.findings for r in reports)
        found = found or not max(errors(problem, out).values()) <= 1
    assert found
