"""execute: a Case goes in, a Verdict comes out. Makes the inputs and the reference, runs the kernel, asks every oracle.

Runs in the child process that owns the device (fuzz/runner). How the kernel is run is fuzz/judging/execution.py, how
findings become a Verdict fuzz/judging/verdict_builder.py, what an exception becomes fuzz/judging/raised.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from msgspec.structs import replace

import oracles.reference.numba_loops  # noqa: F401 (where nothing is compiled yet it takes seconds, which no case is to pay)
from fuzz.core import surface
from fuzz.core.case import CODED, Case, attention_of
from fuzz.core.refusal import refusal
from fuzz.core.target import DeviceError, Execution, Target, Tensors
from fuzz.core.verdict import Finding, FollowUpFailure, Verdict
from fuzz.judging import oom_retry, perturb
from fuzz.judging.cta_subset import judge_cta_subset
from fuzz.judging.execution import (
    HARNESS,
    INPUTS_LIMIT,
    PREPARE_LIMIT,
    Clock,
    Enter,
    Raised,
    Runs,
    call,
    deadline,
    rehearse,
    run_all,
)
from fuzz.judging.follow_up import FollowUp, compare_outputs, failure_of, follow_ups_of
from fuzz.judging.leaks import RUNS, Watch
from fuzz.judging.operations import OPERATIONS, operation_of
from fuzz.judging.own_reference import own_budget
from fuzz.judging.proposed_numerics import propose
from fuzz.judging.raised import context_lost, raised_verdict
from fuzz.judging.verdict_builder import conclude, finite, plan_findings, proof_findings, shape_findings
from fuzz.tensors.arena import Arena, build
from fuzz.tensors.guard_bands import keep_pages, poisoned_malloc
from oracles import accuracy, determinism, exact
from oracles.error_budget.budget import Budget
from oracles.metamorphic.relations import BITS
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import shapes

WORK_ON_CPU = 8 << 20  # pairs × head dim up to which a case is judged on the CPU, wherever its kernel runs
ELEMENTS_ON_CPU = 1 << 20  # and elements of its largest tensor


@dataclass(frozen=True)
class _Job:
    """A case, the target and the device that it runs on, and the clock of its phases."""

    case: Case
    target: Target
    device: torch.device
    clock: Clock


def execute(case: Case, target: Target, enter: Enter, device: torch.device | str | None = None) -> Verdict:
    """Runs one case to its Verdict on `device` (by default cpu or cuda, by the target), once more where a GPU's memory
    ran out. Raises only what is our own fault."""
    keep_pages()
    refused = refusal(target, case)
    if refused is not None and refused.kind == "cannot":
        return Verdict(case.id, "reject", reason=f"cannot express: {refused.why}")
    where = with_index(torch.device(device or ("cuda" if target.device == "cuda" else "cpu")))
    job = _Job(case, target, where, Clock(enter))
    refuses = "" if refused is None else refused.why
    try:
        if where.type == "cuda":
            job.clock.start("inputs", INPUTS_LIMIT)
        perturb.ready(where)
        rehearse(where)
        with surface.recording() as calls:
            verdict = _with_retry(job, refuses) if where.type == "cuda" else _attempt(job, refuses)
        return replace(verdict, calls=tuple(calls))
    finally:
        job.clock.stop()
        oom_retry.give_back(where)


def with_index(device: torch.device) -> torch.device:
    """The device as its tensors name it: cuda:0 for cuda, which PyTorch takes for another device than cuda:0."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def oracle_device(case: Case, where: torch.device) -> torch.device:
    """Device on which a case's inputs are made and its outputs judged: with the kernel, or on the CPU when that is
    quicker.

    The oracles are about 800 small operations. With 16 processes on an H100 they took 45 ms there whatever the size,
    most of it waiting for a turn; on one CPU core they take 5 ms at a work of 1 << 20 and 20 ms at 8 << 20.
    """
    p = case.problem
    work = p.pairs * max(p.dim, p.dim_v)
    elements = max(math.prod(shape) for shape in shapes(p).values())
    return torch.device("cpu") if work <= WORK_ON_CPU and elements <= ELEMENTS_ON_CPU else where


