"""Backward kernels build for every arch without a GPU, from portable instructions, and fit into it."""

import re

import pytest
from covering import daily, nightly_unless

from kernels.blocksparse.spec.variant import ARCHES, PADDED_DIMS, Injection, Variant

pytest.importorskip("cutlass")

from blocksparse_runs import ptx_of

from kernels.blocksparse.backward import Backward
from kernels.blocksparse.backward.postprocess import Postprocess
from kernels.blocksparse.backward.preprocess import Preprocess
from kernels.blocksparse.backward.tiling import SHARED_MEMORY, Tiling, choose_tiling
from kernels.blocksparse.compile.build import build

KERNELS = {"preprocess": Preprocess, "backward": Backward, "postprocess": Postprocess}
SMALL = Variant("backward", "bfloat16", 32, 64, 64)


def number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


@pytest.mark.parametrize("arch", daily(ARCHES, ["sm_120a"]))
def test_builds_for_every_arch_from_portable_instructions(arch):
    variant = Variant("backward", "float16", 128, 128, 128, "bits", deterministic=True, softcap=True)
    ptx = ptx_of(variant, arch)
    assert f".target {arch}" in ptx
    for form in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg.shared.global"):
        assert form in ptx
    for form in ("wgmma", "tcgen05", "cp.async.bulk", "mbarrier", ".local"):
        assert form not in ptx
    wide = "red.relaxed.gpu.global.add.v4.f32" in ptx
    assert wide == (number(arch) >= 90), "four floats at once exist from sm_90 on"


@pytest.mark.parametrize(
    ("dim", "tile_m", "tile_n"),
    [nightly_unless(False, 64, 64, 128), nightly_unless(False, 128, 128, 128), (128, 128, 64)],
)
def test_on_hopper_warpgroups_multiply(dim, tile_m, tile_n):
    variant = Variant("backward", "bfloat16", dim, tile_m, tile_n, "bits", True, True, "wgmma")
    ptx = ptx_of(variant, "sm_90a")
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in ptx
    for form in ("mma.sync", "ldmatrix", ".local"):
        assert form not in ptx


@pytest.mark.nightly
@pytest.mark.parametrize("dim", [64, 128])
def test_a_semaphore_wait_warp_acquires_where_warpgroups_multiply(dim):
    ordered, atomic = (
        Variant("backward", "bfloat16", dim, 128, 128, "none", d, products="wgmma", tuning=(("transposed", 0),))
        for d in (True, False)
    )
    assert choose_tiling(ordered, "sm_90a").threads == 384 and choose_tiling(atomic, "sm_90a").threads == 256
    ptx = ptx_of(ordered, "sm_90a")
    assert ptx.count("ld.acquire.gpu") == 2 and "setmaxnreg.inc.sync.aligned.u32" in ptx
    assert "setmaxnreg" not in ptx_of(atomic, "sm_90a")
    other = ptx_of(ordered.with_tuning(releaser=int(dim != 64)), "sm_90a")
    assert (ptx.count("bar.arrive"), other.count("bar.arrive")) == ((6, 3) if dim == 64 else (3, 6))


@pytest.mark.parametrize(
    ("dim", "tile_m", "arch", "at_once"),
    [
        (128, 128, "sm_90a", 2),
        (128, 128, "sm_80", 1),
        (96, 128, "sm_80", 2),
        (128, 64, "sm_90a", 1),
        (64, 128, "sm_90a", 1),
    ],
)
def test_dq_of_a_whole_block_where_registers_and_shared_memory_hold_it(dim, tile_m, arch, at_once):
    tiling = choose_tiling(Variant("backward", "bfloat16", dim, tile_m, 128), arch)
    assert tiling.steps_dq == at_once and (tiling.stages_ds == 3) == (at_once == 2)


