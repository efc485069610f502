"""Each kernel of a target has its case of a session before any has a second one."""

from __future__ import annotations

import pytest
from needs import needs_emulator

from fuzz.core.case import Case
from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.refusal import refusal
from fuzz.generate.cases import SMALL
from fuzz.generate.kernel_turns import meet
from fuzz.judging.judge import execute
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import LEAST_KERNELS, Shard, plan
from fuzz.session.settings import Settings
from fuzz.session.turns import first_cases
from fuzz.targets.registry import load
from kernels.blocksparse.spec.variant import padded_dim
from oracles.masks import Full, kinds


def session(name: str, cases: int, seed: int = 1) -> list[Case]:
    """All cases of a session of one target."""
    settings, target, found = Settings(cases=cases, seed=seed, targets=(name,)), load(name), list[Case]()
    for shard in plan(settings):
        explore(shard, drawer_of(target, settings), found.append, seed_cases(shard, target, settings))
    return found


def serves(case: Case, kernel: KernelChoice) -> bool:
    p = case.problem
    assert kernel.dims is not None
    return (
        kernel.has(case.variant)
        and p.dtype == kernel.dtype
        and kernel.dims[0] <= p.dim <= kernel.dims[1]
        and bool(p.softcap) == kernel.softcap
        and p.backward
        and (kernel.masks is None or kinds(p.mask) <= kernel.masks)
    )


@needs_emulator
def test_sixty_cases_hold_one_for_every_kernel_of_the_bundled_attention() -> None:
    target = load("blocksparse")
    kernels, seeds = target.kernel_choices(), target.seed_cases()
    found = session("blocksparse", 60)
    first = [case for case in found[: len(kernels) + len(seeds)] if case not in seeds]
    assert len(found) == 60 and len(kernels) > 30
    assert all(any(serves(case, kernel) for case in first) for kernel in kernels)
    assert all(refusal(target, case) is None for case in first) and len(first) == len(kernels)
    assert set(seeds) <= set(found[:20]) and found[0] not in seeds


@needs_emulator
def test_kernels_whose_ctas_wait_have_two_of_them_on_one_tile_and_two_tiles_each() -> None:
    target = load("blocksparse")
    ordered = [kernel for kernel in target.kernel_choices() if kernel.variant["deterministic"]]
    found = [case for case in session("blocksparse", 60) if case not in target.seed_cases()]
    for kernel in ordered:
        assert kernel.least_q > int(kernel.variant["tile_m"]) and kernel.least_k > int(kernel.variant["tile_n"])
        assert any(
            serves(case, kernel) and case.problem.len_q >= kernel.least_q and case.problem.len_k >= kernel.least_k
            for case in found
        ), kernel
    assert any(kernel.variant.get("products") == "wgmma" and kernel.dims == (120, 128) for kernel in ordered)


@needs_emulator
def test_a_turn_of_ctas_that_wait_has_its_keys_in_one_call() -> None:
    settings, target = Settings(cases=400, seed=3, targets=("blocksparse",)), load("blocksparse")
    turns = [case for shard in plan(settings) for case in first_cases(shard, target, SMALL, 2, 3)]
    waiting = [kernel for kernel in target.kernel_choices() if kernel.least_q]
    served = [case for case in turns if any(serves(case, kernel) for kernel in waiting)]
    assert len(served) >= len(waiting)
    assert not any("keys" in case.variant for case in served)


def test_two_kernels_whose_ctas_wait_come_before_each_other_one() -> None:
    found = [case for case in session("blocksparse", 60) if case not in load("blocksparse").seed_cases()]
    assert [case.variant["deterministic"] for case in found[:9]] == 3 * [True, True, False]


@needs_emulator
def test_the_first_kernels_of_a_session_differ_most() -> None:
    """Few kernels take a band or intervals as their mask: a random order has one of them among the first three in one
    session of four."""
    target = load("blocksparse")
    firsts = [first_cases(Shard("blocksparse", 0, 3, seed), target, SMALL, 1, seed) for seed in range(24)]
    masks, dims, dtypes = ([len({of(case) for case in first}) for first in firsts] for of in (_mask, _dim, _dtype))
    assert min(masks) >= 2 and masks.count(3) >= 6
    assert min(dims) >= 2 and dims.count(3) >= 12 and dtypes.count(2) >= 18


def _mask(case: Case) -> str:
    return str(case.variant["mask"])


def _dim(case: Case) -> int:
    return padded_dim(case.problem.dim)


def _dtype(case: Case) -> str:
    return case.problem.dtype


