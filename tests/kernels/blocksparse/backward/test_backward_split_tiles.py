"""Tiles of keys of a full mask's last wave that several CTAs share (NOTE [split tiles] of common/split_tiles.py), on the
emulated GPU."""

from dataclasses import replace

import pytest
import torch
from backward_problems import Spec
from covering import nightly_unless
from transposed_backward import check

pytest.importorskip("cutlass")

from kernels.blocksparse.launch import backward as launch
from kernels.blocksparse.launch.split_tiles import Split

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
DAILY = ("runs", "two heads of a CTA, several sequences")


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
