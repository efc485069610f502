"""Keys in two calls: on the emulated GPU, as text, in sessions."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.core.verdict import Verdict
from fuzz.judging.judge import execute
from fuzz.script import write_script
from fuzz.targets.blocksparse.devices import connect, emulator_there
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.gpu import GpuBlockSparse
from fuzz.targets.blocksparse.script import blocksparse_text
from fuzz.tensors.arena import build
from kernels.blocksparse.launch import lse_gradient
from oracles.masks import Causal
from oracles.problem import Problem, dense_mask
from oracles.reference.attention import reference

PADDED = Problem((70,), (150,), 2, 1, 64, 64, "float16", mask=Causal("bottom_right"))
PACKED = replace(PADDED, lengths_q=(70, 30), lengths_k=(150, 140), layout="packed")
SPLIT = {"keys": "split"}
emulated = pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")


def run(problem: Problem) -> Verdict:
    case = Case("blocksparse", problem, variant=SPLIT, repeats=1)
    return execute(case, EmulatedBlockSparse(), lambda phase, limit: None)


@emulated
@pytest.mark.parametrize("problem", [pytest.param(PADDED, marks=pytest.mark.nightly), PACKED], ids=["padded", "packed"])
def test_two_calls_answer_as_one_does(problem: Problem) -> None:
    verdict = run(problem)
    assert verdict.outcome == "pass", verdict.findings


@emulated
@pytest.mark.parametrize("problem", [PADDED, PACKED], ids=["padded", "packed"])
def test_a_kernel_that_forgets_the_gradient_of_lse_is_wrong(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lse_gradient, "subtract", lambda *given: None)
    assert {(f.oracle, f.tensor) for f in run(problem).findings} == {("accuracy", "dq"), ("accuracy", "dk")}


@emulated
@pytest.mark.parametrize(("problem", "schedule"), [(PADDED, "planned"), (PACKED, "ascending")])
def test_the_text_does_what_the_adapter_does(problem: Problem, schedule: str) -> None:
    case = Case("blocksparse", problem, variant=SPLIT | {"schedule": schedule}, repeats=1)
    tensors = build(case, "cpu").tensors()
    EmulatedBlockSparse().prepare(case, tensors)
    right = EmulatedBlockSparse().forward(case, tensors)
    connect("emulator")
    text = blocksparse_text(case, "")
    scope = {"torch": torch, "q": tensors.q, "k": tensors.k, "v": tensors.v, "keep": dense_mask(problem)}
    exec("\n".join([*text.imports, text.setup, *text.call]), scope)
    assert torch.equal(scope["o"], right[0]) and torch.equal(scope["lse"], right[1])


def test_the_formulas_of_a_script_round_as_two_calls_do() -> None:
    case = Case("blocksparse", PACKED, variant=SPLIT)
    script = write_script(case, GpuBlockSparse(), None)
    text = script[script.index("def rounding") : script.index("def compare")]
    x = build(case, "cpu").tensors()
    scope = {"torch": torch, "DTYPE": torch.float16, "SCALE": PACKED.scale_value, "EPS": 2**-10, "FP32": 2**-21}
    exec(text, scope)
    given = (x.q, x.k, x.v, x.do, dense_mask(PACKED))
    found, noisy = (scope["packed_formulas"](*given, scope[how]) for how in ("exactly", "rounding"))
    right = reference(PACKED, x.q, x.k, x.v, do=x.do)
    for name in ("o", "dq", "dk", "dv"):
        assert float((getattr(right, name) - found[name]).norm() / found[name].norm()) < 1e-5, name
        off = (noisy[name] - found[name]).norm() / found[name].norm()
        assert 1e-5 < off < 3e-3, name


@pytest.mark.parametrize(
    ("problem", "inputs", "variant", "taken"),
    [
        (PADDED, Inputs(), {}, True),
        (PADDED, Inputs(distribution="integers"), {}, True),
        (PADDED, Inputs(distribution="one_hot"), {}, False),
        (replace(PADDED, backward=False), Inputs(), {}, False),
        (PADDED, Inputs(), {"run": False}, False),
    ],
)
def test_what_can_be_split(problem: Problem, inputs: Inputs, variant: dict, taken: bool) -> None:
    case = Case("blocksparse", problem, inputs, SPLIT | variant)
    assert (refusal(GpuBlockSparse(), case) is None) == taken


def test_sessions_have_them_with_every_layout_schedule_and_number_of_resident_ctas() -> None:
    for target in (GpuBlockSparse(), EmulatedBlockSparse()):
        offered = target.variants_for(replace(PADDED, lengths_k=(300,)))
        split = [one for one in offered if one.get("keys") == "split"]
        assert 0.1 < len(split) / len(offered) < 0.25
        for name in ("lists", "schedule", "slots"):
            assert {one.get(name) for one in split} == {one.get(name) for one in offered}, name
        packed = target.variants_for(replace(PACKED, lengths_k=(300, 140)))
        assert 0.3 < len([one for one in packed if one.get("keys") == "split"]) / len(packed) < 0.45
        alone = target.variants_for(replace(PADDED, lengths_k=(64,)))
        assert not [one for one in alone if one.get("keys") == "split"]
