"""run_case, from the inside: makes the inputs and the reference, runs the kernel, asks every oracle, gives a Verdict.

Runs in the child process that owns the device (fuzz/runner). Each phase is announced with the seconds that it may take,
so the client's clock starts when the phase does: compiling never counts against a run's deadline.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace as replace_struct
from torch import Tensor

from fuzz.arena import Arena, build
from fuzz.case import Case
from fuzz.collect import to_cpu
from fuzz.disturb import disturbed
from fuzz.exact_values import STYLES
from fuzz.memory import POISON, Guarded, poison_cuda, poison_malloc
from fuzz.related import Asked, asked
from fuzz.related import judge as judge_related
from fuzz.resources import RUNS, Watch
from fuzz.targets.target import DeviceError, Execution, Inspected, Target, Tensors, Varying, refusal
from fuzz.verdict import Finding, Outcome, Place, Verdict, Worst
from oracles import accuracy, determinism, exact
from oracles.answers import Answers
from oracles.numerics import Numerics
from oracles.problem import Problem, shapes
from oracles.reference import reference
from oracles.same_precision import Same, same_precision

Enter = Callable[[str, float], None]

INPUTS_LIMIT = 120.0
PREPARE_LIMIT = 600.0
FLOOR = {"host": 0.5, "cuda": 2.0, "emulator": 30.0}
MARGIN = 10.0
WORK_ON_CPU = 8 << 20  # pairs × head dim up to which a case is judged on the CPU, wherever its kernel runs
ELEMENTS_ON_CPU = 1 << 20  # and elements of its largest tensor
INFINITELY = 1e99  # error / budget of what no budget allows at all, such as NaN or a weight where there must be none
_GRADIENTS = ("dq", "dk", "dv", "dbias")


@dataclass
class Clock:
    """Seconds by phase, and the announcement of each."""

    enter: Enter
    seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = ""
    _since: float = 0.0

    def start(self, phase: str, limit: float) -> None:
        """Ends the phase before and begins `phase`."""
        self.stop()
        self._phase, self._since = phase, time.perf_counter()
        self.enter(phase, limit)

    def stop(self) -> None:
        """Books the time of the phase that is running."""
        if self._phase:
            spent = time.perf_counter() - self._since
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + spent
            self._phase = ""

    def rounded(self) -> dict[str, float]:
        """Seconds by phase, to the microsecond."""
        return {phase: round(spent, 6) for phase, spent in self.seconds.items()}


class _Raised(Exception):
    """The kernel raised; carries the exception."""

    def __init__(self, error: BaseException, warned: list[str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.warned = warned
        self.asked = ""  # with what the case was asked otherwise, where that run raised


def execute(case: Case, target: Target, enter: Enter, device: torch.device | str | None = None) -> Verdict:
    """Runs one case to its Verdict on `device` (by default cpu or cuda, by the target). Raises only what is our own
    fault."""
    clock = Clock(enter)
    where = torch.device(device or ("cuda" if target.device == "cuda" else "cpu"))
    if where.type == "cpu":
        poison_malloc()
    refused = refusal(target, case)
    if refused is not None and refused.kind == "cannot":
        return Verdict(case.id, "reject", reason=f"cannot express: {refused.why}")
    clock.start("inputs", INPUTS_LIMIT)
    pristine = build(case, oracle_device(case, where))
    try:
        if refused is not None:
            return _expect_refusal(case, target, pristine.to(where), clock, refused.why)
        watch = Watch.start(where)
        verdict = _judge(case, target, pristine, where, clock)
        if verdict.outcome == "pass" and verdict.kernel and watch.suspects():
            verdict = _leaking(case, target, pristine.to(where), watch, clock, verdict)
        return verdict
    except _Raised as raised:
        return _raised(case, raised.error, clock, raised.warned, raised.asked)
    finally:
        clock.stop()


def _leaking(case: Case, target: Target, pristine: Arena, watch: Watch, clock: Clock, verdict: Verdict) -> Verdict:
    """The verdict of a case that passes, after which something is more than before it: further runs say what leaks."""
    clock.start(
        "leaks", INPUTS_LIMIT + deadline(target, case, RUNS)
    )  # they have run before; collecting garbage is slow
    found = _call(lambda: watch.leaks(lambda: target.run(case, pristine.tensors())))
    clock.stop()
    if not found:
        return verdict
    return replace_struct(verdict, outcome="fail", findings=tuple(found), seconds=clock.rounded())


def deadline(target: Target, case: Case, runs: int = 1) -> float:
    """Seconds that so many runs may take: about ten times the expected time, with a floor."""
    return max(FLOOR[target.device], MARGIN * runs * target.expected_seconds(case))


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
    if any(f.oracle == "metadata" for f in foreseen):  # no kernel survives them
        return _verdict(case, foreseen, clock, [])
    if not getattr(target, "runs", True):
        return _not_run(case, target, foreseen, pristine, clock)
    clock.start("reference", INPUTS_LIMIT + case.problem.pairs * 1e-5)
    right = reference(problem, given.q, given.k, given.v, bias=given.bias, do=given.do)
    same = _same(problem, given, target.numerics)
    seal = _checksum(right, same.runs, same.noise)
    variations = _variations(case, target, pristine, clock)
    runs = _run_all(case, target, pristine.to(where), pristine.buffer.device, clock, variations)
    clock.start("judge", INPUTS_LIMIT)
    findings = runs.memory_findings((seal != _checksum(right, same.runs, same.noise)).any())
    executions, related = runs.executions[: case.repeats], runs.executions[case.repeats :]
    findings += _shape_findings(problem, executions[0].answers)
    for of, execution in zip(variations, related, strict=True):
        wrong = _shape_findings(of.case.problem, execution.answers)
        findings += [replace_struct(f, message=f"asked with {of.relation.meaning}: {f.message}") for f in wrong]
    findings += _proof_findings(target, runs.executions)
    if any(f.oracle == "protocol" for f in findings):
        return _verdict(case, findings, clock, executions)
    unstable = determinism.compare([e.answers for e in executions])
    judged = executions if unstable else executions[:1]
    judgements = [accuracy.judge(problem, e.answers, right, same) for e in judged]
    bad = [j for j in judgements if j.findings]
    worst = max(judgements, key=lambda j: (len(j.findings) > 0, j.ratio))
    may_differ = target.may_differ(case) if isinstance(target, Varying) else frozenset()
    unstable = [f for f in unstable if target.deterministic and f.tensor not in may_differ]
    findings += [*worst.findings, *_exact(case, target, given, judged[0].answers), *unstable, *foreseen]
    if not findings:
        for of, execution in zip(variations, related, strict=True):
            first, theirs = executions[0].answers, execution.answers
            findings += judge_related(
                of, target, case, first, theirs, partial(_budget, case, target, given, right, same)
            )
    flaky = (len(bad), len(judged)) if 0 < len(bad) < len(judged) else (0, 0)
    return _verdict(case, findings, clock, executions, judgement=worst, flaky=flaky)


def _variations(case: Case, target: Target, pristine: Arena, clock: Clock) -> list[Asked]:
    """How the case is asked otherwise, with inputs for each."""
    if not case.relations:
        return []
    clock.start("inputs", INPUTS_LIMIT)
    return asked(case, target, pristine)


def _same(problem: Problem, given: Tensors, numerics: Numerics) -> Same:
    return same_precision(problem, given.q, given.k, given.v, bias=given.bias, do=given.do, numerics=numerics)


def _exact(case: Case, target: Target, given: Tensors, answers: Answers) -> list[Finding]:
    """What must be right to the bit, for inputs that are made for it."""
    if case.inputs.distribution not in STYLES:
        return []
    q, k, v = given.q, given.k, given.v
    return exact.judge(case.problem, q, k, v, answers, bias=given.bias, do=given.do, numerics=target.numerics)


def _budget(
    case: Case, target: Target, given: Tensors, right: Answers, same: Same, change: Callable[[Numerics], Numerics]
) -> tuple[Answers, Same]:
    """The reference, and the same-precision run of the target's numerics as a relation changes them."""
    changed = change(target.numerics)
    return right, same if changed == target.numerics else _same(case.problem, given, changed)