@needs_emulator
def test_ctas_that_wait_meet_in_most_of_their_turns_and_not_in_all() -> None:
    """In the others a tile of queries lacks some of its tiles of keys, by which ranks differ from block numbers."""
    target = load("blocksparse")
    ordered = [kernel for kernel in target.kernel_choices() if kernel.least_q]
    first = [case for seed in range(3) for case in session("blocksparse", 25, seed) if case not in target.seed_cases()]
    met = [meet(case.problem, kernel) for case in first for kernel in ordered if serves(case, kernel)]
    assert 0.7 < sum(met) / len(met) < 1, met


@needs_emulator
def test_first_cases_have_options_masks_and_sequences_of_different_lengths_as_often_as_later_ones() -> None:
    """A turn adds its kernel to a case, it does not make the case simple."""
    target = load("blocksparse")
    turns, seeds = len(target.kernel_choices()), target.seed_cases()
    first = [case for seed in range(6) for case in session("blocksparse", turns + len(seeds), seed)]
    problems = [case.problem for case in first if case not in seeds]
    counts = {
        "plain": sum(p.mask == Full() and not p.ragged and p.scale is None and not p.softcap for p in problems),
        "full mask": sum(p.mask == Full() for p in problems),
        "ragged": sum(p.ragged for p in problems),
        "several heads": sum(p.heads_q > 1 for p in problems),
        "more query tiles": sum(p.len_q - p.len_k > 64 for p in problems),
    }
    shares = {name: count / len(problems) for name, count in counts.items()}
    assert 0.05 < shares["plain"] < 0.2 and shares["full mask"] < 0.3, shares
    assert shares["ragged"] > 0.3 and shares["several heads"] > 0.6 and shares["more query tiles"] > 0.1, shares


@needs_emulator
def test_the_order_follows_from_the_seed_and_not_from_the_shards() -> None:
    one, same, other = (session("blocksparse", 60, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert [case.variant for case in session("blocksparse", 100)][:60] == [case.variant for case in one]


@needs_emulator
def test_a_session_of_fewer_cases_than_kernels_has_the_first_few_kernels_in_turn() -> None:
    target = load("blocksparse")
    kernels, seeds = target.kernel_choices(), target.seed_cases()
    few, many = ([case for case in session("blocksparse", n) if case not in seeds] for n in (44, 60))
    places = [[n for n, kernel in enumerate(kernels) if serves(case, kernel)] for case in few]
    turns = places[:LEAST_KERNELS]
    assert len(few) == 40 and len({n for of in turns for n in of}) >= LEAST_KERNELS
    assert places == turns * 5 and all(places)
    assert [case.variant["mask"] for case in few[:LEAST_KERNELS]] == [case.variant["mask"] for case in many[:8]]
    assert len(set(few)) == len(few)  # each turn has a case of its own


def test_options_of_a_users_target_have_their_turns(tmp_path) -> None:
    file = tmp_path / "tiled.py"
    file.write_text(
        "from fuzz.targets import target\n"
        '@target("tiled", variants=[{"tile": n} for n in (16, 32, 64, 128)])\n'
        "def tiled(q, k, v, tile):\n    return v\n"
    )
    settings = Settings(cases=25, seed=1, targets=("tiled",), files=(str(file),))
    (shard,) = plan(settings)
    assert {case.variant["tile"] for case in seed_cases(shard, load("tiled", (str(file),)), settings)} == {
        16,
        32,
        64,
        128,
    }


@pytest.mark.nightly
@needs_emulator
def test_a_semaphore_released_one_step_early_is_found_in_a_session_of_sixty() -> None:
    """By the turn of the one kernel that has this release: the rest of the session is not run here. Three of four turns
    are made for such a race; of these three sessions two show it. The third has one resident CTA, which is persistent:
    it takes every tile, so that its own order is that of the adds."""
    name = "blocksparse!released_one_step_early"
    target = load(name)
    (kernel,) = (
        kernel
        for kernel in target.kernel_choices()
        if kernel.variant["deterministic"] and kernel.variant.get("products") == "wgmma" and kernel.dims == (104, 128)
    )
    found = 0
    for seed in (1, 2, 3):
        case = next(case for case in session(name, 60, seed) if not case.variant.get("ctas") and serves(case, kernel))
        verdict = execute(case, target, lambda phase, limit: None)
        several = case.variant.get("keys") != "split" and int(case.variant["slots"]) > 1
        assert (verdict.outcome == "fail") == (several and meet(case.problem, kernel))
        found += verdict.outcome == "fail" and "adds in no fixed order" in verdict.findings[0].message
    assert found >= 2
