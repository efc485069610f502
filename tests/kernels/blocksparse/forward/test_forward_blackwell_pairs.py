"""The Blackwell forward kernel with two query tiles in a CTA, on the emulated GPU with every check there is: sequences
that end in either tile, masks, head dims, layouts on an SM, and how often K and V are read."""

from functools import cache

import pytest
import torch
from blocksparse_runs import BLACKWELL, ptx_of, run_forward
from covering import covering, daily, nightly_unless
from forward_cases import Case, drawn, errors, problem

pytest.importorskip("cutlass")

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.compile.supported import fits
from kernels.blocksparse.forward.blackwell.tuning import blackwell_tuning
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, PAIR, Variant

ARCH, DEVICE = "sm_100a", "cuda" if BLACKWELL else "cpu"
KINDS = ["dense", "tokens", "intervals", "band"]


def case(*lengths, **fields):
    return Case(*lengths, **{"tile_m": PAIR, "tile_n": 128, "products": "tcgen05", **fields})


def variant(dim=64, tile_n=128, mask="none", **options):
    return Variant("forward", "bfloat16", dim, PAIR, tile_n, mask, products="tcgen05", **options)


@cache
def loaded(of):
    return Emulator(strict=False, checks=ALL_CHECKS).load(obtain(build_of(of, ARCH, NO_INJECTION)).folder)


def check(of, **emulated):
    p = problem(of, DEVICE)
    if BLACKWELL:
        run_forward(p, NO_INJECTION, ARCH)
    else:
        emulator = Emulator(strict=False, checks=ALL_CHECKS, **{"resident_ctas": 2, **emulated})
        report = loaded(p.variant)(*ordered("forward", p.values()), emulator=emulator)
        assert report.ok, str(report)
    assert max(errors(p)) <= 1, (errors(p), of)
    return p


@pytest.mark.parametrize("length", [nightly_unless(False, 1), 128, 129, 255, 256, 257, 400])
def test_lengths_around_both_query_tiles(length):
    check(case((length,), (length,)))


@pytest.mark.parametrize(
    ("dim", "tile_n"),
    [
        nightly_unless(not case.marks and case.values[0] == 64, *case.values)
        for case in covering([32, 64, 96, 128], [64, 128], strength=1)
    ],
)
def test_every_padded_head_dim(dim, tile_n):
    dtype = torch.float16 if dim % 64 else torch.bfloat16
    check(case((260,), (300,), 1, 1, dim=dim, tile_n=tile_n, dtype=dtype), warp_schedule="random")
    check(case((170, 20), (150, 9), 1, 1, dim=dim - 8, tile_n=tile_n, mask="tokens", packed=True))


@pytest.mark.parametrize(
    ("mask", "tile_n", "softcap"),
    [
        nightly_unless(not case.marks and case.values[:2] == ("intervals", 64), *case.values)
        for case in covering(KINDS, [64, 128], [None, 0.5], strength=1)
    ],
)
def test_masks_in_every_tile(mask, tile_n, softcap):
    check(case((300,), (270,), mask=mask, tile_n=tile_n, left=40, right=9, align="bottom_right", softcap=softcap))


@pytest.mark.parametrize(
    ("mask", "packed"),
    [
        nightly_unless(not case.marks and case.values[0] in ("dense", "tokens"), *case.values)
        for case in covering(KINDS, [True, False], strength=1)
    ],
)
def test_sequences_of_many_lengths(mask, packed):
    check(case((165, 0, 1, 300), (30, 40, 0, 130), 4, 2, mask=mask, packed=packed))


@pytest.mark.parametrize("mask", ["tokens", "blocks"])
def test_rows_and_heads_without_keys_are_zero(mask):
    check(case((260,), (130,), 3, 3, mask=mask, empty=True))


@pytest.mark.parametrize(
    ("stages", "buffers", "step", "tma"),
    [
        nightly_unless(one == (2, 2, 64, 1), *one)
        for one in ((1, 1, 128, 1), (2, 1, 64, 0), (2, 2, 64, 1), (1, 2, 32, 0), (2, 1, 32, 1))
    ],
)
def test_every_tuning_computes_the_same(stages, buffers, step, tma):
    tuning = (("buffers", buffers), ("stages", stages), ("step", step), ("tma", tma))
    check(case((300,), (400,), dim=64, mask="tokens", tuning=tuning, spread=3.0), warp_schedule="random")


