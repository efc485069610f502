"""Inputs that lie oddly, and gradients of some of them: the answers stay those of the problem."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs, Storage
from fuzz.judging.judge import execute
from fuzz.minimize.options import OFF, storage
from fuzz.script import write_script
from fuzz.targets.registry import load
from fuzz.tensors.arena import build
from oracles.masks import Causal
from oracles.problem import Bias, Problem

MATH = "torch.sdpa.math"
PLAIN = Problem((9, 9), (7, 7), 4, 2, 8, 8, "float32", mask=Causal())


def run(case: Case):
    return execute(case, load(MATH), lambda phase, limit: None)


def passes_as_a_script(case: Case) -> bool:
    with pytest.raises(SystemExit) as left:
        exec(compile(write_script(case, load(MATH), None), "script", "exec"), {"__name__": "script"})
    return left.value.code == 0


@pytest.mark.parametrize("shared", ["b", "h", "s", "bh", "hs", "bhs"])
@pytest.mark.parametrize("order", ["bhsd", "bshd", "bhds"])
def test_a_shared_axis_has_stride_zero_and_one_value(shared, order):
    case = Case(MATH, PLAIN, Inputs(k=Storage(order, pad=1, offset=1, shared=shared)))
    arena = build(case, "cpu")
    k = arena.tensor("k")
    assert [stride == 0 for stride in k.stride()] == [axis in shared for axis in "bhsd"]
    for axis in range(4):
        same = bool((k == k.narrow(axis, 0, 1)).all())
        assert same == ("bhsd"[axis] in shared)


@pytest.mark.parametrize("name", ["q", "k", "v", "do"])
def test_a_case_with_shared_axes_passes_and_so_does_its_script(name):
    case = Case(MATH, PLAIN, Inputs(**{name: Storage("bshd", pad=2, shared="bs")}), relations=("future_changed",))
    verdict = run(case)
    assert verdict.outcome == "pass", verdict
    assert any("expanded" in text for text in verdict.calls) or name == "do"
    assert passes_as_a_script(replace(case, relations=()))


def test_packed_and_padded_sequences_can_share():
    ragged = replace(PLAIN, lengths_q=(9, 4), lengths_k=(7, 2))
    assert run(Case(MATH, ragged, Inputs(q=Storage(shared="b"), v=Storage(shared="s")))).outcome == "pass"
    packed = replace(ragged, layout="packed")
    assert build(Case(MATH, packed, Inputs(k=Storage(shared="bhs"))), "cpu").tensor("k").stride()[:2] == (0, 0)


@pytest.mark.parametrize(
    ("detached", "bias"), [(("q",), None), (("k", "v"), None), (("q", "k", "v"), Bias()), (("v",), Bias(grad=False))]
)
def test_gradients_of_some_inputs_only(detached, bias):
    case = Case(MATH, replace(PLAIN, bias=bias), Inputs(detached=detached))
    verdict = run(case)
    assert verdict.outcome == "pass", verdict
    judged = {worst.tensor for worst in verdict.worst}
    wanted = {"o", "dq", "dk", "dv"} - {f"d{name}" for name in detached}
    assert judged == wanted | ({"dbias"} if bias and bias.grad else set())
    assert passes_as_a_script(case)


def test_a_gradient_that_is_due_is_missed():
    class Lost(type(load(MATH))):
        def run(self, case, tensors):
            found = super().run(replace(case, inputs=Inputs(detached=("k",))), tensors)
            assert found.outputs.dk is None
            return found

    target = Lost.__new__(Lost)
    target.__dict__.update(load(MATH).__dict__)
    verdict = execute(Case(MATH, PLAIN), target, lambda phase, limit: None)
    assert [f.kind for f in verdict.findings] == ["missing_tensor"]
    due = Case(MATH, PLAIN, Inputs(detached=("k",)))
    assert execute(due, target, lambda phase, limit: None).outcome == "pass"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Storage(shared="hb"),
        lambda: Storage(shared="d"),
        lambda: Inputs(detached=("k", "q")),
        lambda: Inputs(distribution="one_hot", q=Storage(shared="b")),
        lambda: Case(MATH, PLAIN, Inputs(detached=("q", "k", "v"))),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match=r"shared|detached"):
        make()


def test_equal_cases_keep_their_ids_and_reductions_take_both_away():
    case = Case(MATH, PLAIN, Inputs(q=Storage(shared=""), detached=()))
    assert case.id == Case(MATH, PLAIN).id
    odd = Case(MATH, PLAIN, Inputs(q=Storage("bshd", shared="b"), detached=("v",)))
    assert OFF["detached"](odd).inputs.detached == ()
    assert any(one and one.inputs.q == Storage("bshd") for one in storage(odd))
    assert torch.equal(build(case, "cpu").tensor("q"), build(Case(MATH, PLAIN), "cpu").tensor("q"))
