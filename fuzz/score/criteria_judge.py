"""Criteria judge: a session's judge that also applies other projects' acceptance criteria (oracles/other_projects.py).

Runs in the child process: `Runner(execute="fuzz.score.criteria_judge:execute")`. The criteria that fail are in the
verdict's evidence under EVIDENCE. A hang, a crash or an exception fails all of them.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from math import prod
from typing import Any

import torch
from msgspec.structs import replace as replace_struct

from fuzz.core.case import Case, attention_of
from fuzz.core.target import Execution, Target, Tensors
from fuzz.core.verdict import Verdict
from fuzz.judging import judge
from fuzz.judging.execution import INPUTS_LIMIT, Enter, deadline
from fuzz.tensors.arena import Arena, build
from fuzz.tensors.guard_bands import Guarded
from fuzz.tensors.values import random_bits
from oracles.other_projects import CRITERIA, SMALL, Question

EVIDENCE = "peers"  # {criterion: True where it fails}
ENDED = ("hang", "crash")


def execute(case: Case, target: Target, enter: Enter, device: torch.device | str | None = None) -> Verdict:
    """`judge.execute`, with the criteria's verdicts in the evidence. A rejected case has none, nor has a CTA-subset
    case: the criteria need whole tensors, for which there may be no memory."""
    first: list[Execution] = []
    verdict = judge.execute(case, _recording(target, first), enter, device)
    if verdict.outcome == "reject" or target.ctas_of(case):
        return verdict
    failed = _all_failed() if _ended(verdict) else _fails(case, target, first, enter)
    return replace_struct(verdict, evidence=verdict.evidence | {EVIDENCE: failed})


def fails_of(verdict: Verdict) -> dict[str, bool]:
    """The criteria that fail; a run that did not end fails them all."""
    if verdict.outcome == "reject":
        return {}
    return verdict.evidence.get(EVIDENCE, _all_failed() if _ended(verdict) else {})


def _all_failed() -> dict[str, bool]:
    return dict.fromkeys(CRITERIA, True)


def _ended(verdict: Verdict) -> bool:
    """True if the run did not come to its end: it hung, crashed or raised."""
    return verdict.outcome in ENDED or any(f.kind in ("raised", "refused") for f in verdict.findings)


def _recording(target: Target, first: list[Execution]) -> Any:
    """`target`, which keeps the first of its executions."""
    recorded = copy.copy(target)

    def run(case: Case, tensors: Tensors) -> Execution:
        found = type(target).run(recorded, case, tensors)
        if not first:
            outputs = {n: x.detach().cpu().clone() for n, x in found.outputs.items() if isinstance(x, torch.Tensor)}
            first.append(replace(found, outputs=replace(found.outputs, **outputs)))
        return found

    recorded.run = run  # type: ignore[method-assign]
    return recorded


def _fails(case: Case, target: Target, first: list[Execution], enter: Enter) -> dict[str, bool]:
    found = {}
    small: list[Execution] = []
    for name, rule in CRITERIA.items():
        executions, arena = (small, _small(case)) if rule.inputs == "small" else (first, build(case, "cpu"))
        if not executions:  # nothing came back: the emulated GPU reported something that a GPU does not detect
            enter("run", deadline(target, case))
            try:
                executions.append(_blind_run(case, target, arena))
            except Exception:  # it hangs or raises on these inputs
                return _all_failed()
            enter("judge", INPUTS_LIMIT)
        given = arena.tensors()
        question = Question(attention_of(case), given.q, given.k, given.v, given.bias, given.do)
        found[name] = not rule.passes(question, executions[0].outputs)
    return found


def _blind_run(case: Case, target: Target, arena: Arena) -> Execution:
    """A run of which only the answers are looked at, as on a GPU; guard bands keep what it breaks from us."""
    with target.blind(), Guarded():
        found = target.run(case, arena.copy().to(_device(target)).tensors())
    outputs = {name: x.detach().cpu() for name, x in found.outputs.items() if isinstance(x, torch.Tensor)}
    return replace(found, outputs=replace(found.outputs, **outputs))


def _device(target: Target) -> torch.device:
    return torch.device("cuda" if target.device == "cuda" else "cpu")


def _small(case: Case) -> Arena:
    """The case with inputs from [-SMALL, SMALL]."""
    normal = replace_struct(case, inputs=replace_struct(case.inputs, distribution="normal"))
    arena = build(normal, "cpu")
    names = [slot.name for slot in arena.slots]
    values = {}
    for name in names:
        shape = tuple(arena.tensor(name).shape)  # type: ignore[union-attr]
        bits = random_bits(case.inputs.seed, name, prod(shape), "cpu") & 0xFFFF
        values[name] = ((bits.float() / 0x8000 - 1) * SMALL).view(shape).to(case.problem.torch_dtype).float()
    return build(normal, "cpu", values)
