"""Exponentials of the Blackwell forward kernel, by MUFU.EX2 and by polynomials, on the emulated GPU with every check:
accuracy, exact ones and zeros, NaN."""

from functools import cache

import pytest
import torch
from blocksparse_runs import BLACKWELL, ptx_of, run_forward
from covering import covering, daily, nightly_unless
from forward_cases import Case, errors, problem

pytest.importorskip("cutlass")

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.forward.blackwell.exponentials import COEFFICIENTS
from kernels.blocksparse.forward.blackwell.tuning import GROUP, blackwell_tuning
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

ARCH, DEVICE = "sm_100a", "cuda" if BLACKWELL else "cpu"
ALL = GROUP  # every pair by a polynomial


def case(*lengths, polynomials=ALL, **fields):
    tuning = (("polynomials", polynomials),)
    return Case(*lengths, **{"tile_m": 128, "tile_n": 128, "products": "tcgen05", "tuning": tuning, **fields})


def variant(dim, tile_m=128, **options):
    return Variant("forward", "bfloat16", dim, tile_m, products="tcgen05", **options)


@cache
def loaded(of):
    return Emulator(strict=False, checks=ALL_CHECKS).load(obtain(build_of(of, ARCH, NO_INJECTION)).folder)


def run(p):
    if BLACKWELL:
        run_forward(p, NO_INJECTION, ARCH)
    else:
        report = loaded(p.variant)(*ordered("forward", p.values()))
        assert report.ok, str(report)
    return p


def test_the_polynomial_is_as_exact_as_the_instruction():
    """Relative to 2^f, for multiples f of 2^-20 between -0.5 and 0.5, in fp32 with one rounding a step."""
    f = torch.arange(-(2**19), 2**19 + 1).double() / 2**20
    value = torch.full_like(f, COEFFICIENTS[-1])
    for coefficient in (*COEFFICIENTS[-2::-1], 1.0):
        value = (value.float().double() * f + torch.tensor(coefficient).float().double()).float().double()
    assert (value / 2.0**f - 1).abs().max() < 2**-22  # that of ex2.approx
    assert value[2**19] == 1.0


@pytest.mark.parametrize(
    ("polynomials", "mask", "tile_m"),
    [
        nightly_unless(not case.marks and case.values[0] == 0, *case.values)
        for case in covering([0, 1, 2, ALL], ["dense", "tokens"], [128, 256], strength=1)
    ],
)
def test_every_share_of_polynomials_computes_the_same(polynomials, mask, tile_m):
    p = run(problem(case((260,), (300,), polynomials=polynomials, tile_m=tile_m, mask=mask, spread=3.0), DEVICE))
    assert max(errors(p)) <= 1, errors(p)


def test_the_sum_of_a_row_is_that_of_the_instruction():
    """Log-sum-exp of 300 keys by polynomials alone and by none, in fp32: as far apart as both errors allow."""
    by = [run(problem(case((128,), (300,), polynomials=n, spread=3.0), DEVICE)).lse for n in (0, ALL)]
    assert (by[0] - by[1]).abs().max() <= 2 * 2**-22 + 4 * 2**-23 * by[0].abs().max()


@pytest.mark.parametrize("tile_m", daily([128, 256], [128]))
def test_a_single_key_has_the_probability_one(tile_m):
    p = run(problem(case((200,), (1,), 1, 1, tile_m=tile_m), DEVICE))
    assert torch.equal(p.o[0, :, 0], p.v[0, 0, 0].expand(200, -1))


@pytest.mark.parametrize("tile_m", daily([128, 256], [256]))
def test_forbidden_keys_add_nothing(tile_m):
    p = run(problem(case((200,), (130,), 3, 3, tile_m=tile_m, mask="tokens", empty=True), DEVICE))
    empty = p.lse == -torch.inf
    assert empty.any() and not empty.all() and max(errors(p)) <= 1
    assert (p.o.transpose(1, 2)[empty] == 0).all()


@pytest.mark.parametrize("share", [-40.0, -126.0, -130.0, -1000.0])
def test_small_exponentials_do_not_wrap(share):
    """All keys but the last have a score of `share` below it, in units of log2."""
    p = problem(case((128,), (128,), 1, 1, scale=1.0), DEVICE)
    p.q[:], p.k[:] = 0.0, 0.0
    p.q[..., 0], p.k[:, :127, :, 0] = 1.0, share * 0.6931471805599453
    run(p)
    assert max(errors(p)) <= 1, errors(p)
    assert p.lse.abs().max() <= 1e-6


@pytest.mark.parametrize("key", [0, 1, 7])
def test_nan_stays_nan(key):
    """A key in a pair that is a polynomial, or in one that is not."""
    p = problem(case((128,), (128,), 1, 1), DEVICE)
    p.k[:, key] = torch.nan
    run(p)
    assert p.o.isnan().all() and p.lse.isnan().all()


@pytest.mark.parametrize("polynomials", daily(range(ALL + 1), [1]))
def test_polynomials_take_the_place_of_instructions(polynomials):
    of, usual = variant(64), blackwell_tuning(variant(64)).polynomials
    ptx = ptx_of(of if polynomials == usual else of.with_tuning(polynomials=polynomials), ARCH)
    others = ptx_of(variant(64).with_tuning(polynomials=ALL), ARCH).count("ex2.approx")  # corrections of a row
    assert ptx.count("ex2.approx") == 128 - 128 // GROUP * polynomials + others
    assert ".local" not in ptx


def test_up_to_head_dim_128_a_quarter_are_polynomials():
    """At larger dims products take longer than exponentials."""
    assert [blackwell_tuning(variant(dim)).polynomials for dim in (32, 64, 128)] == [1, 1, 1]
    assert blackwell_tuning(variant(192, tile_n=64)).polynomials == 0
    assert blackwell_tuning(variant(128, 256)).polynomials == 1


@pytest.mark.nightly
def test_a_gpu_with_twice_the_instructions_has_no_polynomials():
    """NVIDIA gives 5 and 10.7 trillion EX2 a second for B200 and B300."""
    assert blackwell_tuning(variant(64), "sm_103a").polynomials == 0
    assert ptx_of(variant(64), "sm_103a").count("ex2.approx") == ptx_of(variant(64), ARCH).count("ex2.approx") + 32


@pytest.mark.parametrize("polynomials", [-1, GROUP + 1])
def test_a_share_that_there_is_not_is_refused(polynomials):
    with pytest.raises(ValueError, match=r"variant\.tuning.*polynomials.* does not fit"):
        build(variant(64).with_tuning(polynomials=polynomials), ARCH)