def _inspected(case: Case, target: Target, clock: Clock) -> list[Finding]:
    """What can be said of a case's metadata without running anything."""
    if not isinstance(target, Inspected):
        return []
    clock.start("inspect", INPUTS_LIMIT)
    return _call(partial(target.inspect, case))


def _not_run(case: Case, target: Target, foreseen: list[Finding], pristine: Arena, clock: Clock) -> Verdict:
    """The verdict of a target that has no device here: it is compiled, and that is all."""
    clock.start("prepare", PREPARE_LIMIT)
    _call(lambda: target.prepare(case, pristine.tensors()))
    hang = any(f.kind == "hang" for f in foreseen)
    reason = "" if foreseen else "compiled; metadata and protocol hold; not run: no device for it here"
    return _verdict(case, foreseen, clock, [], outcome="hang" if hang else None, reason=reason)


@dataclass
class _Runs:
    """The runs of one case, the repeats first: each with its own copy of its inputs and its own guard bands, looked at
    afterwards. `arenas` are the copies, each beside what it is to be compared with."""

    device: torch.device
    executions: list[Execution] = field(default_factory=list)
    arenas: list[tuple[Arena, Arena]] = field(default_factory=list)
    guards: list[Guarded] = field(default_factory=list)
    written: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def collect(self, home: torch.device) -> None:
        """Looks, without waiting, at what was written where it must not be; brings the answers home, waiting once."""
        device = self.device
        touched = [guard.touched(device) for guard in self.guards]
        changed = [(arena.buffer != pristine.buffer).any() for arena, pristine in self.arenas]
        self.written = torch.stack([*touched, *changed])
        if home != device:
            answers, self.written = to_cpu([e.answers for e in self.executions], self.written)
            self.executions = [replace(e, answers=a) for e, a in zip(self.executions, answers, strict=True)]

    def memory_findings(self, broken: Tensor) -> list[Finding]:
        """What was written where it must not be; one synchronisation when all is well.

        broken  whether the reference changed while the kernel ran, which is an AssertionError: no verdict can be given
        """
        if not bool(torch.cat([broken[None], self.written]).any()):
            return []
        if bool(broken):
            raise AssertionError("the reference changed while the kernel ran")
        for arena, pristine in self.arenas:
            if found := arena.changes(pristine):
                return found
        for guard in self.guards:
            if found := guard.check():
                return found
        return []

    def fresh(self, pristine: Arena) -> Arena:
        """A copy of the inputs for one run, which is looked at afterwards."""
        arena = pristine.copy()
        self.arenas.append((arena, pristine))
        return arena


