"""run_case, from the inside: makes the inputs and the reference, runs the kernel, asks every oracle, gives a Verdict.

Runs in the child process that owns the device (fuzz/runner). How the kernel is run is fuzz/judging/execution.py, how
findings become a Verdict fuzz/judging/verdict_builder.py.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from fuzz.core.case import CODED, Case
from fuzz.core.refusal import refusal
from fuzz.core.support import Refusal
from fuzz.core.target import DeviceError, Target, Tensors
from fuzz.core.verdict import Finding, Location, Verdict
from fuzz.judging import oom_retry, perturb
from fuzz.judging.cta_subset import judge_part
from fuzz.judging.execution import INPUTS_LIMIT, PREPARE_LIMIT, Clock, Enter, Raised, call, deadline, rehearse, run_all
from fuzz.judging.follow_up import Asked, asked, tell
from fuzz.judging.follow_up import judge as judge_related
from fuzz.judging.leaks import RUNS, Watch
from fuzz.judging.verdict_builder import conclude, finite, plan_findings, proof_findings, shape_findings
from fuzz.tensors.arena import Arena, build
from fuzz.tensors.guard_bands import keep_pages, poisoned_malloc
from oracles import accuracy, determinism, exact
from oracles.error_budget.budget import Budget
from oracles.error_budget.same_precision import Same, same_precision
from oracles.metamorphic.relations import BITS
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import Problem, shapes
from oracles.reference.attention import reference

WORK_ON_CPU = 8 << 20  # pairs × head dim up to which a case is judged on the CPU, wherever its kernel runs
ELEMENTS_ON_CPU = 1 << 20  # and elements of its largest tensor


def execute(case: Case, target: Target, enter: Enter, device: torch.device | str | None = None) -> Verdict:
    """Runs one case to its Verdict on `device` (by default cpu or cuda, by the target), once more where a GPU's memory
    ran out. Raises only what is our own fault."""
    clock = Clock(enter)
    where = torch.device(device or ("cuda" if target.device == "cuda" else "cpu"))
    keep_pages()
    refused = refusal(target, case)
    if refused is not None and refused.kind == "cannot":
        return Verdict(case.id, "reject", reason=f"cannot express: {refused.why}")
    try:
        if where.type == "cuda":
            clock.start("inputs", INPUTS_LIMIT)
        perturb.ready(where)
        rehearse(where)
        if where.type != "cuda":
            return _execute(case, target, clock, where, refused)
        with suppress(torch.OutOfMemoryError):
            verdict = _execute(case, target, clock, where, refused)
            if not oom_retry.ran_out(verdict):
                return verdict
        clock.start("inputs", INPUTS_LIMIT + oom_retry.PATIENCE)
        oom_retry.wait_for_memory(where)
        verdict = _execute(case, target, clock, where, refused)
        return replace(verdict, reason="; ".join(filter(None, (verdict.reason, oom_retry.ASKED_AGAIN))))
    finally:
        clock.stop()
        oom_retry.give_back(where)


def _execute(case: Case, target: Target, clock: Clock, where: torch.device, refused: Refusal | None) -> Verdict:
    try:
        if target.ctas_of(case):
            with poisoned_malloc():
                return judge_part(case, target, clock)
        clock.start("inputs", INPUTS_LIMIT)
        pristine = build(case, oracle_device(case, where))
        if refused is not None:
            return _expect_refusal(case, target, pristine.to(where), clock, refused.why)
        watch = Watch.start(where, 0 if pristine.buffer.is_cuda else pristine.buffer.nbytes)
        verdict = _judge(case, target, pristine, where, clock)
        if verdict.outcome == "pass" and verdict.kernel and watch.suspects():
            verdict = _leaking(case, target, pristine.to(where), watch, clock, verdict)
        return verdict
    except Raised as raised:
        return _raised(case, raised.error, clock, raised.warned, raised.asked)


def _leaking(case: Case, target: Target, pristine: Arena, watch: Watch, clock: Clock, verdict: Verdict) -> Verdict:
    """The verdict of a case that passes, after which something is more than before it: further runs say what leaks."""
    # They have run before; collecting garbage is slow.
    clock.start("leaks", INPUTS_LIMIT + deadline(target, case, RUNS))
    found = call(lambda: watch.leaks(lambda: target.run(case, pristine.tensors())))
    clock.stop()
    if not found:
        return verdict
    return replace(verdict, outcome="fail", findings=tuple(found), seconds=clock.rounded())


def oracle_device(case: Case, where: torch.device) -> torch.device:
    """Where a case's inputs are made and its answers judged: with the kernel, or on the CPU when that is quicker.

    The oracles are about 800 small operations. With 16 processes on an H100 they took 45 ms there whatever the size,
    most of it waiting for a turn; on one CPU core they take 5 ms at a work of 1 << 20 and 20 ms at 8 << 20.
    """
    p = case.problem
    work = p.pairs * max(p.dim, p.dim_v)
    elements = max(math.prod(shape) for shape in shapes(p).values())
    return torch.device("cpu") if work <= WORK_ON_CPU and elements <= ELEMENTS_ON_CPU else where


def _judge(case: Case, target: Target, pristine: Arena, where: torch.device, clock: Clock) -> Verdict:
    problem, given = case.problem, pristine.tensors()
    foreseen = _inspected(case, target, clock)
    if any(f.oracle == "block_lists" for f in foreseen):  # no kernel survives them
        return conclude(case, foreseen, clock, [])
    if not target.executable:
        return _not_run(case, target, foreseen, pristine, clock)
    clock.start("reference", INPUTS_LIMIT + case.problem.pairs * 1e-5)
    right = reference(problem, given.q, given.k, given.v, bias=given.bias, do=given.do)
    clock.book("same_precision")
    same = _same(problem, given, target.numerics)
    clock.book("judge")
    clears = target.clears_padding  # rows of padding hold what rows without keys do
    budget = Budget.of(problem, right, same, padding=clears)
    seal = budget.sealed()
    variations = _variations(case, target, pristine, clock)
    runs = run_all(case, target, pristine.to(where), pristine.buffer.device, clock, variations)
    clock.start("judge", INPUTS_LIMIT)
    findings = runs.memory_findings((seal != budget.sealed()).any())
    executions, related = runs.executions[: case.repeats], runs.executions[case.repeats :]
    findings += shape_findings(problem, executions[0].outputs)
    for of, execution in zip(variations, related, strict=True):
        wrong = shape_findings(of.case.problem, execution.outputs)
        findings += [replace(f, message=f"{of.relation.title}: {f.message}") for f in wrong]
    findings += proof_findings(target, runs.executions)
    findings += plan_findings(target, case, executions[0])
    for of, execution in zip(variations, related, strict=True):
        findings += plan_findings(target, of.case, execution)
    if any(f.oracle == "protocol" for f in findings):
        return conclude(case, findings, clock, executions)
    unstable = determinism.compare([e.outputs for e in executions])
    judged = executions if unstable else executions[:1]
    judgements = [accuracy.judge_with(budget, e.outputs) for e in judged]
    bad = [j for j in judgements if j.findings]
    worst = max(judgements, key=lambda j: (len(j.findings) > 0, j.ratio))
    may_differ = target.may_differ(case)
    unstable = [f for f in unstable if target.deterministic and f.tensor not in may_differ]
    findings += [*worst.findings, *_exact(case, target, given, judged[0].outputs), *unstable, *foreseen]
    evidence: dict[str, Any] = {}
    if not findings:
        under = partial(_budget, target, given, budget)
        findings, evidence = _related(case, target, variations, [e.outputs for e in (executions[0], *related)], under)
    flaky = (len(bad), len(judged)) if 0 < len(bad) < len(judged) else (0, 0)
    return conclude(case, findings, clock, executions, judgement=worst, flaky=flaky, evidence=evidence)


def _variations(case: Case, target: Target, pristine: Arena, clock: Clock) -> list[Asked]:
    """How the case is asked otherwise, with inputs for each."""
    if not case.relations:
        return []
    clock.start("inputs", INPUTS_LIMIT)
    return asked(case, target, pristine)


def _related(
    case: Case,
    target: Target,
    variations: Sequence[Asked],
    outputs: Sequence[Outputs],
    budget: Callable[[Callable[[Numerics], Numerics]], Budget],
) -> tuple[list[Finding], dict[str, Any]]:
    """What is wrong with the variations of a case that is right itself, and as evidence what is wrong with them as
    questions of their own. `outputs` are the first ones and those of each variation.

    An answer that differs, but is right for its own question, is wrong only where bits are owed: the change was not
    exact then, as where V doubled makes a float16 gradient overflow on its way.
    """
    found, alone = [], []
    first, *others = outputs
    for of, theirs in zip(variations, others, strict=True):
        broken = judge_related(of, target, case, first, theirs, budget)
        if not broken:
            continue
        itself = _by_itself(target, of, theirs)
        if itself:
            alone.append((of, [finite(f) for f in itself]))
        found += broken if itself else [f for f in broken if f.place.pattern == BITS]
    return found, tell(alone)


def _by_itself(target: Target, of: Asked, outputs: Outputs) -> tuple[Finding, ...]:
    """What is wrong with a variation's answers, judged as those of a case."""
    problem, given = of.case.problem, of.pristine.tensors()
    right = reference(problem, given.q, given.k, given.v, bias=given.bias, do=given.do)
    same = _same(problem, given, of.variation.numerics(target.numerics))
    clears = target.clears_padding
    return accuracy.judge_with(Budget.of(problem, right, same, padding=clears), outputs).findings


