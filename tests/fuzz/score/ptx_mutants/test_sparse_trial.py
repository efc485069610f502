"""Mutants of Triton's kernels: real kernels of dynamic_mask and nsa, changed, on the emulated GPU."""

import hashlib
import re

import pytest
import torch

from fuzz.score.ptx_mutants import survey, trial
from fuzz.score.ptx_mutants.bench import without_debug_info
from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import NOTHING, OPERATORS, lines
from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.sampling import sample
from fuzz.score.ptx_mutants.sparse_configs import _form
from fuzz.score.ptx_mutants.survey import LISTS, Lists, Survey
from fuzz.score.ptx_mutants.targets import TARGETS, config
from fuzz.targets.blocksparse.devices import emulator_there

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(not emulator_there(), reason="needs the emulator"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the emulated target steps back where there is a GPU"),
]
OF = TARGETS["dynamic_mask"][0]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A survey of three cases, kept in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST", "FEWEST"):
            patch.setattr(survey, name, 2)
        patch.setitem(LISTS, "dynamic_mask", Lists(3, 3, 3))
        found = Survey(1, tmp_path_factory.mktemp("survey"))
        found.triton_kernels(OF, 3)
        yield found


def bug(few: Survey, kind: str, pattern: str, after: str) -> PtxMutant:
    line = next(x for x in lines(few.triton_kernels(OF)[kind].text) if re.match(pattern, x.text))
    return PtxMutant(OF.name, kind, "test", line.number, line.text, after, line.span, OF.target)


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_a_dropped_barrier_of_a_triton_kernel_is_a_race(few):
    found = trial.try_mutant(bug(few, "marks_kernel", r"bar\.sync", NOTHING), few)
    assert (found.status, found.by.partition("_")[0]) == ("found", "emulator:race")


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_a_survey_that_is_kept_is_read_and_not_run_again(few, monkeypatch):
    monkeypatch.setattr(survey, "run_clean", lambda *given: pytest.fail("run again"))
    again = Survey(1, few.folder)
    assert again.clean(OF, 0) == few.clean(OF, 0)
    assert again.triton_kernels(OF, 3) == few.triton_kernels(OF, 3)


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_a_case_whose_launches_a_mutant_does_not_change_is_not_run(few, monkeypatch):
    monkeypatch.setattr(trial, "execute", lambda *given: pytest.fail("run"))
    found = trial.try_mutant(bug(few, "marks_kernel", r"bar\.sync", "bar.sync 1;"), few)
    assert (found.status, found.changed, found.runs) == ("missed", 0, 0)
    assert found.reaching == 3


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_a_triton_kernel_is_known_by_its_ptx(few):
    for kernel in few.triton_kernels(OF).values():
        assert kernel.key == hashlib.sha256(kernel.text.encode()).hexdigest()[:32]


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_a_kernel_that_no_case_launches_is_not_taken_for_a_missed_mutant(few, monkeypatch):
    changed = bug(few, "marks_kernel", r"bar\.sync", NOTHING)
    known = few.triton_kernels(OF)
    other = {kind: survey.Kernel("another", kernel.text) for kind, kernel in known.items()}
    cleans = [few.clean(OF, n) for n in range(3)]
    monkeypatch.setattr(few, "_kernels", {OF.name: other})
    reached = {"another": frozenset({changed.line})}
    monkeypatch.setattr(trial, "clean_cases", lambda *given: [survey.Clean(cleans[0].case, reached, 1 << 30)])
    with pytest.raises(RuntimeError, match="the survey is of other kernels"):
        trial.try_mutant(changed, few)


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_every_kernel_has_its_turn_whatever_the_operator(few):
    texts = {(OF.name, kind): kernel.text for kind, kernel in few.triton_kernels(OF).items()}
    drawn = list(sample(2 * len(OPERATORS), 1, "dynamic_mask", texts))
    assert {b.kind.partition(".")[0] for b in drawn} == {kind.partition(".")[0] for _, kind in texts}
    assert all(b.target == "dynamic_mask" for b in drawn)


@pytest.mark.nightly
@pytest.mark.compiled_triton
@pytest.mark.parametrize("target", ["dynamic_mask", "nsa"])
def test_cases_of_a_configuration_are_the_same_for_a_seed_and_fewer_begin_them(target):
    for one in TARGETS[target][:2]:
        cases = one.cases(12, 3)
        assert len(cases) == 12
        assert cases[:4] == one.cases(4, 3)
        assert {(case.target, case.problem.dtype) for case in cases} == {(target, one.dtype)}
        assert {case.problem.layout for case in cases} == ({"padded", "packed"} if target == "nsa" else {one.layout})
        assert config(target, one.name) is one


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_three_in_four_cases_of_dynamic_mask_launch_the_same_kernels_of_attention():
    for one in TARGETS["dynamic_mask"][:2]:
        forms = [_form(case) for case in one.cases(12, 1)]
        common = max(forms, key=forms.count)
        assert sum(form >= common for form in forms) == 9
        assert {key[0] for key in common} == {"forward_kernel", "dq_kernel", "dkdv_kernel"}


def test_kernels_of_two_trees_are_the_same_without_names_of_folders():
    code = ".visible .entry f() {\n\t.loc\t1 58 14 // row_state.py:58:14\n\tret;\n}\n"
    trees = [f'{code}\t.file\t1 "/{tree}/row_state.py"\n\t.section\t.debug_abbrev\n' for tree in ("a", "b")]
    assert [without_debug_info(text).rstrip() for text in trees] == [code.rstrip()] * 2
    assert without_debug_info(code).rstrip() == code.rstrip()


def test_an_argument_for_one_target_is_none_for_another():
    mutants = [
        PtxMutant("c", "mean_kernel", "bound_shifted", 1, "setp.gt.s32 %p1, %r1, -1;", "setp.gt.s32 %p1, %r1, 0;", 1, x)
        for x in ("nsa", "dynamic_mask")
    ]
    seen = [Result(x.id, x, "missed", looked=True, reaching=12, same_values=True, same_bits=True) for x in mutants]
    assert [judged(x, lambda _: "").status for x in seen] == ["equivalent", "missed"]


@pytest.mark.nightly
@pytest.mark.compiled_triton
def test_packed_calls_are_emulated():
    packed = config("dynamic_mask", "fp16_d32_flag_packed_cap")
    clean = survey.run_clean(packed, packed.cases(1, 1)[0])
    assert not clean.fails
    assert {"forward_kernel", "dkdv_kernel", "dq_kernel"} <= set(clean.functions.values())