def _with_retry(job: _Job, refuses: str) -> Verdict:
    """The verdict of a case on a GPU that several processes share, whose memory may have run out by their fault."""
    with suppress(torch.OutOfMemoryError):
        verdict = _attempt(job, refuses)
        if not oom_retry.ran_out(verdict):
            return verdict
    job.clock.start("inputs", INPUTS_LIMIT + oom_retry.PATIENCE)
    oom_retry.wait_for_memory(job.device)
    verdict = _attempt(job, refuses)
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, oom_retry.RETRIED))))


def _attempt(job: _Job, refuses: str) -> Verdict:
    """The verdict of one attempt. refuses: why the target declares to refuse the case; "": it takes it."""
    try:
        if job.target.ctas_of(job.case):
            with poisoned_malloc():
                return judge_cta_subset(job.case, job.target, job.clock)
        job.clock.start("inputs", INPUTS_LIMIT)
        pristine = build(job.case, oracle_device(job.case, job.device))
        if refuses:
            return _expect_refusal(job, pristine.to(job.device), refuses)
        watch = Watch.start(job.device, 0 if pristine.buffer.is_cuda else pristine.buffer.nbytes)
        verdict = _judge(job, pristine)
        if verdict.outcome == "pass" and verdict.kernel and watch.suspects():
            return _look_for_leaks(job, pristine.to(job.device), watch, verdict)
        return verdict
    except Raised as raised:
        return raised_verdict(job.case, raised, job.clock)


def _expect_refusal(job: _Job, pristine: Arena, why: str) -> Verdict:
    """The target declares that it raises here, whatever it raises; silent acceptance is a finding."""
    case, target, clock = job.case, job.target, job.clock
    clock.start("prepare", PREPARE_LIMIT)
    try:
        target.prepare(case, pristine.tensors())
        clock.start("run", deadline(target, case))
        target.run(case, pristine.tensors())
        if pristine.buffer.is_cuda:
            torch.cuda.synchronize(pristine.buffer.device)
    except (Exception, SystemExit) as error:
        if context_lost(error) or isinstance(error, DeviceError):
            return raised_verdict(case, Raised(error, []), clock)
        return conclude(case, [], clock, [], outcome="reject", reason=f"refused as declared: {why}")
    message = f"the target ran a case that it declares to refuse, and raised nothing: {why}"
    return conclude(case, [Finding("protocol", "accepted", message)], clock, [])


def _look_for_leaks(job: _Job, pristine: Arena, watch: Watch, verdict: Verdict) -> Verdict:
    """The verdict of a case that passes, after which the process holds more than before it: further runs say what
    leaks."""
    # They have run before; collecting garbage is slow.
    job.clock.start("leaks", INPUTS_LIMIT + deadline(job.target, job.case, RUNS))
    found = call(lambda: watch.leaks(lambda: job.target.run(job.case, pristine.tensors())))
    job.clock.stop()
    if not found:
        return verdict
    return replace(verdict, outcome="fail", findings=tuple(found), seconds=job.clock.rounded())


def _judge(job: _Job, pristine: Arena) -> Verdict:
    """The verdict of a case that the target takes."""
    case, target, clock = job.case, job.target, job.clock
    predicted = _inspect(job)
    if any(f.oracle == "block_lists" for f in predicted):  # no kernel survives them
        return conclude(case, predicted, clock, [])
    if not (target.executable and target.runs(case)):
        return _metadata_only(job, predicted, pristine)
    budget = _budget_of(job, pristine)
    seal = budget.sealed()
    follow_ups = _follow_ups(job, pristine)
    runs = run_all(case, target, pristine, job.device, clock, follow_ups)
    clock.start("judge", INPUTS_LIMIT)
    findings = runs.memory_findings((seal != budget.sealed()).any())
    if any(f.place.pattern == HARNESS for f in findings):
        return conclude(case, findings, clock, runs.executions)
    findings += _contract_findings(job, runs, follow_ups)
    executions, later = runs.executions[: case.repeats], runs.executions[case.repeats :]
    if any(f.oracle == "protocol" for f in findings):
        return conclude(case, findings, clock, executions)
    return _judge_numbers(
        job, pristine, budget, executions, list(zip(follow_ups, later, strict=True)), findings, predicted
    )