def _run_all(
    case: Case, target: Target, pristine: Arena, home: torch.device, clock: Clock, variations: Sequence[Asked]
) -> _Runs:
    """Prepares once and runs `repeats` times, each time at other addresses and under another load; then each variation.

    On a GPU all runs are queued one after the other and waited for once, within the deadline of all of them: with
    many processes on one device every wait costs a time slice. The answers come back on `home`.
    """
    device = pristine.buffer.device
    runs = _Runs(device)
    first = runs.fresh(pristine)
    clock.start("prepare", PREPARE_LIMIT)
    _call(lambda: target.prepare(case, first.tensors()))
    queued = device.type == "cuda"
    limit = deadline(target, case, case.repeats)
    if queued:
        clock.start("run", limit)
    for repeat in range(case.repeats):
        arena = first if repeat == 0 else runs.fresh(pristine)
        if queued:
            poison_cuda(_output_sizes(case.problem), device)
        with disturbed(repeat, device):
            if not queued:
                clock.start("run", deadline(target, case))
            with Guarded() as guard:
                execution = _call(partial(target.run, case, arena.tensors()))
            if not queued:
                clock.start("judge", INPUTS_LIMIT)
        runs.executions.append(execution)
        runs.guards.append(guard)
    for of in variations:
        limit += _run_related(of, target, runs, clock, limit if queued else 0.0)
    _call(partial(runs.collect, home))
    if queued and home == device:
        _call(partial(torch.cuda.synchronize, device))
    return runs


