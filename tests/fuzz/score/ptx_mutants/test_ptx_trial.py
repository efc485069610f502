"""Bugs on trial: real kernels, changed, on the emulated GPU. One configuration with small cases."""

import os
import re

import pytest
import torch

from fuzz.score.ptx_mutants import pool, sampling, trial
from fuzz.score.ptx_mutants.configs import CONFIGS, builds_of, cases_of, size
from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import NOTHING, lines
from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.survey import LISTS, Lists, Survey
from fuzz.targets.blocksparse.devices import emulator_there, toolchain_there

pytestmark = [
    pytest.mark.skipif(not (toolchain_there() and emulator_there()), reason="needs the toolchain and the emulator"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the emulated target steps back where there is a GPU"),
]
OF = CONFIGS[0]
SURVEY = Survey(1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(LISTS, "blocksparse", Lists(6, 8, 8))


def text_of(kind: str) -> str:
    return OF.kernels(SURVEY)[kind].text


def argued(result: Result) -> Result:
    return judged(result, lambda bug: text_of(bug.kind))


def bug(kind: str, pattern: str, after: str, operator: str = "test", which: int = 0) -> PtxMutant:
    """The `which`-th instruction of that pattern, changed."""
    found = [x for x in lines(text_of(kind)) if re.match(pattern, x.text)]
    line = found[which]
    return PtxMutant(OF.name, kind, operator, line.number, line.text, after.replace("WHOLE", line.text), line.span)


def test_cases_are_the_same_for_the_same_seed_and_of_every_size():
    cases = cases_of(OF, 12, 3)
    assert cases == cases_of(OF, 12, 3)
    assert {size(OF, case.problem) for case in cases} == {0, 1, 2, 3, 4}
    assert all(case.target == "blocksparse" for case in cases)


def test_the_kernels_of_a_configuration_are_one_of_each_kind():
    assert sorted(builds_of(OF)) == ["backward", "forward", "postprocess", "preprocess"]


@pytest.mark.nightly
def test_a_dropped_barrier_is_a_race():
    found = trial.try_mutant(bug("forward", "bar.sync", NOTHING), SURVEY)
    assert (found.status, found.by) == ("found", "emulator:race_read_of_an_unordered_write")


@pytest.mark.nightly
@pytest.mark.parametrize(("which", "place"), [("red.release", -1), ("ld.acquire", 0)])
def test_an_order_that_is_relaxed_leaves_the_first_add_without_order(which, place):
    """The first add of a tile stores, and the next one reads. The release is the one after a CTA's last adds, which
    every CTA comes to; the others need longer rows."""
    line = bug("backward", which, "WHOLE", which=place)
    after = line.before.replace("release", "relaxed").replace("acquire", "relaxed")
    found = trial.try_mutant(bug("backward", which, after, which=place), SURVEY)
    assert (found.status, found.by) == ("found", "emulator:race_read_of_an_unordered_write")


def test_a_loop_without_end_is_a_hang():
    back = next(
        x for x in lines(text_of("forward"))
        if x.guard and x.name == "bra" and f"{x.operands[0]}:" in _before(text_of("forward"), x.number)
    )  # fmt: skip
    endless = PtxMutant(OF.name, "forward", "guard_dropped", back.number, back.text, f"bra {back.operands[0]};")
    found = trial.try_mutant(endless, SURVEY)
    assert found.status == "found"


def test_an_instruction_that_gives_the_same_value_is_seen_and_argued():
    signed = bug("forward", r"mul\.wide\.s32", "WHOLE")
    changed = bug("forward", r"mul\.wide\.s32", signed.before.replace("s32", "u32"), "sign_changed")
    missed = trial.try_mutant(changed, SURVEY)
    assert (missed.status, missed.looked) == ("missed", False)
    seen = trial.look_closer(missed, SURVEY)
    assert (seen.status, seen.same_values, seen.same_bits) == ("missed", True, True)
    assert (argued(seen).status, argued(seen).rule) == ("equivalent", "never negative")


def test_a_bug_that_only_the_list_misses_is_not_argued_away(monkeypatch):
    wrong = bug("forward", r"bar\.sync", NOTHING, "barrier_dropped")
    listed = trial.clean_cases(OF, SURVEY)
    monkeypatch.setattr(trial, "more_cases", lambda of, survey, first, last: listed[first:last])
    monkeypatch.setattr(trial, "clean_cases", lambda of, survey: listed[:1])
    monkeypatch.setitem(LISTS, "blocksparse", Lists(1, 1, 8))
    seen = trial.look_closer(Result(wrong.id, wrong, "missed"), SURVEY)
    assert seen.late > 1
    assert argued(seen).status == "missed"


def test_cases_after_the_list_are_run_unchanged_first(monkeypatch):
    wrong = bug("forward", r"bar\.sync", NOTHING, "barrier_dropped")
    listed = trial.clean_cases(OF, SURVEY)
    monkeypatch.setattr(trial, "clean_cases", lambda of, survey: listed[:1])
    monkeypatch.setitem(LISTS, "blocksparse", Lists(1, 1, 5))
    assert trial.look_closer(Result(wrong.id, wrong, "missed"), SURVEY).late > 1


def test_an_instruction_that_no_case_comes_to_is_said_so(monkeypatch):
    first = bug("forward", "bar.sync", NOTHING)
    empty = tuple(trial.Clean(clean.case, {}, clean.longest) for clean in trial.clean_cases(OF, SURVEY))
    monkeypatch.setattr(trial, "clean_cases", lambda of, survey: empty)
    assert trial.try_mutant(first, SURVEY).status == "not_reached"


@pytest.mark.parametrize(
    ("before", "after", "probe"),
    [
        ("add.s32 %r1, %r1, 1;", "add.s32 %r1, %r1, 2;",
         "{ .reg .b32 %other; .reg .pred %differs; add.s32 %other, %r1, 2; add.s32 %r1, %r1, 1; "
         "setp.ne.b32 %differs, %other, %r1; @%differs trap; }"),
        ("setp.lt.s32 %p1, %r1, 1;", NOTHING,
         "{ .reg .pred %other; .reg .pred %differs; mov.pred %other, %p1; setp.lt.s32 %p1, %r1, 1; "
         "xor.pred %differs, %other, %p1; @%differs trap; }"),
        ("@%p1 bra $L;", "bra $L;", "{ @!%p1 trap; @%p1 bra $L; }"),
        ("@!%p1 bra $L;", NOTHING, "{ @!%p1 trap; @!%p1 bra $L; }"),
        ("bar.sync 0;", NOTHING, None),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];", NOTHING, None),
    ],
)  # fmt: skip
def test_a_probe_traps_where_values_differ(before, after, probe):
    assert trial.probed(PtxMutant("", "forward", "", 1, before, after)) == probe


@pytest.mark.nightly
def test_bugs_are_drawn_by_turns_of_operators_and_the_same_for_a_seed():
    texts = {(OF.name, kind): kernel.text for kind, kernel in OF.kernels(SURVEY).items()}
    bugs = list(sampling.sample(240, 5, "blocksparse", texts))
    assert bugs[:60] == list(sampling.sample(60, 5, "blocksparse", texts))
    assert bugs[:60] != list(sampling.sample(60, 6, "blocksparse", texts))
    assert len({b.id for b in bugs}) == 240
    assert len({b.operator for b in bugs[:60]}) > 25
    assert {b.kind for b in bugs} == {"forward", "backward", "preprocess", "postprocess"}


def _dies(pipe, seed):
    pipe.recv()
    os._exit(3)


def test_a_worker_that_dies_is_a_finding(monkeypatch):
    monkeypatch.setattr(pool, "_work", _dies)
    (found,) = pool.results([PtxMutant("c", "forward", "", 1, "", "")], 1, 1)
    assert (found.status, found.by) == ("found", "runner:crash")


def _before(text: str, number: int) -> str:
    return "\n".join(text.splitlines()[: number - 1])
