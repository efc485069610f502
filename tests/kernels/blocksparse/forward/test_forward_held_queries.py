"""Hopper's forward kernel holds columns of Q in registers (`q_columns` of HopperTuning)."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, ptx_of, run_forward
from covering import nightly_unless
from forward_cases import Case, errors, problem

pytest.importorskip("cutlass")

from kernels.blocksparse.forward.hopper.tuning import hopper_tuning
from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

CASE = Case((300, 130), (330, 140), 2, 1, dim=96, tile_m=128, tile_n=128, products="wgmma", spread=2.0)


def variant(dim=96, tile_n=128, tile_m=128, mask="none", **options):
    return Variant("forward", "bfloat16", dim, tile_m, tile_n, mask, products="wgmma", **options)


def test_which_kernels_hold_columns():
    assert hopper_tuning(variant()).q_columns == hopper_tuning(variant(mask="band")).q_columns == 80
    for none in (
        variant(128),
        variant(64),
        variant(tile_n=64),
        variant(tile_m=64),
        variant(softcap=True),
        *(
            variant(tuning=((name, value),))
            for name, value in (("depth", 80), ("cluster", 2), ("splits", 1), ("tma", 0))
        ),
    ):
        assert hopper_tuning(none).q_columns == 0, none


@pytest.mark.parametrize("columns", [80, nightly_unless(False, 96), nightly_unless(False, 0)])
def test_each_16_columns_of_q_come_by_one_ldmatrix(columns):
    of = variant(mask="band")
    ptx = ptx_of(of if columns == 80 else of.with_tuning(q_columns=columns), "sm_90a")
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4") == columns // 16


@pytest.mark.parametrize(
    "more",
    [
        {"mask": "band"},
        *(
            nightly_unless(HOPPER, more)
            for more in (
                {"mask": "tokens"},
                {"mask": "intervals", "dtype": torch.float16},
                {"dim": 88, "mask": "blocks", "view": True},
                {"dim": 96, "mask": "tokens", "packed": True},
            )
        ),
    ],
)
def test_results_are_right(more):
    p = problem(replace(CASE, **more), DEVICE)
    run_forward(p, NO_INJECTION, "sm_90a")
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("columns", [24, 112, -16])
def test_other_numbers_of_columns_are_refused(columns):
    with pytest.raises(ValueError, match="q_columns must be a multiple of 16, up to the depth"):
        hopper_tuning(variant(tuning=(("q_columns", columns),)))
