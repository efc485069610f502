"""A case asked otherwise: its metamorphic relations (oracles/metamorphic/relations.py) as further runs, and what comes
of them.

The runs are made right after the repeats, on the same device, and judged with them. A relation that does not apply, or
whose every variation the target cannot express, asks nothing.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from fuzz.core.case import Case, Storage
from fuzz.core.refusal import refusal
from fuzz.core.relations import required_equality
from fuzz.core.target import Execution, Target, Tensors
from fuzz.core.verdict import Verdict
from fuzz.tensors.arena import Arena, build
from fuzz.tensors.guard_bands import POISON
from oracles.error_budget.budget import Budget
from oracles.finding import Finding
from oracles.metamorphic.relations import RELATIONS, Equality, Relation, Variation, compare
from oracles.numerics import Numerics
from oracles.outputs import Outputs

_TENSORS = ("q", "k", "v", "do")
ALONE = "asked otherwise, wrong by itself"  # in a verdict's evidence


@dataclass(frozen=True)
class Asked:
    """A variation as a case of its own, with its inputs where the oracles are; `others` run between its forward and
    its backward."""

    relation: Relation
    equality: Equality
    variation: Variation
    case: Case
    pristine: Arena
    others: Arena | None = None

    @property
    def poison(self) -> int:
        """What unwritten memory holds."""
        return POISON if self.variation.poison is None else self.variation.poison

    def run(self, target: Target, given: Tensors, others: Tensors | None) -> Execution:
        """On tensors of the case's device; raises whatever the target raises."""
        if others is None:
            return target.run(self.case, given)
        return target.run_around(self.case, given, others)


def asked(case: Case, target: Target, pristine: Arena) -> list[Asked]:
    """The variations of `case` that its relations ask for and `target` takes."""
    return [found for name in case.relations if (found := _first(case, target, pristine, RELATIONS[name])) is not None]


def as_plain(case: Case, target: Target) -> list[Case]:
    """The questions that the relations of `case` lead to, as cases of their own with the recipe's numbers: where one of
    them fails by itself, the relation only found the way to it."""
    plain = replace(case, relations=())
    found = [of.case for of in asked(case, target, build(case, "cpu"))]
    return [other for other in dict.fromkeys(found) if other != plain]


def judge(
    of: Asked,
    target: Target,
    case: Case,
    first: Outputs,
    theirs: Outputs,
    budget: Callable[[Callable[[Numerics], Numerics]], Budget],
) -> list[Finding]:
    """Findings of one variation; `budget` gives the budget of the first problem under changed numerics."""
    loose = frozenset[str]()
    for one in (case, of.case):
        loose |= target.may_differ(one)
    under = of.variation.numerics
    return compare(of.relation, of.equality, of.variation, case.problem, first, theirs, lambda: budget(under), loose)


def tell(alone: Sequence[tuple[Asked, Sequence[Finding]]]) -> dict[str, Any]:
    """The evidence of variations that are wrong as questions of their own, as JSON values; `alone_of` reads it.

    What is read of unwritten memory is NaN in a case of its own, so numbers that are wrong under another poison count
    as NaN.
    """
    if not alone:
        return {}
    told = []
    for of, wrong in alone:
        other = of.variation.poison is not None
        findings = [replace(f, kind="nan") if other and f.kind == "wrong" else f for f in wrong]
        told.append({"case": msgspec.to_builtins(of.case), "findings": msgspec.to_builtins(findings)})
    return {ALONE: told}


def alone_of(verdict: Verdict) -> list[tuple[Case, Verdict]]:
    """The variations of a failed case that are wrong as questions of their own, each with the verdict that it would
    have as a case: of the same run, so that what shows now and then only is seen."""
    found = []
    for one in verdict.evidence.get(ALONE, ()):
        case, findings = msgspec.convert(one["case"], Case), msgspec.convert(one["findings"], tuple[Finding, ...])
        found.append((case, Verdict(case.id, "fail", findings, seconds=verdict.seconds, kernel=verdict.kernel)))
    return found


def _first(case: Case, target: Target, pristine: Arena, relation: Relation) -> Asked | None:
    equality = required_equality(target, relation.name)
    if equality == "off" or not relation.applies(case.problem):
        return None
    draw = random.Random(zlib.crc32(f"{case.inputs.seed}/{relation.name}".encode()))
    given = {slot.name: x for slot in pristine.slots if (x := pristine.tensor(slot.name)) is not None}
    for variation in relation.vary(case.problem, given, draw):
        for other in _cases(case, target, variation, draw):
            if refusal(target, other) is None:
                return _asked(case, relation, equality, variation, other, pristine)
    return None


def _cases(case: Case, target: Target, variation: Variation, draw: random.Random) -> Iterator[Case]:
    """The variation as a case, in the order in which they are to be tried."""
    inputs = case.inputs
    if variation.order:
        inputs = replace(inputs, **{name: Storage(variation.order) for name in _TENSORS})
        if inputs == case.inputs:
            return
    elif variation.tensors is not None and inputs.do.order == "expanded":
        inputs = replace(inputs, do=Storage())
    if variation.interleaved and (target.device == "emulator" or not target.interleaves):
        return
    other = replace(case, problem=variation.problem, inputs=inputs, relations=())
    if not variation.options:
        yield other
        return
    for variant in _variants(case, target, variation.options == "same bits", draw):
        yield replace(other, variant=variant)


def _variants(case: Case, target: Target, same_bits: bool, draw: random.Random) -> list[dict[str, Any]]:
    """Other options for the case's problem; with same_bits only such as differ where no bit may."""
    offered = list(target.variants_for(case.problem))
    draw.shuffle(offered)
    if same_bits:
        free = target.same_options
        offered = [case.variant | {k: v for k, v in variant.items() if k in free} for variant in offered]
    return [dict(variant) for variant in offered if dict(variant) != case.variant]


def _asked(
    case: Case, relation: Relation, equality: Equality, variation: Variation, other: Case, pristine: Arena
) -> Asked:
    device = pristine.buffer.device
    if variation.interleaved:
        more = replace(case.inputs, seed=(case.inputs.seed + 1) % (1 << 31))
        return Asked(relation, equality, variation, other, pristine, build(replace(case, inputs=more), device))
    if variation.options:
        return Asked(relation, equality, variation, other, pristine)
    names = [slot.name for slot in pristine.slots]
    values = {n: x for n in names if (x := (variation.tensors or {}).get(n, pristine.tensor(n))) is not None}
    if not other.problem.backward:
        values.pop("do", None)
    poison = POISON if variation.poison is None else variation.poison
    return Asked(relation, equality, variation, other, build(other, device, values, poison))
