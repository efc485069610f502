"""From a case to a verdict, in one process: every oracle is asked, and each fake's defect has its own finding."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from judge_tools import FAKES, PLAIN, judge, kinds
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.target import DeviceError, Execution
from fuzz.core.verdict import Finding
from fuzz.judging.execution import FLOOR, MARGIN, deadline
from fuzz.judging.judge import execute, with_index
from fuzz.targets import Rule
from fuzz.targets.registry import load
from oracles.masks import Causal, Full, Intervals, PerHead
from oracles.problem import Bias, Problem


def test_an_honest_target_passes_with_every_option_at_once() -> None:
    problem = replace(
        PLAIN, lengths_q=(20, 7), lengths_k=(33, 0), softcap=5.0, scale=0.3, bias=Bias(heads=True), dtype="bfloat16"
    )
    stores = {"q": Storage("bshd", 8, 1), "k": Storage("bhds", 1), "do": Storage("expanded")}
    verdict = judge("fake.honest", problem, Inputs(7, "adversarial", **stores))
    assert verdict.outcome == "pass", verdict.findings
    assert [worst.tensor for worst in verdict.worst] == ["o", "lse", "dq", "dk", "dv", "dbias"]
    assert 0 < verdict.ratio < 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ignores_mask", "wrong"),
        ("wrong_shape", "wrong_shape"),
        ("drops_a_gradient", "missing_tensor"),
        ("copies_the_reference", "unproven"),
        ("writes_before_an_input", "wrote_outside"),
        ("writes_after_an_input", "wrote_outside"),
        ("writes_before_its_output", "wrote_outside"),
        ("writes_after_its_output", "wrote_outside"),
        ("changes_an_input", "changed_input"),
    ],
)
def test_each_defect_is_a_finding_of_its_kind(name: str, kind: str) -> None:
    verdict = judge(f"fake.{name}")
    assert verdict.outcome == "fail"
    assert kind in kinds(verdict)


@pytest.mark.parametrize(
    ("name", "changes"), [("ignores_softcap", {"softcap": 1.0}), ("ignores_scale", {"scale": 1.0})]
)
def test_a_silently_ignored_option_is_found(name: str, changes: dict) -> None:
    assert judge(f"fake.{name}").outcome == "pass"
    assert kinds(judge(f"fake.{name}", replace(PLAIN, **changes))) == {"wrong"}


def test_a_wrong_dtype_is_a_finding() -> None:
    verdict = judge("fake.wrong_dtype", replace(PLAIN, dtype="float16"))
    assert kinds(verdict) == {"wrong_dtype"}


def test_results_that_differ_between_repeats_are_reported_as_k_of_n() -> None:
    found = [judge("fake.flaky", repeats=30) for _ in range(3)]
    flaky = [verdict for verdict in found if verdict.outcome == "flake"]
    assert flaky, [verdict.outcome for verdict in found]  # each of the three misses with probability 0.9 ** 30 = 4 %
    assert all(0 < verdict.failed < verdict.runs == 30 for verdict in flaky)
    assert all("nondeterministic" in kinds(verdict) for verdict in flaky)


def test_what_a_target_cannot_express_is_rejected_without_a_run() -> None:
    verdict = judge("torch.sdpa.math", replace(PLAIN, softcap=2.0))
    assert (verdict.outcome, verdict.reason) == ("reject", "cannot express: no softcap")


def test_a_declared_refusal_is_a_reject_and_silent_acceptance_a_finding() -> None:
    case = Case("fake.honest", PLAIN)
    target = load("fake.honest", FAKES)
    declared = _with_rules(target, Rule("anything", lambda c: True, "refuses"))
    verdict = execute(case, declared, lambda phase, limit: None)
    assert kinds(verdict) == {"accepted"}
    strided = Case("torch.sdpa.flash", replace(PLAIN, mask=Full()), Inputs(k=Storage("bhds")))
    verdict = execute(strided, load("torch.sdpa.flash"), lambda phase, limit: None)
    assert verdict.outcome == "reject" and verdict.reason.startswith("refused as declared")


@pytest.mark.parametrize("error", [AssertionError("dim must be 64"), KeyError("dim"), SystemExit(1), OSError("no")])
def test_a_declared_refusal_may_be_raised_by_anything(error: BaseException) -> None:
    def refuse(case: Case, tensors: object) -> None:
        raise error

    for method in ("prepare", "run"):
        target = _with_rules(load("fake.honest", FAKES), Rule("anything", lambda c: True, "refuses"))
        setattr(target, method, refuse)
        verdict = execute(Case("fake.honest", PLAIN), target, lambda phase, limit: None)
        assert (verdict.outcome, verdict.reason) == ("reject", "refused as declared: anything")


def test_a_deadlock_that_the_device_saw_is_no_refusal() -> None:
    def deadlock(case: Case, tensors: object) -> None:
        raise DeviceError("hang", (Finding("emulator", "deadlock", "two CTAs wait"),), {})

    target = _with_rules(load("fake.honest", FAKES), Rule("anything", lambda c: True, "refuses"))
    target.run = deadlock
    assert execute(Case("fake.honest", PLAIN), target, lambda phase, limit: None).outcome == "hang"


def test_a_run_without_keys_is_expected_to_take_time() -> None:
    target = load("fake.honest", FAKES)
    long = replace(PLAIN, lengths_q=(100_000,), lengths_k=(0,), mask=Full())
    few = replace(long, lengths_q=(1,))
    assert target.expected_seconds(Case(target.name, long)) > 10 * target.expected_seconds(Case(target.name, few))


def test_raising_on_a_supported_case_is_a_finding_with_the_exceptions_name() -> None:
    verdict = judge("fake.raises")
    assert verdict.outcome == "fail" and verdict.findings[0].oracle == "protocol"
    assert verdict.findings[0].place.pattern in verdict.findings[0].message


def test_phases_are_announced_in_order_with_a_deadline_from_the_work() -> None:
    case, target = Case("fake.honest", PLAIN, repeats=2), load("fake.honest", FAKES)
    phases: list[tuple[str, float]] = []
    execute(case, target, lambda phase, limit: phases.append((phase, limit)))
    order = [phase for phase, _ in phases if phase != "leaks"]  # asked where the process has grown, by whatever it was
    assert order == ["inputs", "reference", "prepare", "run", "judge", "run", "judge", "judge"]
    limits = {limit for phase, limit in phases if phase == "run"}
    assert limits == {deadline(target, case)}
    assert deadline(target, case) == max(FLOOR["host"], MARGIN * target.expected_seconds(case))


def test_rows_without_keys_and_empty_sequences_are_judged() -> None:
    problem = replace(PLAIN, lengths_q=(0, 5), lengths_k=(9, 0))
    assert judge("fake.honest", problem).outcome == "pass"


def _with_rules(target, *rules):
    import copy

    changed = copy.copy(target)
    changed.rules = rules
    return changed


def test_a_kernel_that_prepare_did_not_compile_for_the_case_is_a_finding() -> None:
    target = copy.copy(load("fake.honest", FAKES))
    target.planned = lambda case: frozenset({"attention"})
    ran = ["attention", "attention", "attention_of_20", "nothing to launch; attention"]
    target.run = lambda case, tensors: replace_kernel(type(target).run(target, case, tensors), ran.pop(0))
    case = Case(target.name, PLAIN, Inputs(seed=3), repeats=1, relations=("permuted_heads",))
    verdict = execute(case, target, lambda phase, limit: None)
    assert verdict.outcome == "pass", verdict.findings
    verdict = execute(case, target, lambda phase, limit: None)
    (finding,) = verdict.findings
    assert (finding.oracle, finding.kind) == ("resources", "compiles") and "attention_of_20" in finding.message


def replace_kernel(execution: Execution, name: str) -> Execution:
    return dataclasses.replace(execution, kernel=name)


@pytest.mark.parametrize(("lengths_q", "lengths_k"), [((0, 0), (5, 9)), ((5, 9), (0, 0))])
def test_a_bias_that_is_broadcast_over_what_no_sequence_has_is_judged(lengths_q: tuple, lengths_k: tuple) -> None:
    problem = replace(PLAIN, lengths_q=lengths_q, lengths_k=lengths_k, mask=Full())
    for rows, cols in ((False, False), (True, False), (False, True), (True, True)):
        bias = Bias(batch=True, heads=True, rows=rows, cols=cols, grad=True)
        verdict = judge("fake.honest", replace(problem, bias=bias))
        empty = cols if any(lengths_q) else rows
        judged = {worst.tensor for worst in verdict.worst}
        assert verdict.outcome == "pass" and ("dbias" in judged) is not empty, (rows, cols)


def test_an_infinitely_wrong_answer_survives_json() -> None:
    import msgspec

    from fuzz.core.verdict import Verdict

    verdict = judge("fake.ignores_mask")
    assert verdict.ratio > 1e3
    again = msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict)
    assert again == verdict


def test_equal_terms_of_rows_that_see_some_keys_only_do_not_alarm() -> None:
    """A thousand equal terms added one by one in fp32 err together; that others are masked away makes no difference."""
    mask = PerHead((Causal(), Intervals((((784, 1641), (528, 1505)), ((592, 1105), (40, 1185))))))
    problem = Problem((2,), (2049,), 6, 2, 24, 24, "float32", mask=mask)
    case = Case("torch.sdpa.math", problem, Inputs(4, "constant"), repeats=1)
    found = execute(case, load("torch.sdpa.math"), lambda phase, seconds: None)
    assert found.outcome == "pass" and found.ratio < 0.5, found


def test_a_gpu_is_named_as_its_tensors_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # cuda is another device than cuda:0 to PyTorch: outputs of a large case, which is judged on the GPU, would be taken
    # for those of a small one, and brought to the CPU.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert with_index(torch.device("cuda")) == torch.device("cuda", 1)
    assert with_index(torch.device("cuda:0")) == torch.device("cuda", 0)
    assert with_index(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr("fuzz.judging.judge.oom_retry.give_back", lambda device: None)
    asked: list[torch.device] = []
    monkeypatch.setattr("fuzz.judging.judge.perturb.ready", lambda device: asked.append(device) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        execute(Case("torch.sdpa.math", PLAIN), load("torch.sdpa.math", (), "cuda"), lambda phase, limit: None)
    assert asked == [torch.device("cuda", 1)]
