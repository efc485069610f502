"""Hopper's forward kernel at head dims between its padded ones, whose products have no more columns than they need."""

from dataclasses import replace

import pytest
import torch
from blocksparse_runs import DEVICE, HOPPER, ptx_of, run_forward
from covering import nightly_unless
from forward_cases import Case, errors, problem, tuning_of

pytest.importorskip("cutlass")

from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.variant import NO_INJECTION, PADDED_DIMS, Variant, depth_of, padded_dim

CASE = Case((300, 130), (330, 140), 2, 1, tile_m=128, tile_n=128, products="wgmma", spread=2.0)


def test_columns_are_those_of_an_instruction_where_that_saves_an_eighth():
    found = {dim: depth_of(dim, padded_dim(dim)) for dim in range(8, 257, 8)}
    fewer = {40: 48, 48: 48, 72: 80, 80: 80, 104: 112, 112: 112, 200: 208, 208: 208, 216: 224, 224: 224}
    assert found == dict.fromkeys(found, 0) | fewer
    assert [depth_of(dim, 256) for dim in (136, 192, 200, 240)] == [160, 192, 208, 0]


@pytest.mark.parametrize("dim", PADDED_DIMS)
def test_padded_head_dims_have_all_columns(dim):
    assert "depth" not in tuning_of(2048, dim)


@pytest.mark.parametrize("dim", [80, nightly_unless(False, 48), nightly_unless(False, 208)])
def test_products_are_as_deep_as_the_head_dim(dim):
    """Products of scores are over `depth` columns, in instructions of 16; those of O have so many columns."""
    padded = padded_dim(dim)
    of = Variant("forward", "bfloat16", padded, 128, 64, products="wgmma", tuning=(("step", 32),))
    whole, fewer = ptx_of(of, "sm_90a"), ptx_of(of.with_tuning(depth=dim), "sm_90a")
    assert f"m64n{dim}k16" in fewer and f"m64n{padded}k16" not in fewer
    assert fewer.count("m64n32k16") * padded == whole.count("m64n32k16") * dim > 0


@pytest.mark.parametrize(
    ("dim", "more"),
    [
        (72, {}),
        *(
            nightly_unless(HOPPER, dim, more)
            for dim, more in (
                (112, {"mask": "band"}),
                (40, {"mask": "tokens", "tile_m": 64, "tile_n": 64}),
                (48, {"tile_m": 192, "mask": "band"}),
                (80, {"mask": "intervals", "softcap": 20.0, "dtype": torch.float16}),
                (104, {"mask": "blocks", "view": True}),
                (160, {"mask": "band"}),
                (200, {"mask": "tokens", "tile_n": 64, "packed": True}),
                (224, {"mask": "band", "tile_n": 64}),
            )
        ),
    ],
)
def test_results_are_right(dim, more):
    p = problem(replace(CASE, dim=dim, **more), DEVICE)
    run_forward(p, NO_INJECTION, "sm_90a")
    assert max(errors(p)) <= 1, errors(p)


def test_a_depth_that_is_less_than_the_head_dim_is_refused():
    q = torch.zeros(1, 130, 1, 80, dtype=torch.bfloat16)
    lse, lists = torch.zeros(1, 1, 130), dense(130, 130)
    whole = launch.Sequences.whole(1, 130, 130)
    with pytest.raises(ValueError, match="tuning: depth needs at least the head dim, 80, got 64"):
        launch.forward(q, q, q, q, lse, whole, lists, scale=1.0, products="wgmma", tuning=(("depth", 64),))


@pytest.mark.parametrize("depth", [8, 112])
def test_a_depth_that_no_product_has_is_refused(depth):
    with pytest.raises(ValueError, match="depth must be a multiple of 16, up to 96"):
        launch.forward_tuning(Variant("forward", "bfloat16", 96, products="wgmma", tuning=(("depth", depth),)))
