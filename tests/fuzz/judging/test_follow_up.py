"""Metamorphic relations: right targets keep them, each kind of fault breaks the relation that is made for it."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path

import msgspec
import pytest
import torch
from judge_tools import FAKES, PLAIN
from msgspec.structs import replace

from fuzz.core.case import Case, CaseError, Inputs, Storage, from_json, to_json
from fuzz.core.relations import relations_for, required_equality
from fuzz.core.target import Execution
from fuzz.core.verdict import Verdict
from fuzz.judging.follow_up import failed_alone, follow_ups_of, stand_alone_cases
from fuzz.judging.judge import execute
from fuzz.minimize import minimize
from fuzz.targets.registry import load
from fuzz.tensors.arena import build
from oracles.masks import Causal, Documents, Full, PerBatch, PerHead, Window
from oracles.metamorphic.permutations import outputs_of_sequences, take_sequences
from oracles.metamorphic.relations import RELATIONS
from oracles.outputs import Outputs
from oracles.problem import Bias, Problem
from oracles.reference.attention import reference

PACKED = replace(PLAIN, layout="packed", lengths_q=(20, 7, 31), lengths_k=(33, 7, 12))
RAGGED = replace(PLAIN, lengths_q=(20, 7), lengths_k=(33, 9))
HONEST = load("fake.honest", FAKES)


def verdict(target, problem: Problem, *relations: str, inputs: Inputs | None = None, repeats: int = 1):
    case = Case(target.name, problem, inputs or Inputs(seed=3), repeats=repeats, relations=relations)
    return execute(case, target, lambda phase, limit: None)


def broken(change):
    """The honest target with `change(self, case, tensors, execution) -> execution` after each run."""
    target = copy.copy(HONEST)
    honest = HONEST.run
    target.run = lambda case, tensors: change(case, tensors, honest(case, tensors))
    return target


def with_o(execution: Execution, o: torch.Tensor) -> Execution:
    a = execution.outputs
    return Execution(Outputs(o, a.lse, a.dq, a.dk, a.dv, a.dbias), execution.kernel)


@pytest.mark.parametrize("name", RELATIONS)
@pytest.mark.parametrize(
    "problem",
    [
        PLAIN,
        RAGGED,
        replace(RAGGED, mask=PerBatch((Causal(), Window(3, 4))), bias=Bias(batch=True, heads=True)),
        replace(RAGGED, mask=PerHead((Causal(), Documents((3, 9)))), bias=Bias(rows=True), dtype="float16"),
        replace(PLAIN, mask=Full(), softcap=3.0, dtype="bfloat16"),
        replace(PLAIN, lengths_q=(0, 5), lengths_k=(3, 0)),
    ],
    ids=["plain", "ragged", "per_batch", "per_head", "softcap", "empty"],
)
def test_an_honest_target_keeps_every_relation(name, problem):
    found = verdict(HONEST, problem, name)
    assert found.outcome == "pass", found.findings


def test_every_relation_asks_something_of_some_case():
    target = copy.copy(HONEST)
    target.variants = ({}, {"tile": 64})
    target.same_options = frozenset({"tile"})
    target.relations = {"unseen_nan": "bitwise"}
    case = Case(target.name, replace(RAGGED, mask=Causal()), relations=tuple(RELATIONS))
    assert {of.relation.name for of in follow_ups_of(case, target, build(case, "cpu"))} == {
        name for name, relation in RELATIONS.items() if "attention" in relation.operations
    }


def test_sequences_of_packed_problems_are_taken_apart_and_put_together():
    problem = replace(PACKED, mask=PerBatch((Causal(), Full(), Window(2, 2))))
    x = build(Case("any", problem), "cpu").tensors()
    given = {"q": x.q, "k": x.k, "v": x.v, "do": x.do}
    order = [2, 0, 1]
    other, moved = take_sequences(problem, given, order)
    assert other.lengths_q == (31, 20, 7)
    first = reference(problem, x.q, x.k, x.v, do=x.do)
    theirs = reference(other, moved["q"], moved["k"], moved["v"], do=moved["do"])
    found = outputs_of_sequences(other, theirs, problem, first, dict(enumerate(order)))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, getattr(first, name), msg=name)


def sees_unwritten_memory(case, tensors, execution):
    o = execution.outputs.o.clone()
    o[0, 0, 0, 0] += 0 if torch.empty(100).view(torch.uint8)[0] == 0xFF else 1e-9 + o[0, 0, 0, 0] * 2**-20
    return with_o(execution, o)


def looks_ahead(case, tensors, execution):
    o = execution.outputs.o.clone()
    o[:, :, 1] *= 1 + 2**-21 * torch.tanh(tensors.q[..., -1, :].sum())
    return with_o(execution, o)


def is_another_kernel_without_gradients(case, tensors, execution):
    return with_o(execution, execution.outputs.o * (1 if case.problem.backward else 1 + 2**-20))


@pytest.mark.parametrize(
    ("change", "relation", "problem"),
    [
        (sees_unwritten_memory, "poison", PLAIN),
        (looks_ahead, "future_changed", PLAIN),
        (is_another_kernel_without_gradients, "no_grad", PLAIN),
    ],
)
def test_a_fault_within_the_budget_breaks_its_relation_alone(change, relation, problem):
    target = broken(change)
    assert verdict(target, problem).outcome == "pass"
    found = verdict(target, problem, relation)
    assert {(f.oracle, f.kind) for f in found.findings} == {("metamorphic", relation)}
    assert verdict(target, problem, "doubled_v").outcome == "pass"


def test_a_fault_that_needs_another_question_is_found_by_asking_it():
    """Wrong only where heads differ in order, where V is large, or where the scale is given: relations lead there."""
    wrong_scale = broken(lambda c, t, e: with_o(e, e.outputs.o * (1.5 if c.problem.scale is not None else 1)))
    assert verdict(wrong_scale, PLAIN).outcome == "pass"
    found = verdict(wrong_scale, PLAIN, "scaled_q", "poison")
    assert {f.kind for f in found.findings} == {"scaled_q"}
    (plain,) = stand_alone_cases(Case(wrong_scale.name, PLAIN, relations=("scaled_q",)), wrong_scale)
    assert plain.problem.scale == PLAIN.scale_value / 4 and not plain.relations
    assert verdict(wrong_scale, plain.problem).outcome == "fail"


def test_what_is_wrong_with_a_variation_as_a_question_of_its_own_is_told_with_its_case():
    """In the run where it shows, which need not show it again: as what is read of unwritten memory."""
    other = [False, True]  # the base is right, the variation is not, and nothing of the case says why

    def change(case, tensors, execution):
        return with_o(execution, execution.outputs.o * torch.nan) if other.pop(0) else execution

    found = verdict(broken(change), PLAIN, "scaled_q")
    assert [f.kind for f in found.findings] == ["scaled_q"]
    ((case, alone),) = failed_alone(msgspec.json.decode(msgspec.json.encode(found), type=Verdict))
    assert case.problem.scale == PLAIN.scale_value / 4 and not case.relations
    assert alone.case_id == case.id and alone.bad
    assert [(f.oracle, f.kind, f.tensor) for f in alone.findings] == [("accuracy", "nan", "o")]


def test_under_another_poison_wrong_numbers_count_as_the_nan_of_a_case_alone():
    runs = [1.0, 3.0]
    target = broken(lambda case, tensors, execution: with_o(execution, execution.outputs.o * runs.pop(0)))
    found = verdict(target, PLAIN, "poison")
    ((_, alone),) = failed_alone(found)
    assert {f.kind for f in found.findings} == {"poison"} and {f.kind for f in alone.findings} == {"nan"}


def test_a_change_within_the_budget_is_of_no_question_alone():
    found = verdict(broken(looks_ahead), PLAIN, "future_changed")
    assert found.bad and failed_alone(found) == []


def test_a_float16_gradient_that_overflows_only_where_v_is_doubled_is_no_finding():
    problem = Problem((65,), (65,), 6, 3, 64, 64, "float16", mask=Causal("bottom_right"), scale=0.0625)
    inputs = Inputs(seed=138, distribution="index_values", do=Storage("expanded"))
    target = load("torch.sdpa.math")
    case = Case(target.name, problem, inputs, relations=("doubled_v",))
    (of,) = follow_ups_of(case, target, build(case, "cpu"))
    runs = [target.run(case, build(case, "cpu").tensors()), of.run(target, of.pristine.tensors(), None)]
    assert [bool(run.outputs.dk.isfinite().all()) for run in runs] == [True, False]
    assert verdict(target, problem, "doubled_v", inputs=inputs).outcome == "pass"


def test_state_that_a_second_forward_overwrites_is_found():
    target = copy.copy(HONEST)
    kept = []

    def run_around(case, tensors, others):
        execution = HONEST.run(case, tensors)
        a = execution.outputs
        kept.append(HONEST.run(case, others).outputs)
        return Execution(Outputs(a.o, a.lse, kept[-1].dq, a.dk, a.dv), execution.kernel)

    target.run_around = run_around
    found = verdict(target, PLAIN, "two_forwards")
    assert [(f.kind, f.tensor) for f in found.findings] == [("two_forwards", "dq")]


def test_a_follow_up_case_that_raises_is_named():
    def run(case, tensors):
        if tensors.q.stride() != torch.empty(tensors.q.shape).stride():
            raise RuntimeError("strides!")
        return HONEST.run(case, tensors)

    target = copy.copy(HONEST)
    target.run = run
    found = verdict(target, PLAIN, "strides")
    assert found.findings[0].kind == "raised"
    assert found.findings[0].message.startswith(
        "follow-up case with its tensors transposed in memory: the target raised RuntimeError"
    )


def test_a_write_out_of_bounds_is_seen_in_a_variation_too():
    def spill(case, tensors, execution):
        if case.problem.batch > 2:
            ctypes.memset(tensors.q.data_ptr() - 4, 0x5A, 4)
        return execution

    found = verdict(broken(spill), PLAIN, "sequence_appended")
    assert [f.kind for f in found.findings] == ["wrote_outside"]


def test_a_target_says_what_it_owes():
    target = copy.copy(HONEST)
    target.relations = {"poison": "off", "doubled_v": "bitwise"}
    assert required_equality(target, "poison") == "off" and required_equality(target, "doubled_v") == "bitwise"
    assert "poison" not in relations_for(target, Case(target.name, PLAIN))
    target.deterministic = False
    assert (
        required_equality(target, "doubled_v") == "within_budget"
        and required_equality(target, "no_grad") == "within_budget"
    )


def depends_on_strides(case, tensors, execution):
    return with_o(execution, execution.outputs.o * (1 if tensors.q.stride(1) else 1 + 2**-22))


@pytest.mark.parametrize(
    ("stores", "strides", "outcome"),
    [
        ({"q": Storage(shared="h")}, "within_budget", "pass"),
        ({"q": Storage(shared="h")}, "bitwise", "fail"),
        ({"q": Storage("bshd")}, "within_budget", "pass"),
    ],
)
def test_a_follow_up_case_whose_strides_are_others_owes_the_bits_that_strides_owe(stores, strides, outcome):
    """Numbers that a relation changes need not be the same for every head: the stride of 0 is lost then, and a kernel
    may be chosen by it."""
    target = broken(depends_on_strides)
    target.relations = {"future_changed": "bitwise", "strides": strides}
    problem = replace(PLAIN, heads_q=2, heads_kv=2)
    found = verdict(target, problem, "future_changed", inputs=Inputs(3, **stores))
    assert found.outcome == outcome, found.findings


def test_relations_are_part_of_a_case_and_old_cases_keep_their_ids():
    case = Case("any", PLAIN)
    assert replace(case, relations=("poison",)).id != case.id
    corpus = Path(__file__).parents[3] / "corpus" / "must_pass"
    assert all('"relations"' not in path.read_text() for path in corpus.glob("*.json"))
    with pytest.raises(CaseError, match="relations: must be of"):
        from_json('{"target": "any", "relations": ["nonsense"], "problem": ' + _json(PLAIN) + "}")


def test_expanded_gradients_and_strides_stay_what_they_were():
    stores = {"q": Storage("bshd", 8, 1), "do": Storage("expanded")}
    found = verdict(HONEST, RAGGED, "poison", "permuted_heads", inputs=Inputs(7, "adversarial", **stores))
    assert found.outcome == "pass", found.findings


def _json(problem: Problem) -> str:
    return msgspec.json.encode(problem).decode()


def test_a_failure_of_a_relation_is_minimised_signed_and_replayed():
    target = broken(is_another_kernel_without_gradients)
    big = replace(PLAIN, lengths_q=(130, 130), lengths_k=(130, 130), softcap=3.0)
    case = Case(
        target.name, big, Inputs(9, "adversarial"), repeats=1, relations=("no_grad", "poison", "permuted_heads")
    )

    def probe(candidate: Case):
        return execute(candidate, target, lambda phase, limit: None)

    smallest = minimize(case, probe)
    assert smallest.case.relations == ("no_grad",)
    assert smallest.case.problem.softcap == 0 and smallest.case.problem.len_q < 64
    assert (smallest.signature.kind, smallest.signature.oracle) == ("no_grad", "metamorphic")
    again = from_json(to_json(smallest.case))
    assert again == smallest.case and probe(again).findings == smallest.verdict.findings


def test_numbers_that_are_wrong_for_other_inputs_are_wrong_numbers():
    """Such as memory that nothing wrote: the first run may find zeros there."""
    runs = []

    def garbage(case, tensors, execution):
        runs.append(case)
        return with_o(
            execution, execution.outputs.o.clone().fill_(float("nan")) if len(runs) > 1 else execution.outputs.o
        )

    found = verdict(broken(garbage), PLAIN, "future_changed")
    assert {(f.oracle, f.kind) for f in found.findings} == {("accuracy", "nan")}
    assert found.findings[0].message.startswith("follow-up case with later queries and their keys changed: O is")


def test_a_follow_up_case_that_raises_is_a_case_of_its_own():
    """So that a bug which is known by the options that it needs is known when a relation chose them."""
    problem = Problem((2,), (7,), 2, 2, 16, 16, "float32", backward=False)
    target = load("torch.sdpa.flash")
    raising = {"mask": "bool", "shape": "narrow"}
    variants = type(target).variants_for
    try:
        type(target).variants_for = lambda self, problem: ({}, raising)
        verdict = execute(Case(target.name, problem, relations=("options",)), target, lambda phase, limit: None)
    finally:
        type(target).variants_for = variants
    ((plainer, found),) = failed_alone(verdict)
    assert plainer.variant == raising and not plainer.relations
    assert (found.findings[0].kind, found.findings[0].place.pattern) == ("raised", "IndexError")
