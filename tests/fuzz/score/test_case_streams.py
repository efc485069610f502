"""Trials and their cases: the same for the same settings, inside what the target takes and what may be compiled."""

from __future__ import annotations

from itertools import islice, product

import pytest
from covering import nightly_unless
from msgspec.structs import replace

from fuzz.compiling.build_key import Compiled
from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.score.case_streams import case_stream
from fuzz.score.settings import Settings, Trial
from fuzz.score.trial_plan import bugs, good, kernels, size_of, trials, within
from fuzz.targets.registry import targets

WANTED = Settings(pattern="*!tail_keys_not_masked", seeds=2, cases=50, peer_seeds=1, peer_cases=20, keys=12)


def test_only_planted_bugs_that_are_asked_for_are_scored():
    assert sorted(bugs(WANTED)) == ["blocksparse!tail_keys_not_masked", "sdpa!tail_keys_not_masked"]
    assert not any("!" not in name for name in bugs(Settings()))


@pytest.mark.parametrize(("device", "expected"), [("host", "emulator"), ("interpreter", "interpreter")])
def test_mutants_of_triton_kernels_run_emulated_unless_the_interpreter_is_asked_for(device, expected):
    found = bugs(Settings(pattern="sdpa!*", device=device)).values()
    assert {bug.device for bug in found} == {expected} == {good(bug, device).device for bug in found}


def test_the_first_seed_of_every_bug_comes_first_and_those_that_take_long_last():
    found = trials(WANTED)
    assert [trial.seed for trial in found] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert [trial.generator for trial in found] == ["ours"] * 6 + ["uniform"] * 2
    assert [trial.cases for trial in found] == [50] * 6 + [20, 20]
    assert [trial.peers for trial in found] == [0] * 4 + [20] * 4
    assert [trial.minimize for trial in found] == [False] * 4 + [True, True, False, False]
    assert len({trial.name for trial in found}) == len(found)
    alone = trials(replace(WANTED, peer_seeds=0))
    assert not any(trial.peers for trial in alone)
    assert [trial.minimize for trial in alone] == [False, False, True, True]


def test_a_limit_of_its_own_ends_a_bugs_trial():
    limited = replace(WANTED, limits={"sdpa!tail_keys_not_masked": 7})
    assert {t.cases for t in trials(limited) if t.bug.startswith("sdpa") and t.generator == "ours"} == {7}


@pytest.mark.parametrize(
    ("generator", "name"),
    [
        nightly_unless(case != ("ours", "blocksparse!tail_keys_not_masked"), *case)
        for case in product(["ours", "uniform"], sorted(bugs(WANTED)))
    ],
)
def test_a_trials_cases_are_its_own_and_fit_target_and_kernels(name, generator):
    target = bugs(WANTED)[name]
    clean = good(target)
    trial = Trial(name, generator, 3, 50)
    found = list(islice(case_stream(trial, target, WANTED), 40))
    allowed = kernels(clean.name, "host", WANTED.keys, WANTED.repeats, WANTED.seed)
    assert found == list(islice(case_stream(trial, target, WANTED), 40))
    assert found != list(islice(case_stream(replace(trial, seed=4), target, WANTED), 40))
    assert len({case.id for case in found}) > 30
    for case in found:
        assert refusal(target, case) is None and within(replace(case, target=clean.name), clean, allowed)
        partly = "ctas" in case.variant  # of which a few CTAs are run
        assert partly or case.problem.pairs <= max(size_of(target).pairs, case.problem.heads_q * case.problem.batch)


def test_kernels_are_few_and_differ():
    target = targets()["blocksparse"]
    assert isinstance(target, Compiled)
    few, more = (kernels("blocksparse", "host", n, 2, 0) for n in (8, 24))
    assert few is not None and more is not None
    assert 0 < len(few) <= 8 < len(more) <= 24
    assert kernels("sdpa", "host", 8, 2, 0) is None


@pytest.mark.nightly
def test_a_scores_kernels_meet_ordered_adds_of_several_tiles_as_often_as_a_sessions():
    """What few kernels there are, and how many tiles they meet, is chosen together: chosen by their
    options alone, one case in forty had ordered adds of three tiles or more, where a session has one in ten."""
    name = "blocksparse!rank_direction"
    target, trial = bugs(replace(WANTED, pattern=name))[name], Trial(name, "ours", 5, 400)
    shares = []
    for keys in (48, 1000):
        found = list(islice(case_stream(trial, target, replace(WANTED, keys=keys)), 400))
        shares.append(sum(map(_ordered_adds, found)) / len(found))
    assert 0.6 * shares[1] < shares[0] < 1.6 * shares[1] and shares[1] > 0.05, shares


def _ordered_adds(case: Case) -> bool:
    """Of three tiles of keys or more, in a run."""
    if "ctas" in case.variant or not case.variant.get("run", True):
        return False
    if not (case.problem.backward and case.variant["deterministic"]):
        return False
    return case.problem.len_k > 2 * int(case.variant["tile_n"])


def test_uniform_cases_are_plain():
    target = bugs(WANTED)["sdpa!tail_keys_not_masked"]
    for case in islice(case_stream(Trial(target.name, "uniform", 0, 50), target, WANTED), 60):
        p = case.problem
        assert not p.ragged and p.bias is None and p.scale is None and not p.softcap and p.backward
        assert min(*p.lengths_q, *p.lengths_k) > 0 and p.dim in (32, 64, 128)
        assert case.inputs.distribution == "normal" and case.inputs.q == case.inputs.__class__().q


@pytest.mark.parametrize("bad", [{"seeds": 0}, {"cases": 0}, {"keys": 0}, {"peer_cases": -1}])
def test_settings_that_make_no_sense_name_their_field(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(**bad)