@pytest.mark.parametrize(("dim", "tile_n", "arch"), [(96, 128, "sm_90a"), (64, 64, "sm_90a"), (64, 128, "sm_80")])
def test_elsewhere_they_cannot_be_asked_to(dim, tile_n, arch):
    assert not choose_tiling(Variant("backward", "bfloat16", dim, 128, tile_n), arch).wgmma
    for kind in ("backward", "postprocess"):
        with pytest.raises(ValueError, match=r"wgmma.*needs sm_90a, dim 64 or 128 and tile_n 128"):
            choose_tiling(Variant(kind, "bfloat16", dim, 128, tile_n, products="wgmma"), arch)


@pytest.mark.parametrize("kind", ["preprocess", "postprocess"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
def test_the_kernels_around_it_build(kind, arch):
    assert f".target {arch}" in ptx_of(
        Variant(kind, "bfloat16", 96, 64, tile_n=64 if kind == "postprocess" else 128), arch
    )


@pytest.mark.parametrize("mask", daily(["none", "bits", "intervals", "band"], ["bits"]))
def test_arrays_of_a_thread_stay_in_registers(mask):
    assert ".local" not in ptx_of(Variant("backward", "bfloat16", 64, 128, 128, mask), "sm_90a")


def test_only_a_deterministic_kernel_waits():
    plain, ordered = (
        ptx_of(Variant("backward", "bfloat16", 32, 64, 64, deterministic=d), "sm_80") for d in (False, True)
    )
    for form in ("ld.acquire.gpu", "red.release.gpu", "atom"):
        assert form in ordered and form not in plain


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dim", PADDED_DIMS)
@pytest.mark.parametrize("tile_n", [64, 128])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_every_tile_fits_into_every_arch(arch, dim, tile_m, tile_n):
    variant = Variant("backward", "bfloat16", dim, tile_m, tile_n)
    if dim > 128 and tile_n == 128:
        with pytest.raises(ValueError, match=f"tile_n is 128: .* would take {dim} of a thread's 255 registers"):
            choose_tiling(variant, arch)
        return
    if arch == "sm_120a" and (dim == 256 or (dim == 96 and tile_n == 128)):
        with pytest.raises(ValueError, match=f"do not fit {arch}: it has 101376 bytes of shared memory"):
            choose_tiling(variant, arch)
        return
    tiling = choose_tiling(variant, arch)
    assert tiling.shared_bytes <= SHARED_MEMORY[number(arch)]
    assert tile_m % tiling.step_m == 0
    shapes = [
        (tiling.step_m, tile_n, tiling.warps_s),
        (tile_n, dim, tiling.warps_dkv),
        (tiling.step_m, dim, tiling.warps_dq),
    ]
    for rows, columns, (warps_m, warps_n) in shapes:
        assert warps_m * warps_n == 8 and rows % (16 * warps_m) == 0 and columns % (16 * warps_n) == 0


def test_shared_memory_is_what_the_tiling_says():
    tiling: Tiling = choose_tiling(SMALL, "sm_90a")
    # K, V, two stages of Q and dO, P and dS, two stages of two floats a row, the tile number
    assert tiling.shared_bytes >= 2 * (2 * 64 * 32 + 4 * 64 * 32 + 2 * 64 * 64) + 4 * 4 * 64 + 4


@pytest.mark.parametrize(
    "values", [{"step_m": 48}, {"stages": 3}, {"stages_p": 2}, {"warps_s": 3}, {"warps_dkv": 8}, {"colour": 1}]
)
def test_a_tuning_that_cannot_work_is_refused(values):
    with pytest.raises(ValueError, match=r"fit|tuning|share"):
        build(SMALL.with_tuning(**values), "sm_80")


def test_unknown_injection_points_are_refused():
    with pytest.raises(ValueError, match=r"no injection point \['correction'\]"):
        build(SMALL, "sm_80", Injection("planted", {"correction": max}))
    with pytest.raises(ValueError, match=r"no injection point \['release'\]"):
        build(Variant("preprocess", "bfloat16", 32, 64), "sm_80", Injection("planted", {"release": max}))