@pytest.mark.parametrize("schedule", ["in_order", "oldest_last", "greedy"])
def test_each_tile_rescales_its_own_output(schedule):
    """Maxima grow with every step in the rows of the first tile, and fall in those of the second."""
    p = problem(case((256,), (640,), 1, 1, dim=32, scale=1.0), DEVICE)
    p.q[:, :128], p.q[:, 128:] = 1.0, -1.0
    p.k[:] = (torch.arange(640) // 128).to(p.k)[None, :, None, None] * 0.5
    emulator = Emulator(strict=False, checks=ALL_CHECKS, resident_ctas=2, warp_schedule=schedule)
    if BLACKWELL:
        run_forward(p, NO_INJECTION, ARCH)
    else:
        report = loaded(p.variant)(*ordered("forward", p.values()), emulator=emulator)
        assert report.ok, str(report)
    assert max(errors(p)) <= 1, errors(p)


@pytest.mark.parametrize("seed", daily(range(40), [1]))
def test_random_problems_under_random_schedules_are_right(seed):
    dim = (32, 40, 64, 80, 96, 120, 128)[seed % 7]
    of = drawn(seed, products="tcgen05", tile_m=PAIR, dim=dim, tuning=(("tma", 0),) if seed % 5 == 4 else ())
    check(of, warp_schedule="random", seed=seed, resident_ctas=1 + seed % 4)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("tma", "length"), [nightly_unless(one[0] == 1, *one) for one in ((0, 100), (1, 100), (1, 200), (0, 200))]
)
def test_rows_after_a_sequence_are_neither_read_nor_written(packed, tma, length):
    """The first sequence ends in the first tile of a CTA, or in the second; what follows it is the next one, or NaN."""
    p = problem(case((length, 256), (70, 70), 2, 1, packed=packed, tuning=() if tma else (("tma", 0),)), DEVICE)
    if not packed:
        p.q[0, length:], p.o[0, length:], p.lse[0, :, length:] = torch.nan, torch.nan, torch.nan
    if BLACKWELL:
        run_forward(p, NO_INJECTION, ARCH)
    else:
        emulator = Emulator(strict=False, checks=ALL_CHECKS, resident_ctas=1, warp_schedule="random")
        report = loaded(p.variant)(*ordered("forward", p.values()), emulator=emulator)
        assert report.ok, str(report)
    assert max(errors(p)) <= 1, errors(p)
    if not packed:
        assert p.o[0, length:].isnan().all() and p.lse[0, :, length:].isnan().all()


def test_two_query_tiles_fill_tensor_memory_and_have_registers():
    for dim in (32, 64, 96, 128):
        tuning = blackwell_tuning(variant(dim))
        assert tuning.ctas == 1 and tuning.columns(variant(dim)) == 512 and tuning.threads(variant(dim)) == 384
        assert tuning.registers(variant(dim)) >= 200
    assert blackwell_tuning(variant(128).with_tuning(tma=0)).registers(variant(128)) >= 200


@pytest.mark.parametrize("mask", daily(["intervals", "band"], ["band"]))
def test_arrays_of_a_thread_stay_in_registers(mask):
    assert ".local" not in ptx_of(variant(128, mask=mask), ARCH)


def test_keys_and_values_are_loaded_once_for_both_tiles():
    """By TMA Q has two copies in the text, K and V one; each of as many instructions as a row has swizzled pieces."""
    ptx = ptx_of(variant(128, tile_n=64), ARCH)
    assert ptx.count("cp.async.bulk.tensor.4d.shared::cta.global") == (2 + 1 + 1) * 2
    assert ptx.count("cp.async.bulk.tensor.4d.global.shared::cta") == 2 * 2


@pytest.mark.parametrize(
    ("tuning", "why"), [({"ctas": 2, "stages": 1}, "registers"), ({"buffers": 2}, "columns"), ({"stages": 3}, "fit")]
)
def test_a_tuning_that_cannot_work_is_refused(tuning, why):
    of = variant(128).with_tuning(**tuning)
    assert not fits(of, ARCH)
    with pytest.raises(ValueError, match=rf"variant\.tuning.*{why}"):
        build(of, ARCH)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "backward", "products": "tcgen05"},
        {"kind": "forward", "products": "wgmma"},
        {"kind": "forward", "products": "tcgen05", "dim_padded": 160},
    ],
)
def test_only_forward_kernels_by_tcgen05_up_to_head_dim_128_have_them(fields):
    with pytest.raises(ValueError, match=rf"variant\.tile_m {PAIR} is for the forward kernel by tcgen05"):
        Variant(**{"dtype": "bfloat16", "dim_padded": 64, "tile_m": PAIR, **fields})