def _same(problem: Problem, given: Tensors, numerics: Numerics) -> Same:
    return same_precision(problem, given.q, given.k, given.v, bias=given.bias, do=given.do, numerics=numerics)


def _exact(case: Case, target: Target, given: Tensors, outputs: Outputs) -> list[Finding]:
    """What must be right to the bit, for inputs that are made for it."""
    if case.inputs.distribution not in CODED:
        return []
    q, k, v = given.q, given.k, given.v
    return exact.judge(case.problem, q, k, v, outputs, bias=given.bias, do=given.do, numerics=target.numerics)


def _budget(target: Target, given: Tensors, budget: Budget, change: Callable[[Numerics], Numerics]) -> Budget:
    """What a variation is judged by: `budget`, or that of the target's numerics as a relation changes them. Padding is
    the variation's own."""
    changed = change(target.numerics)
    if changed == target.numerics and not budget.padding:
        return budget
    return Budget.of(budget.problem, budget.reference, _same(budget.problem, given, changed))


def _inspected(case: Case, target: Target, clock: Clock) -> list[Finding]:
    """What can be said of a case's metadata without running anything."""
    if not target.inspects:
        return []
    clock.start("inspect", INPUTS_LIMIT)
    return call(partial(target.inspect, case))


def _not_run(case: Case, target: Target, foreseen: list[Finding], pristine: Arena, clock: Clock) -> Verdict:
    """The verdict of a target that has no device here: it is compiled, and that is all."""
    clock.start("prepare", PREPARE_LIMIT)
    call(lambda: target.prepare(case, pristine.tensors()))
    hang = any(f.kind == "hang" for f in foreseen)
    reason = "" if foreseen else "compiled; metadata and protocol hold; not run: no device for it here"
    return conclude(case, foreseen, clock, [], outcome="hang" if hang else None, reason=reason)


