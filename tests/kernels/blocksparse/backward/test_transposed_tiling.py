"""Tilings of Hopper's transposed backward kernel: which variants have which, and what the launcher asks for."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from transposed_backward import ARCH, WITH_RUNS, variant

from kernels.blocksparse.backward.tiling import SHARED_MEMORY, choose_tiling
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.schedule import Schedule
from kernels.blocksparse.spec.variant import MASKS


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("tile_m", [64, 128])
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_tiling_fits_into_shared_memory(dim, tile_m, deterministic):
    for mask in MASKS:
        tiling = choose_tiling(variant(dim, mask, tile_m=tile_m, deterministic=deterministic), ARCH)
        assert tiling.shared_bytes <= SHARED_MEMORY[90]
        assert tiling.step_m == (128 if (dim, tile_m) == (64, 128) else 64)


def test_what_it_has_not_is_refused():
    for tuning in ((("releaser", 1),), (("stages", 3),), (("step_m", 32),), (("stages_dq", 2),)):
        with pytest.raises(ValueError, match=r"^variant\.tuning has"):
            build(variant(tuning=tuning), ARCH)
    with pytest.raises(ValueError, match=r"^variant\.tuning has transposed"):
        build(variant(128, tile_n=64, tuning=(("transposed", 1),)), ARCH)
    for tuning in ((("runs", 1), ("stages_dq", 2)), (("stages_dq", 3),), (("stages_dq", 0),)):
        with pytest.raises(ValueError, match=r"^variant\.tuning has transposed"):
            build(variant(128, tuning=tuning), ARCH)


def tiling_of(dim, mask, deterministic, **more):
    return choose_tiling(variant(dim, mask, deterministic=deterministic, **more), ARCH)


def test_ordered_adds_have_runs_without_a_mask_where_asked_for():
    assert tiling_of(128, "none", True, tuning=WITH_RUNS).runs
    for mask in MASKS:
        assert tiling_of(128, mask, False).runs == (mask in ("band", "intervals"))
        assert tiling_of(128, mask, False, tuning=WITH_RUNS).runs and not tiling_of(128, mask, True).runs
        if mask != "none":
            with pytest.raises(ValueError, match=r"^variant\.tuning has transposed"):
                tiling_of(128, mask, True, tuning=WITH_RUNS)
        assert not any(tiling_of(64, mask, deterministic).runs for deterministic in (False, True))


def test_the_next_tile_is_taken_late_by_ordered_adds_but_for_blocks_at_random():
    """Early, which atomic adds have, takes 0.98 of the time at 10 %: ci/results/planned_reversed_h200.json."""
    for mask in MASKS:
        assert tiling_of(128, mask, True).takes_late == (mask in ("band", "intervals"))
        assert not any(tiling_of(*of).takes_late for of in ((128, mask, False), (64, mask, False), (64, mask, True)))
    assert tiling_of(128, "none", True, tuning=WITH_RUNS).takes_late


def test_dq_comes_a_step_later_but_where_shared_memory_is_the_bound():
    for mask in MASKS:
        assert all(tiling_of(64, mask, deterministic).delays_dq for deterministic in (False, True))
        assert tiling_of(128, mask, True).delays_dq
        atomic = tiling_of(128, mask, False)
        assert atomic.delays_dq == atomic.runs and tiling_of(128, mask, False, tuning=WITH_RUNS).delays_dq
    asked = (("delays", 0),)
    assert not any(tiling_of(dim, "none", True, tuning=asked).delays_dq for dim in (64, 128))


def test_ordered_adds_of_blocks_at_random_have_two_buffers_of_dq():
    for mask in MASKS:
        assert tiling_of(128, mask, True).stages_dq == (1 if mask in ("band", "intervals") else 2)
        others = tiling_of(128, mask, False), tiling_of(64, mask, False), tiling_of(64, mask, True)
        assert {tiling.stages_dq for tiling in others} == {1}
    for asked in (1, 2):
        tunings = (tiling_of(128, mask, True, tuning=(("stages_dq", asked),)) for mask in ("none", "band"))
        assert {tiling.stages_dq for tiling in tunings} == {asked}


def test_the_launcher_knows_full_masks():
    """Their rows are alike: their tiles may be split, and ordered adds have runs."""

    def tuning(dim, deterministic, blocks, **more):
        q = torch.empty(1, 512, 2, dim, dtype=torch.bfloat16, device="meta")
        return backward_variants(q, blocks, deterministic=deterministic, products="wgmma", **more)[1].tuning

    full = dense(512, 512)
    assert tuning(128, False, full) == (*WITH_RUNS, ("splits", 1))
    assert tuning(128, True, full, keys=512) == WITH_RUNS
    assert tuning(128, True, full) == tuning(64, False, full) == tuning(64, True, full, keys=512) == ()
    assert tuning(128, True, dense(512, 500), keys=500) == ()  # the last tile of keys has other steps
    assert tuning(128, False, full, softcap=1.0) == ()
    for blocks in (full, causal(512, 512)):  # steps of 128 queries would spill what a soft cap needs
        assert tuning(64, True, blocks, softcap=1.0) == tuning(64, False, blocks, softcap=1.0) == (("step_m", 64),)
    listed = replace(full, schedule=Schedule("ascending"))
    assert tuning(128, True, listed, keys=512) == tuning(64, True, listed, keys=512) == ()
    for blocks in (listed, from_mask(torch.ones(1, 1, 512, 512, dtype=torch.bool).tril())):
        assert tuning(128, False, blocks) == WITH_RUNS and tuning(128, False, blocks, softcap=1.0) == ()
        assert tuning(128, True, blocks) == tuning(64, False, blocks) == ()


def test_the_launcher_knows_narrow_windows():
    """With atomic adds, up to 1,024 keys: no runs, and dQ of the step before."""

    def tuning(dim, blocks, **more):
        q = torch.empty(1, 2048, 2, dim, dtype=torch.bfloat16, device="meta")
        return backward_variants(q, blocks, products="wgmma", **more)[1].tuning

    narrow, wide = (window(2048, 2048, left=keys - 1) for keys in (1024, 1025))
    assert tuning(128, narrow) == (("delays", 1), ("runs", 0)) and tuning(128, wide) == ()
    assert tuning(64, narrow) == tuning(128, narrow, deterministic=True) == tuning(128, narrow, softcap=1.0) == ()
    assert tuning(128, causal(2048, 2048)) == tuning(128, window(2048, 2048, left=9, tile_m=64)) == ()
