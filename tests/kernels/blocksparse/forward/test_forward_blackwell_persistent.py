"""Persistent CTAs of the Blackwell forward kernel, on the emulated GPU with every check: fewer CTAs than tiles, so that
each takes several of different lengths, tiles without blocks among them, under several schedules of warps."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from blocksparse_runs import BLACKWELL, run_forward
from covering import covering, daily, nightly_unless
from forward_cases import Case, drawn, errors, problem

pytest.importorskip("cutlass")

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.compile.supported import fits
from kernels.blocksparse.forward.blackwell.tuning import blackwell_tuning
from kernels.blocksparse.launch.forward import EMULATED, resident_ctas
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, PAIR, Variant

ARCH, DEVICE = "sm_100a", "cuda" if BLACKWELL else "cpu"
TILES = pytest.mark.parametrize("tile_m", [128, PAIR])
SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]


def case(*lengths, **fields):
    return Case(*lengths, **{"tile_m": PAIR, "tile_n": 128, "products": "tcgen05", **fields})


def variant(dim, tile_m=PAIR, tile_n=128):
    return Variant("forward", "bfloat16", dim, tile_m, tile_n, products="tcgen05")


@cache
def loaded(of):
    return Emulator(strict=False, checks=ALL_CHECKS).load(obtain(build_of(of, ARCH, NO_INJECTION)).folder)


def run(p, resident, **emulated):
    """Launches so many CTAs; the numbers that they took from the tile counter."""
    tile_counter = torch.zeros(1, dtype=torch.int32, device=p.q.device)
    persistent = {"resident": resident, "tile_counter": tile_counter}
    if BLACKWELL:
        run_forward(p, NO_INJECTION, ARCH, **persistent)
    else:
        emulator = Emulator(strict=False, checks=ALL_CHECKS, **{"resident_ctas": 3, **emulated})
        report = loaded(p.variant)(*ordered("forward", p.values(**persistent)), emulator=emulator)
        assert report.ok, str(report)
    return int(tile_counter)


def check(of, resident, **emulated):
    p = problem(of, DEVICE)
    taken = run(p, resident, **emulated)
    assert max(errors(p)) <= 1, (errors(p), of)
    return taken


@TILES
@pytest.mark.parametrize("resident", [1, 2, 3])
def test_every_tile_is_taken_once(resident, tile_m):
    """A CTA ends with the first number past the last tile."""
    tiles = 2 * 3 * -(-500 // tile_m)
    assert check(case((500, 130), (300, 140), 3, 1, tile_m=tile_m), resident) == tiles


@pytest.mark.parametrize(
    ("mask", "schedule", "tile_m"),
    [
        nightly_unless(not case.marks and case.values[0] != "intervals", *case.values)
        for case in covering(["dense", "tokens", "intervals", "band"], SCHEDULES, [128, PAIR], strength=1)
    ],
)
def test_tiles_of_different_lengths(mask, schedule, tile_m):
    of = case((700, 0, 260, 1), (390, 70, 0, 130), 2, 1, tile_m=tile_m, mask=mask, packed=True, align="bottom_right")
    check(of, 2, warp_schedule=schedule, seed=len(mask))


@pytest.mark.parametrize(
    ("schedule", "tma", "tile_m"),
    [
        nightly_unless(not case.marks and case.values[0] == "greedy", *case.values)
        for case in covering(SCHEDULES, [0, 1], [128, PAIR], strength=1)
    ],
)
def test_tiles_without_blocks_between_others(schedule, tma, tile_m):
    """Heads and rows without keys, and a sequence of no keys: more empty tiles in a row than Q has stages."""
    tuning = () if tma else (("tma", 0),)
    of = case((900, 600), (150, 0), 3, 3, tile_m=tile_m, mask="tokens", density=0.1, empty=True, tuning=tuning)
    check(of, 1, warp_schedule=schedule)
    check(replace(of, mask="band", right=0, align="bottom_right", empty=False), 2, warp_schedule=schedule)


TUNINGS = (
    *((PAIR, q_stages, 1, stages, lead) for q_stages, stages, lead in [(2, 2, 4), (3, 1, 0), (4, 2, 1)]),
    *((PAIR, q_stages, 2, 2, 4) for q_stages in (2, 3, 4)),
    *((128, q_stages, buffers, 1, 2) for q_stages in (1, 2) for buffers in (1, 2)),
)


@pytest.mark.parametrize(
    ("tile_m", "q_stages", "buffers", "stages", "lead"),
    [nightly_unless(i == 1, *tuning) for i, tuning in enumerate(TUNINGS)],
)
@pytest.mark.parametrize("schedule", ["random", "oldest_last"])
def test_every_tuning_computes_the_same(tile_m, q_stages, buffers, stages, lead, schedule):
    """Scores of the next tile before the last product, after it, or after those of all query tiles."""
    chosen = {"q_stages": q_stages, "buffers": buffers, "stages": stages, "lead": lead, "step": 64, "ctas": 1}
    of = case(
        (600, 70), (420, 64), 2, 1, tile_m=tile_m, mask="tokens", tuning=tuple(sorted(chosen.items())), spread=3.0
    )
    check(of, 2, warp_schedule=schedule, seed=q_stages)


@pytest.mark.parametrize("seed", daily(range(40), [0]))
def test_random_problems_under_random_schedules_are_right(seed):
    tile_m = PAIR if seed % 3 else 128
    dim = (32, 40, 64, 80, 96, 120, 128)[seed % 7]
    of = drawn(seed + 200, products="tcgen05", tile_m=tile_m, dim=dim, tuning=(("tma", 0),) if seed % 5 == 4 else ())
    check(of, 1 + seed % 3, warp_schedule="random", seed=seed, resident_ctas=1 + seed % 3)


@pytest.mark.parametrize("dim", daily([160, 192, 256], [160]))
def test_large_head_dims(dim):
    check(case((300, 20), (200, 9), 2, 1, tile_m=128, tile_n=64, dim=dim, mask="tokens", packed=True), 1)


@TILES
def test_results_do_not_depend_on_which_cta_has_a_tile(tile_m):
    of = case((600, 300), (400, 500), 2, 1, tile_m=tile_m, mask="tokens", spread=3.0, packed=True)
    first = problem(of, DEVICE)
    run(first, 1)
    for resident, schedule in ((2, "greedy"), (3, "random"), (64, "oldest_last")):
        p = problem(of, DEVICE)
        run(p, resident, warp_schedule=schedule)
        assert torch.equal(p.o, first.o) and torch.equal(p.lse, first.lse)


@pytest.mark.parametrize("tile_m", [128, PAIR])
def test_two_ctas_of_an_sm_allocate_tensor_memory_once(tile_m):
    of = case((520,), (300,), 2, 1, tile_m=tile_m, mask="band")
    check(of, 2, warp_schedule="random", ctas_per_sm=blackwell_tuning(problem(of).variant).ctas, resident_ctas=2)


def test_q_has_stages_for_the_next_tile_where_shared_memory_has_room():
    assert [blackwell_tuning(variant(dim)).q_stages for dim in (32, 64, 96, 128)] == [4, 4, 4, 3]
    assert [blackwell_tuning(variant(dim, 128, 64)).q_stages for dim in (32, 64, 96)] == [2, 2, 2]
    assert [blackwell_tuning(variant(dim, 128)).q_stages for dim in (64, 128)] == [2, 1]
    assert blackwell_tuning(variant(64).with_tuning(tma=0)).q_stages == 2


@pytest.mark.parametrize("tuning", [{"q_stages": 1}, {"q_stages": 5}, {"q_stages": 3, "tma": 0}, {"lead": -1}])
def test_a_tuning_that_cannot_work_is_refused(tuning):
    assert not fits(variant(64).with_tuning(**tuning), ARCH)


def test_the_operator_launches_as_many_as_run_at_once():
    q = torch.zeros(1, 1, 100, 64, dtype=torch.bfloat16)
    assert resident_ctas(variant(64), q) == EMULATED
    assert resident_ctas(replace(variant(64), tile_m=128, products="mma"), q) is None