def _expect_refusal(case: Case, target: Target, pristine: Arena, clock: Clock, why: str) -> Verdict:
    """The target declares that it raises here; silent acceptance is a finding."""
    clock.start("prepare", PREPARE_LIMIT)
    try:
        target.prepare(case, pristine.tensors())
        clock.start("run", deadline(target, case))
        target.run(case, pristine.tensors())
        if pristine.buffer.is_cuda:
            torch.cuda.synchronize(pristine.buffer.device)
    except (ValueError, NotImplementedError, TypeError, RuntimeError) as error:
        if _context_lost(error):
            return _raised(case, error, clock)
        return conclude(case, [], clock, [], outcome="reject", reason=f"refused as declared: {why}")
    message = f"accepted what it declares to refuse: {why}"
    return conclude(case, [Finding("protocol", "accepted", message)], clock, [])


def _raised(case: Case, error: BaseException, clock: Clock, warned: Sequence[str] = (), asked: str = "") -> Verdict:
    """The kernel raised on a case that it declares to support, or on that case `asked` otherwise."""
    if isinstance(error, DeviceError):
        reason = "" if error.findings else "; ".join(map(str, error.evidence.values()))[:300]
        return conclude(
            case, list(error.findings), clock, [], outcome=error.outcome, evidence=error.evidence, reason=reason
        )
    name, text = type(error).__name__, str(error).strip().split("\n")[0][:300]
    evidence: dict[str, Any] = {"traceback": "".join(traceback.format_exception(error))[-4000:]}
    if warned:
        evidence["warnings"] = list(dict.fromkeys(warned))[-10:]
    if _context_lost(error):
        evidence["context_lost"] = True
        finding = Finding("runner", "crash", f"CUDA error, the context is lost: {text}", place=Location(pattern=name))
        return conclude(case, [finding], clock, [], outcome="crash", evidence=evidence)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
        with suppress(Exception):
            torch.cuda.empty_cache()
        finding = Finding("runner", "out_of_memory", f"{name}: {text}")
        return conclude(case, [finding], clock, [], outcome="crash", evidence=evidence)
    kind = "refused" if isinstance(error, (ValueError, NotImplementedError)) else "raised"
    said = f"{asked}: raised {name}: {text}" if asked else f"raised {name}: {text}"
    finding = Finding("protocol", kind, said, place=Location(pattern=name))
    return conclude(case, [finding], clock, [], evidence=evidence)


def _context_lost(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError) and "CUDA error" in text and "out of memory" not in text