def _inspect(job: _Job) -> list[Finding]:
    """Findings about a case's metadata, without running anything."""
    if not job.target.inspects:
        return []
    job.clock.start("inspect", INPUTS_LIMIT)
    return call(partial(job.target.inspect, job.case))


def _metadata_only(job: _Job, predicted: list[Finding], pristine: Arena) -> Verdict:
    """The verdict of a target without a device here, which is compiled and no more; or of a case that is not run."""
    hang, done, why = any(f.kind == "hang" for f in predicted), "", "the case asks for no run"
    if job.target.runs(job.case):
        job.clock.start("prepare", PREPARE_LIMIT)
        call(lambda: job.target.prepare(job.case, pristine.tensors()))
        done, why = "compiled; ", "no device for it here"
    reason = "" if predicted else f"{done}block lists and semaphore order hold; not run: {why}"
    return conclude(job.case, predicted, job.clock, [], outcome="hang" if hang else None, reason=reason)


def _budget_of(job: _Job, pristine: Arena) -> Budget:
    """The case's error budget, with its reference."""
    case, given, clock = job.case, pristine.tensors(), job.clock
    clock.start("reference", INPUTS_LIMIT + case.problem.pairs * 1e-5)
    if not job.target.attention and (own := call(partial(own_budget, case, job.target, given))) is not None:
        clock.book("judge")
        return own
    numerics, padding = job.target.numerics_of(case), job.target.clears_padding
    return operation_of(case).budget(case.problem, given, numerics, padding, clock.book)


def _follow_ups(job: _Job, pristine: Arena) -> list[FollowUp]:
    """The follow-up cases of the case's relations, with inputs for each."""
    if not job.case.relations:
        return []
    job.clock.start("inputs", INPUTS_LIMIT)
    return follow_ups_of(job.case, job.target, pristine)


def _contract_findings(job: _Job, runs: Runs, follow_ups: Sequence[FollowUp]) -> list[Finding]:
    """Findings of the target's contract, before any number is looked at: the outputs' shapes, the proof of what ran,
    kernels that were compiled too late."""
    executions, later = runs.executions[: job.case.repeats], runs.executions[job.case.repeats :]
    findings = shape_findings(job.case, executions[0].outputs)
    for follow_up, execution in zip(follow_ups, later, strict=True):
        wrong = shape_findings(follow_up.case, execution.outputs)
        findings += [replace(f, message=f"{follow_up.title}: {f.message}") for f in wrong]
    findings += proof_findings(job.target, runs.executions)
    findings += plan_findings(job.target, job.case, executions[0])
    for follow_up, execution in zip(follow_ups, later, strict=True):
        findings += plan_findings(job.target, follow_up.case, execution)
    return findings


def _judge_numbers(
    job: _Job,
    pristine: Arena,
    budget: Budget,
    executions: list[Execution],
    later: list[tuple[FollowUp, Execution]],
    findings: list[Finding],
    predicted: list[Finding],
) -> Verdict:
    """The verdict of runs that keep the contract: accuracy, repeats, exact inputs; then, where all is right, the
    follow-up cases. `findings` are those so far, `predicted` those without a run."""
    case, target, given = job.case, job.target, pristine.tensors()
    may_differ, numerics, operation = target.may_differ(case), target.numerics_of(case), operation_of(case)
    chosen, freeze = operation.choices(case.problem, given, [e.outputs for e in executions])
    if freeze:
        budget = operation.frozen(budget, given, executions[0].outputs, numerics)
    unstable = [f for f in chosen if f.oracle == "determinism"] + determinism.compare([e.outputs for e in executions])
    judged = executions if unstable else executions[:1]
    judgements = [accuracy.judge_with(budget, e.outputs) for e in judged]
    bad = [j for j in judgements if j.findings]
    worst = max(judgements, key=lambda j: (len(j.findings) > 0, j.ratio))
    unstable = [f for f in unstable if target.deterministic and f.tensor not in may_differ]
    exactly = target.attention and operation.exact
    findings = [
        *findings,
        *(f for f in chosen if f.oracle != "determinism"),
        *worst.findings,
        *(_exact(case, numerics, given, judged[0].outputs, budget) if exactly else ()),
        *unstable,
        *predicted,
    ]
    failures: list[FollowUpFailure] = []
    if not findings:
        under = partial(_budget_under, numerics, given, budget)
        findings, failures = _judge_follow_ups(job, executions[0].outputs, later, under)
    flaky = (len(bad), len(judged)) if 0 < len(bad) < len(judged) else (0, 0)
    evidence = {}
    if exactly and not any(flaky):
        again = partial(_judge_under, case, target, given, judged[0].outputs, budget)
        findings, changes = propose(findings, worst.ratio, numerics, again)
        evidence = {"proposed_numerics": changes} if changes else {}
    return conclude(
        case, findings, job.clock, executions, judgement=worst, flaky=flaky, evidence=evidence, follow_ups=failures
    )


