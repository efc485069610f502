"""Hopper's transposed backward kernel holds columns of K and V in registers: NOTE [held keys] of its mainloop.py."""

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec
from blocksparse_runs import ptx_of
from covering import nightly_unless
from transposed_backward import ARCH, WITH_RUNS, checked, variant

from kernels.blocksparse.backward.tiling import choose_tiling
from kernels.blocksparse.launch.backward import _variants

OF_96 = (("depth", 96),)
RUNS_OF_96 = (*OF_96, *WITH_RUNS)


def held(dim, **options):
    return choose_tiling(variant(dim, **options), ARCH).held_columns


def test_which_kernels_hold_columns():
    assert held(128, deterministic=True) == 32 and held(128, mask="band", deterministic=True) == 32
    assert held(128, tuning=OF_96) == held(128, tuning=RUNS_OF_96) == held(128, tuning=OF_96, deterministic=True) == 64
    for none in (
        {"dim": 64, "deterministic": True},
        {"dim": 128},
        {"dim": 128, "deterministic": True, "tuning": WITH_RUNS},
        {"dim": 128, "deterministic": True, "softcap": True},
        {"dim": 128, "tuning": (("depth", 112),)},
    ):
        assert held(**none) == 0, none


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"mask": "bits", "deterministic": True}, 32),
        nightly_unless(False, {"mask": "band", "tuning": RUNS_OF_96}, 64),
        nightly_unless(False, {"deterministic": True, "tuning": (("held_columns", 48),)}, 48),
        nightly_unless(False, {"deterministic": True, "tuning": (("held_columns", 0),)}, 0),
    ],
)
def test_each_16_columns_of_k_and_of_v_come_by_one_ldmatrix(options, columns):
    assert ptx_of(variant(128, **options), ARCH).count("ldmatrix.sync.aligned.m8n8.x4") == 2 * columns // 16


@pytest.mark.parametrize(
    ("dim", "mask", "deterministic", "tuning"),
    [
        nightly_unless(False, 128, "random", True, ()),
        nightly_unless(False, 120, "causal", True, ()),
        nightly_unless(False, 96, "documents", True, OF_96),
        nightly_unless(False, 88, "causal", True, OF_96),
    ],
)
def test_held_columns_change_no_bit_of_ordered_gradients(dim, mask, deterministic, tuning):
    spec = Spec((300, 130), (300, 140), 2, 1, mask=mask, dim=dim, tile_m=128, deterministic=deterministic)
    found = [
        checked(Spec(**{**vars(spec), "tuning": tuple(sorted((*tuning, ("held_columns", columns))))}))[0]
        for columns in (0, 32)
    ]
    for name, x in found[0].items():
        assert torch.equal(x.nan_to_num(7.0), found[1][name].nan_to_num(7.0)), name


def test_gradients_are_right_with_runs_at_head_dim_96():
    """Seven whole tiles of queries: a run of five, which has steps of 80 queries, and two with steps of 64."""
    checked(Spec((7 * 128,), (200,), mask="full", dim=96, tile_m=128, tuning=RUNS_OF_96))


@pytest.mark.parametrize(
    ("dim", "tuning"),
    [(128, (("held_columns", 24),)), (128, (("depth", 96), ("held_columns", 112))), (128, (("held_columns", -16),))],
)
def test_other_numbers_of_columns_are_refused(dim, tuning):
    with pytest.raises(ValueError, match="held_columns needs the transposed loop, or exchanges, and a multiple of 16"):
        choose_tiling(variant(dim, deterministic=True, tuning=tuning), ARCH)
    with pytest.raises(ValueError, match="held_columns needs the transposed loop"):
        choose_tiling(variant(128, tuning=(("held_columns", 16), ("transposed", 0))), ARCH)


def test_postprocess_has_no_held_columns():
    tuning = (("depth", 96), ("held_columns", 64))
    *_, after = _variants("bfloat16", 128, (128, 128), "none", False, True, tuning, (), "wgmma", False, False)
    assert after.tuning == ()
