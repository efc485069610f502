"""Findings to a Verdict; and the findings of a target's contract: outputs that are missing or misshapen, kernels that
were not planned, an execution without proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Execution, Target
from fuzz.core.verdict import Finding, FollowUpFailure, Location, Outcome, Verdict, Worst
from fuzz.judging.execution import Clock
from oracles import accuracy
from oracles.outputs import CHOICES, Outputs
from oracles.problem import shapes

INFINITELY = 1e99  # error / budget of what no budget allows at all, such as NaN or a weight where there must be none
_GRADIENTS = ("dq", "dk", "dv")
_DTYPES = dict.fromkeys(CHOICES, torch.int32)


def conclude(
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
    follow_ups: Sequence[FollowUpFailure] = (),
) -> Verdict:
    """The verdict: as `outcome` says, else by what was found. Stops the clock.

    judgement  of the execution that is furthest from right
    flaky      of how many runs how many were wrong, where not all were
    """
    clock.stop()
    failed, runs = flaky
    findings = [finite(finding) for finding in findings]
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
        follow_ups=tuple(follow_ups),
    )


def _worst(judgement: accuracy.Judgement) -> tuple[Worst, ...]:
    found = []
    for tensor, worst in judgement.worst.items():
        grain = max(worst.ratios, key=worst.ratios.__getitem__)
        found.append(Worst(tensor, min(worst.ratio, INFINITELY), grain, *worst.at))
    return tuple(found)


def finite(finding: Finding) -> Finding:
    """JSON has neither infinity nor NaN: the one counts as INFINITELY, the other is left out."""
    numbers = {name: max(min(x, INFINITELY), -INFINITELY) for name, x in finding.numbers.items() if x == x}
    return replace(finding, numbers=numbers)


def shape_findings(case: Case, outputs: Outputs) -> list[Finding]:
    """Missing tensors, wrong shapes and dtypes."""
    problem = case.problem
    expected, found = shapes(problem), []
    gradients = {*_GRADIENTS, *(f"d{name}" for name in problem.weights)}
    wanted = {"o", *gradients} - {f"d{name}" for name in case.inputs.detached} if problem.backward else {"o"}
    if problem.backward and problem.bias is not None and problem.bias.grad:
        wanted.add("dbias")
    wanted |= set(problem.choices)
    got = dict(outputs.items()) | outputs.choices()
    for name in sorted(wanted - set(got)):
        message = f"{name} is missing: the target returned None where a tensor of shape {list(expected[name])} is due"
        found.append(Finding("protocol", "missing_tensor", message, name, Location(pattern="missing")))
    for name, tensor in got.items():
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != expected.get(name):
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            message = f"{name} has shape {shape}; the problem needs {list(expected.get(name, ())) or 'no such tensor'}"
            found.append(Finding("protocol", "wrong_shape", message, name, Location(pattern="shape")))
        elif name not in ("lse", "dbias") and tensor.dtype != _DTYPES.get(name, problem.torch_dtype):
            got_dtype = str(tensor.dtype).removeprefix("torch.")
            needs = "int32" if name in _DTYPES else f"{problem.dtype}, the dtype of its inputs"
            message = f"{name} has dtype {got_dtype}; the problem needs {needs}"
            found.append(Finding("protocol", "wrong_dtype", message, name, Location(pattern="dtype")))
    return found


def plan_findings(target: Target, case: Case, execution: Execution) -> list[Finding]:
    """Finding of a kernel that was launched, but that `prepare` had not compiled for this case."""
    planned = target.planned(case)
    if planned is None:
        return []
    launched = execution.kernel.rpartition("; ")[2].split(", ")  # what comes before says why nothing had to run
    for name in launched:
        if name and name not in planned:
            message = (
                f"kernel {name} was launched, but `prepare` compiled {len(planned)} others for this case: it is "
                "compiled in the run, by a key that depends on more than the kernel does, such as a length"
            )
            return [Finding("resources", "compiles", message, place=Location(pattern="not planned"))]
    return []


def proof_findings(target: Target, executions: list[Execution]) -> list[Finding]:
    """Finding of a run that does not name the kernel that it should have run: a silent fall-back."""
    for execution in executions:
        if target.proof and not any(name in execution.kernel for name in target.proof):
            expected = " or ".join(map(repr, target.proof))
            message = (
                f"no proof that {target.name} ran: the execution must name {expected}, but names "
                f"{execution.kernel or 'nothing'!r}; another implementation may have answered"
            )
            return [Finding("protocol", "unproven", message, place=Location(pattern="unproven"))]
    return []