def _run_related(of: Asked, target: Target, runs: _Runs, clock: Clock, before: float) -> float:
    """Adds one variation to the runs; the seconds that it may take, on a GPU on top of what was queued `before` it."""
    arena = runs.fresh(of.pristine.to(runs.device))
    others = runs.fresh(of.others.to(runs.device)) if of.others is not None else None
    limit = deadline(target, of.case, 1 if others is None else 2)
    clock.start("prepare", PREPARE_LIMIT)
    try:
        _call(lambda: target.prepare(of.case, arena.tensors()))
        if runs.device.type == "cuda":
            poison_cuda(_output_sizes(of.case.problem), runs.device, of.poison)
        clock.start("run", before + limit)
        if runs.device.type == "cpu" and of.poison != POISON:
            poison_malloc(of.poison)
        with Guarded(of.poison) as guard:
            execution = _call(lambda: of.run(target, arena.tensors(), None if others is None else others.tensors()))
    except _Raised as raised:
        raised.asked = of.relation.meaning
        raise
    finally:
        if runs.device.type == "cpu":
            poison_malloc()
    runs.executions.append(execution)
    runs.guards.append(guard)
    return limit


def _call(work: Callable[[], Any]) -> Any:
    """Runs the target; what it raises is wrapped, with the warnings that came before (they often say why)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return work()
        except Exception as error:
            said = [str(w.message).split(" (Triggered internally")[0] for w in caught]
            raise _Raised(error, said) from error


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
        return _verdict(case, [], clock, [], outcome="reject", reason=f"refused as declared: {why}")
    message = f"accepted what it declares to refuse: {why}"
    return _verdict(case, [Finding("protocol", "accepted", message)], clock, [])


def _raised(case: Case, error: BaseException, clock: Clock, warned: Sequence[str] = (), asked: str = "") -> Verdict:
    """The kernel raised on a case that it declares to support, or on that case `asked` otherwise."""
    if isinstance(error, DeviceError):
        reason = "" if error.findings else "; ".join(map(str, error.evidence.values()))[:300]
        return _verdict(
            case, list(error.findings), clock, [], outcome=error.outcome, evidence=error.evidence, reason=reason
        )
    name, text = type(error).__name__, str(error).strip().split("\n")[0][:300]
    evidence: dict[str, Any] = {"traceback": "".join(traceback.format_exception(error))[-4000:]}
    if warned:
        evidence["warnings"] = list(dict.fromkeys(warned))[-10:]
    if _context_lost(error):
        evidence["context_lost"] = True
        finding = Finding("runner", "crash", f"CUDA error, the context is lost: {text}", place=Place(pattern=name))
        return _verdict(case, [finding], clock, [], outcome="crash", evidence=evidence)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
        with suppress(Exception):
            torch.cuda.empty_cache()
        finding = Finding("runner", "out_of_memory", f"{name}: {text}")
        return _verdict(case, [finding], clock, [], outcome="crash", evidence=evidence)
    kind = "refused" if isinstance(error, (ValueError, NotImplementedError)) else "raised"
    said = f"asked with {asked}: raised {name}: {text}" if asked else f"raised {name}: {text}"
    finding = Finding("protocol", kind, said, place=Place(pattern=name))
    return _verdict(case, [finding], clock, [], evidence=evidence)


def _context_lost(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError) and "CUDA error" in text and "out of memory" not in text


def _shape_findings(problem: Problem, answers: Answers) -> list[Finding]:
    """Missing tensors, wrong shapes and dtypes."""
    expected, found = shapes(problem), []
    wanted = {"o", *_GRADIENTS[:3]} if problem.backward else {"o"}
    if problem.backward and problem.bias is not None and problem.bias.grad:
        wanted.add("dbias")
    got = dict(answers.items())
    for name in sorted(wanted - set(got)):
        message = f"{name} is missing: the target returned None"
        found.append(Finding("protocol", "missing_tensor", message, name, Place(pattern="missing")))
    for name, tensor in got.items():
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != expected[name]:
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            message = f"{name}: needs shape {list(expected[name])}, got {shape}"
            found.append(Finding("protocol", "wrong_shape", message, name, Place(pattern="shape")))
        elif name != "lse" and name != "dbias" and tensor.dtype != problem.torch_dtype:
            message = f"{name}: needs dtype {problem.dtype}, got {tensor.dtype}"
            found.append(Finding("protocol", "wrong_dtype", message, name, Place(pattern="dtype")))
    return found


def _proof_findings(target: Target, executions: list[Execution]) -> list[Finding]:
    """A run that does not name the kernel that it should have run: a silent fall-back."""
    for execution in executions:
        if target.proof and not any(name in execution.kernel for name in target.proof):
            message = f"no proof that {target.name} ran: the execution names {execution.kernel or 'nothing'!r}"
            return [Finding("protocol", "unproven", message, place=Place(pattern="unproven"))]
    return []


def _verdict(
    case: Case,
    findings: list[Finding],
    clock: Clock,
    executions: list[Execution],
    *,
    outcome: Outcome | None = None,
    reason: str = "",
    judgement: accuracy.Judgement | None = None,
    flaky: tuple[int, int] = (0, 0),
    evidence: dict[str, Any] | None = None,
) -> Verdict:
    clock.stop()
    failed, runs = flaky
    findings = [_finite(finding) for finding in findings]
    decided: Outcome = outcome or ("flake" if runs else "fail" if findings else "pass")
    return Verdict(
        case.id,
        decided,
        tuple(findings),
        reason=reason,
        ratio=min(judgement.ratio, INFINITELY) if judgement else 0.0,
        worst=_worst(judgement) if judgement else (),
        seconds=clock.rounded(),
        evidence=evidence or {},
        kernel=executions[0].kernel if executions else "",
        failed=failed,
        runs=runs,
    )


def _worst(judgement: accuracy.Judgement) -> tuple[Worst, ...]:
    found = []
    for tensor, worst in judgement.worst.items():
        grain = max(worst.ratios, key=worst.ratios.__getitem__)
        found.append(Worst(tensor, min(worst.ratio, INFINITELY), grain, *worst.at))
    return tuple(found)


def _finite(finding: Finding) -> Finding:
    """JSON has neither infinity nor NaN: the one counts as INFINITELY, the other is left out."""
    numbers = {name: max(min(x, INFINITELY), -INFINITELY) for name, x in finding.numbers.items() if x == x}
    return replace_struct(finding, numbers=numbers)


def _checksum(*answers: Answers) -> Tensor:
    """Bitwise sum per tensor; stays on the device."""
    sums = []
    for answer in answers:
        for _, tensor in answer.items():
            width = (
                torch.int64
                if tensor.element_size() == 8
                else torch.int32
                if tensor.element_size() == 4
                else torch.int16
            )
            sums.append(tensor.contiguous().view(width).sum(dtype=torch.int64))
    return torch.stack(sums)


def _output_sizes(problem: Problem) -> tuple[int, ...]:
    """Bytes of O, LSE and the gradients, to poison blocks of their size."""
    shape, width = shapes(problem), problem.torch_dtype.itemsize
    sizes = []
    for name in ("o", "lse", "dq", "dk", "dv"):
        count = 4 if name == "lse" else width
        for size in shape[name]:
            count *= size
        sizes.append(count)
    return tuple(sizes)
