"""@target: what a function is given follows from its parameters and its declaration, and so does what it is asked."""

from __future__ import annotations

import random
import sys

import pytest
import torch
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs
from fuzz.core.refusal import refusal
from fuzz.core.verdict import Verdict
from fuzz.generate.cases import MEDIUM, _case
from fuzz.judging.judge import execute
from fuzz.targets import Rule, Size, target
from fuzz.targets.registry import load
from fuzz.targets.user_function.function import DECLARED
from fuzz.targets.user_function.function_target import FunctionTarget
from fuzz.tensors.arena import build
from oracles.masks import Causal, Full, Tokens, Window
from oracles.numerics import EXACT
from oracles.problem import Bias, Problem

PLAIN = Problem((9, 9), (9, 9), 4, 2, 16, 16, "float32")
RAGGED = replace(PLAIN, lengths_q=(9, 5), lengths_k=(9, 7))


def declared(function, **options) -> FunctionTarget:
    """The target that `function` is on the host."""
    before = len(DECLARED)
    target("mine", **{"device": "host", "numerics": EXACT, **options})(function)
    (made,) = DECLARED[before:]
    del DECLARED[before:]
    return made


def judged(made: FunctionTarget, problem: Problem, **more) -> Verdict:
    return execute(Case("mine", problem, repeats=1, **more), made, lambda phase, limit: None)


def refused(made: FunctionTarget, problem: Problem) -> str:
    found = refusal(made, Case("mine", problem))
    return found.why if found else ""


