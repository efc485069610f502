"""Head dims between those of Hopper's backward kernels: which kernel they have, and how deep its products are."""

import pytest

pytest.importorskip("cutlass")

from backward_problems import Spec, make, run

from kernels.blocksparse.backward.tiling import choose_tiling
from kernels.blocksparse.spec.variant import Variant, backward_dim


@pytest.mark.parametrize(
    ("products", "tile_n", "dims"),
    [
        ("wgmma", 128, {8: 64, 32: 64, 64: 64, 72: 128, 96: 128, 104: 128}),
        ("wgmma", 64, {32: 32, 64: 64, 72: 128, 128: 128, 136: 256, 192: 256, 256: 256}),
        ("mma", 128, {32: 32, 72: 96, 128: 128}),
        ("tcgen05", 128, {32: 32, 64: 64, 96: 96}),
    ],
)
def test_backward_kernels_by_wgmma_have_the_next_larger_dim_that_there_is(products, tile_n, dims):
    assert {dim: backward_dim(products, 128, tile_n, dim) for dim in dims} == dims


def test_a_depth_that_the_head_dim_is_not_within_is_refused():
    problem = make(Spec((70,), (70,), dim=72, tile_m=128, tile_n=128, products="wgmma", tuning=(("depth", 64),)))
    with pytest.raises(ValueError, match="tuning: depth needs at least the head dim, 72, got 64"):
        run(problem, lambda variant, values: None)
    for products, depth in (("wgmma", 40), ("wgmma", 144), ("mma", 96)):
        backward = Variant("backward", "bfloat16", 128, products=products, tuning=(("depth", depth),))
        with pytest.raises(ValueError, match="depth needs a multiple of 16 up to 128, and products 'wgmma'"):
            choose_tiling(backward, "sm_90a")