def _judge_under(
    case: Case, target: Target, given: Tensors, outputs: Outputs, budget: Budget, numerics: Numerics
) -> list[Finding]:
    """Findings of outputs whose kernel had declared other `numerics`."""
    changed = operation_of(case).under(budget, given, numerics, target.clears_padding)
    return [*accuracy.judge_with(changed, outputs).findings, *_exact(case, numerics, given, outputs, budget)]


def _judge_follow_ups(
    job: _Job,
    source_outputs: Outputs,
    later: list[tuple[FollowUp, Execution]],
    budget: Callable[[Numerics], Budget],
) -> tuple[list[Finding], list[FollowUpFailure]]:
    """Findings of the follow-up cases of a case that is right itself, and those of them that are wrong by themselves.

    Outputs that differ from the source's, but are right for their own problem, are wrong only where equality is
    bitwise: the change was not exact then, as where V doubled makes a float16 gradient overflow on its way.
    """
    findings: list[Finding] = []
    failures = []
    for follow_up, execution in later:
        broken = compare_outputs(follow_up, job.target, job.case, source_outputs, execution.outputs, budget)
        broken += _chosen_wrong(follow_up, execution.outputs)
        if not broken:
            continue
        alone = _judge_alone(job.target, follow_up, execution.outputs)
        if alone:
            failures.append(failure_of(follow_up, [finite(f) for f in alone]))
        findings += broken if alone else [f for f in broken if f.place.pattern == BITS]
    return findings, failures


def _chosen_wrong(follow_up: FollowUp, outputs: Outputs) -> list[Finding]:
    """Findings about what a follow-up case's outputs chose."""
    operation, given = operation_of(follow_up.case), follow_up.pristine.tensors()
    chosen, _ = operation.choices(follow_up.case.problem, given, [outputs])
    return [replace(f, message=f"{follow_up.title}: {f.message}") for f in chosen]


def _judge_alone(target: Target, follow_up: FollowUp, outputs: Outputs) -> tuple[Finding, ...]:
    """Findings of a follow-up case's outputs, judged as those of a case of its own."""
    problem, given = follow_up.case.problem, follow_up.pristine.tensors()
    operation, numerics = operation_of(follow_up.case), follow_up.numerics(target)
    chosen, freeze = operation.choices(problem, given, [outputs])
    budget = operation.budget(problem, given, numerics, target.clears_padding, lambda phase: None)
    if freeze:
        budget = operation.frozen(budget, given, outputs, numerics)
    return (*chosen, *accuracy.judge_with(budget, outputs).findings)


def _exact(case: Case, numerics: Numerics, given: Tensors, outputs: Outputs, budget: Budget) -> list[Finding]:
    """Findings of inputs that are made so that the outputs must be right to the bit."""
    if case.inputs.distribution not in CODED:
        return []
    q, k, v = given.q, given.k, given.v
    right = budget.reference if budget.want.dtype == torch.float64 else None
    return exact.judge(
        attention_of(case), q, k, v, outputs, bias=given.bias, do=given.do, numerics=numerics, right=right
    )


def _budget_under(declared: Numerics, given: Tensors, budget: Budget, changed: Numerics) -> Budget:
    """The budget of a follow-up case: `budget`, that of the source's `declared` numerics, or that of its own. Its
    padding is its own."""
    if changed == declared and not budget.padding:
        return budget
    return OPERATIONS[budget.problem.op].under(budget, given, changed, False)