def attention(q, k, v, keep, scale, bias=None):
    """Right, in float64; keep broadcasts, and rows without keys are 0."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q.double() @ k.mT * scale + (0 if bias is None else bias)
    weights = torch.softmax(scores.masked_fill(~keep, -1e30), -1) * keep
    return (weights @ v).to(q.dtype)


def seen_by(made: FunctionTarget, problem: Problem, calls: list) -> dict:
    calls.clear()
    tensors = build(Case("mine", problem), "cpu").tensors()
    made.forward(Case("mine", problem), tensors)
    (given,) = calls
    return given


def recording(calls: list):
    def function(q, k, v, mask, causal, key_padding_mask):
        calls.append({"causal": causal, "mask": mask, "key_padding_mask": key_padding_mask})
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1)

    return function


def test_causal_is_true_where_nothing_but_the_causal_mask_hides_a_key() -> None:
    calls: list = []
    made = declared(recording(calls))
    assert seen_by(made, replace(PLAIN, mask=Causal()), calls)["causal"] is True
    assert (
        seen_by(made, replace(PLAIN, mask=Causal("bottom_right")), calls)["causal"] is True
    )  # as many keys as queries
    longer = replace(PLAIN, lengths_k=(12, 12), mask=Causal("bottom_right"))
    assert seen_by(made, longer, calls)["causal"] is False
    assert seen_by(made, replace(RAGGED, mask=Causal()), calls)["causal"] is False
    assert seen_by(made, PLAIN, calls)["causal"] is False
    aligned = declared(recording(calls), causal_align="bottom_right")
    assert seen_by(aligned, longer, calls)["causal"] is True
    assert seen_by(aligned, replace(longer, mask=Causal()), calls)["causal"] is False


def test_a_function_without_a_mask_is_asked_for_the_causal_mask_of_its_alignment_only() -> None:
    made = declared(lambda q, k, v, causal: v, causal_align="bottom_right")
    longer = replace(PLAIN, lengths_k=(12, 12))
    assert not refused(made, replace(longer, mask=Causal("bottom_right")))
    assert "aligned at the bottom right" in refused(made, replace(longer, mask=Causal()))
    assert not refused(made, replace(PLAIN, mask=Causal())) and not refused(made, longer)
    assert "masks other than" in refused(made, replace(PLAIN, mask=Window(2, 2)))
    assert "padded sequences of different lengths" in refused(made, RAGGED)


def test_a_key_padding_mask_stands_for_sequences_of_fewer_keys() -> None:
    def padded(q, k, v, key_padding_mask, causal, scale):
        keep = key_padding_mask
        if causal:
            keep = keep & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return attention(q, k, v, keep, scale)

    made = declared(padded)
    for mask in (Full(), Causal()):
        problem = replace(PLAIN, lengths_k=(9, 4), mask=mask)
        assert not refused(made, problem)
        found = judged(made, problem)
        assert found.outcome == "pass", found.findings
    assert refused(made, RAGGED) == "padded sequences of different numbers of queries"
    assert "aligned at the top left" in refused(made, replace(PLAIN, lengths_k=(9, 4), mask=Causal("bottom_right")))
    wrong = declared(lambda q, k, v, key_padding_mask, scale: attention(q, k, v, key_padding_mask | True, scale))
    assert judged(wrong, replace(PLAIN, lengths_k=(9, 4))).outcome == "fail"


def test_the_problem_declares_masks_and_nothing_else() -> None:
    made = declared(lambda q, k, v, problem: v)
    assert not refused(made, replace(RAGGED, mask=Window(2, 2)))
    assert refused(made, replace(PLAIN, softcap=2.0)) == "no softcap"
    assert refused(made, replace(PLAIN, bias=Bias())) == "no bias"
    assert refused(made, replace(PLAIN, scale=0.5)) == "no scale of one's own"


def test_heads_may_come_after_the_length() -> None:
    def swapped(q, k, v, mask, scale):
        assert q.shape == (2, 9, 4, 16) and k.shape == (2, 9, 2, 16)
        return attention(*(x.transpose(1, 2) for x in (q, k, v)), mask, scale).transpose(1, 2)

    found = judged(declared(swapped, axes="bshd"), replace(PLAIN, mask=Causal()))
    assert found.outcome == "pass", found.findings


def test_rows_without_keys_may_be_undefined() -> None:
    made = declared(lambda q, k, v, mask: v, empty_rows=False)
    empty = Tokens(("110", "000", "011"))
    short = replace(PLAIN, lengths_q=(3, 3), lengths_k=(3, 3), mask=empty)
    assert refused(made, short) == "rows without keys, which are undefined"
    assert refused(made, replace(PLAIN, lengths_k=(9, 0))) and not refused(made, RAGGED)
    assert refused(made, replace(PLAIN, lengths_q=(9, 9), lengths_k=(5, 5), mask=Causal("bottom_right")))


def test_a_bias_may_have_no_gradient_and_one_dtype() -> None:
    made = declared(lambda q, k, v, bias: v, bias_grad=False, bias_dtypes=["input"])
    assert refused(made, replace(PLAIN, bias=Bias())) == "no gradient of the bias"
    assert not refused(made, replace(PLAIN, bias=Bias(grad=False)))
    assert refused(made, replace(PLAIN, bias=Bias(grad=False, dtype="float32"))) == "a bias that is not of dtype input"


def test_head_dims_may_be_a_set_and_are_drawn_from_it() -> None:
    made = declared(lambda q, k, v: v, dims={64, 96}, size=Size(1 << 12, 4))
    assert refused(made, replace(PLAIN, dim=80)) == "head dims other than 64, 96"
    drawn = [_case(random.Random(seed), made, MEDIUM.within(made.session_size), 1) for seed in range(40)]
    assert {case.problem.dim for case in drawn} == {64, 96}
    assert max(case.problem.pairs for case in drawn) <= 1 << 12
    with pytest.raises(ValueError, match="dims: a tuple must be"):
        declared(lambda q, k, v: v, dims=(64, 32, 8))


def test_what_no_draw_may_give_is_not_drawn() -> None:
    made = declared(lambda q, k, v, key_padding_mask, bias: v, bias_dtypes=["float32"], bias_grad=False)
    drawn = [_case(random.Random(seed), made, MEDIUM, 1).problem for seed in range(120)]
    assert all(len(set(p.lengths_q)) == 1 for p in drawn) and any(len(set(p.lengths_k)) > 1 for p in drawn)
    assert {p.bias.dtype for p in drawn if p.bias} == {"float32"}


def test_a_speed_shortens_the_first_deadlines() -> None:
    case = Case("mine", PLAIN)
    slow, fast = declared(lambda q, k, v: v), declared(lambda q, k, v: v, speed=1e7)
    assert slow.expected_seconds(case) > 0.3 and fast.expected_seconds(case) < 0.05


def test_a_rule_of_ones_own_is_a_refusal() -> None:
    odd = Rule("an odd head dim", lambda case: case.problem.dim % 2 == 1, "refuses")

    def even(q, k, v, mask, scale):
        assert q.shape[-1] % 2 == 0
        return attention(q, k, v, mask, scale)

    made = declared(even, rules=[odd])
    found = judged(made, replace(PLAIN, dim=7))
    assert (found.outcome, found.reason) == ("reject", "refused as declared: an odd head dim")
    assert judged(made, PLAIN).outcome == "pass"


def gated(q, k, v, scale, gate):
    """Attention without a softmax, whose heads are gated: not attention."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.sigmoid(gate)[:, None, None] * ((q @ k.mT * scale) @ v)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_operation_that_is_not_attention_has_tensors_and_a_reference_of_its_own(dtype: str) -> None:
    options = {"extra": {"gate": ("heads_q",)}, "reference": gated}

    def kernel(q, k, v, scale, gate):
        return gated(*(x.float() for x in (q, k, v)), scale, gate.float()).to(q.dtype)

    def wrong(q, k, v, scale, gate):
        return kernel(q, k, v, scale, gate.flip(0))

    def slightly_wrong(q, k, v, scale, gate):
        return kernel(q, k[:, :, :-1], v[:, :, :-1], scale, gate)

    problem = replace(PLAIN, dtype=dtype, lengths_q=(40, 40), lengths_k=(50, 50))
    for distribution in ("normal", "adversarial", "one_hot"):
        inputs = Inputs(4, distribution)
        found = judged(declared(kernel, **options), problem, inputs=inputs)
        assert found.outcome == "pass", (distribution, found.findings)
        for mistake in (wrong, slightly_wrong):
            found = judged(declared(mistake, **options), problem, inputs=inputs)
            assert found.outcome == "fail", distribution
            assert {"o", "dq"} <= {f.tensor for f in found.findings}


def test_an_axis_of_an_extra_tensor_that_does_not_exist_is_named() -> None:
    made = declared(gated, extra={"gate": ("head",)}, reference=gated)
    with pytest.raises(ValueError, match=r"extra: axis 'head' of 'gate'"):
        made.forward(Case("mine", PLAIN), build(Case("mine", PLAIN), "cpu").tensors())


def test_what_a_users_file_puts_on_the_search_path_stays_there(tmp_path) -> None:
    beside = tmp_path / "published"
    beside.mkdir()
    file = tmp_path / "adapter.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(beside)!r})\nfrom fuzz.targets import target\n"
        '@target("path")\ndef path(q, k, v, mask, scale):\n    import late\n    return late.answer(v)\n'
    )
    (beside / "late.py").write_text("def answer(v):\n    return v\n")
    before = list(sys.path)
    try:
        load("path", (str(file),))
        assert sys.path == [str(beside), *before]
    finally:
        sys.path[:] = before


def test_a_function_without_cross_attention_is_refused_other_keys_than_queries():
    made = declared(lambda q, k, v, causal: v, cross=False)
    assert refused(made, PLAIN) == ""
    assert refused(made, replace(PLAIN, lengths_k=(7, 7))) == "sequences of fewer or more keys than queries"
