"""Follow-up cases of metamorphic relations (oracles/metamorphic/relations.py): a source case, changed in a way that has
a known effect on its outputs.

They are run right after the repeats of their source, on the same device, and judged with them. A relation that does not
apply, or of which the target can express no variation, has no follow-up case.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fuzz.core.case import Case, Storage
from fuzz.core.refusal import refusal
from fuzz.core.relations import required_equality
from fuzz.core.target import Execution, Target, Tensors
from fuzz.core.verdict import FollowUpFailure, Verdict
from fuzz.tensors.arena import Arena, build
from fuzz.tensors.guard_bands import POISON
from oracles.error_budget.budget import Budget
from oracles.finding import Finding
from oracles.metamorphic.relations import RELATIONS, Equality, Relation, Variation, compare
from oracles.numerics import Numerics
from oracles.outputs import Outputs

_TENSORS = ("q", "k", "v", "do")


@dataclass(frozen=True)
class FollowUp:
    """A follow-up case, with its inputs where the oracles are; `others` are the inputs of another forward that runs
    between its forward and its backward."""

    relation: Relation
    equality: Equality
    variation: Variation
    case: Case
    pristine: Arena
    others: Arena | None = None

    @property
    def poison(self) -> int:
        """The byte that unwritten memory holds."""
        return POISON if self.variation.poison is None else self.variation.poison

    @property
    def title(self) -> str:
        """The words by which findings name it."""
        return self.relation.title

    def numerics(self, target: Target) -> Numerics:
        """How the target rounds in it."""
        return self.variation.numerics(target.numerics_of(self.case))

    def run(self, target: Target, given: Tensors, others: Tensors | None) -> Execution:
        """A run on tensors of the case's device. Raises whatever the target raises."""
        if others is None:
            return target.run(self.case, given)
        return target.run_around(self.case, given, others)


def follow_ups_of(case: Case, target: Target, pristine: Arena) -> list[FollowUp]:
    """One follow-up case for each relation of `case`, where there is one that the target takes."""
    return [found for name in case.relations if (found := _first(case, target, pristine, RELATIONS[name])) is not None]


def stand_alone_cases(case: Case, target: Target) -> list[Case]:
    """The follow-up cases of `case` as cases of their own, with the recipe's numbers: where one of them fails by
    itself, the relation only found the way to it."""
    source = replace(case, relations=())
    found = [follow_up.case for follow_up in follow_ups_of(case, target, build(case, "cpu"))]
    return [other for other in dict.fromkeys(found) if other != source]


def compare_outputs(
    follow_up: FollowUp,
    target: Target,
    source: Case,
    source_outputs: Outputs,
    outputs: Outputs,
    budget: Callable[[Numerics], Budget],
) -> list[Finding]:
    """Findings where the outputs of a follow-up case are not what its source's outputs require. `budget` gives the
    budget of the source's problem under the follow-up case's numerics."""
    not_bitwise = target.may_differ(source) | target.may_differ(follow_up.case)
    relation, variation = follow_up.relation, follow_up.variation
    return compare(
        relation,
        follow_up.equality,
        variation,
        source.problem,
        source_outputs,
        outputs,
        lambda: budget(follow_up.numerics(target)),
        not_bitwise,
    )


def failure_of(follow_up: FollowUp, wrong: Sequence[Finding]) -> FollowUpFailure:
    """A follow-up case that is wrong by itself. What is read of unwritten memory is NaN in a case of its own, so
    numbers that are wrong under another poison count as NaN."""
    poisoned = follow_up.variation.poison is not None
    findings = tuple(replace(f, kind="nan") if poisoned and f.kind == "wrong" else f for f in wrong)
    return FollowUpFailure(follow_up.case, findings)


def failed_alone(verdict: Verdict) -> list[tuple[Case, Verdict]]:
    """The follow-up cases of a failed case that are wrong by themselves, each with the verdict that it would have as a
    case: of the same run, so that a failure that shows now and then only is seen."""
    return [
        (one.case, Verdict(one.case.id, "fail", one.findings, seconds=verdict.seconds, kernel=verdict.kernel))
        for one in verdict.follow_ups
    ]


def _first(case: Case, target: Target, pristine: Arena, relation: Relation) -> FollowUp | None:
    equality = required_equality(target, relation.name)
    if equality == "off" or not relation.holds_for(case.problem):
        return None
    draw = random.Random(zlib.crc32(f"{case.inputs.seed}/{relation.name}".encode()))
    given = {slot.name: x for slot in pristine.slots if (x := pristine.tensor(slot.name)) is not None}
    for variation in relation.vary(case.problem, given, draw):
        for other in _cases(case, target, variation, draw):
            if refusal(target, other) is None:
                return _follow_up(case, relation, _kept(equality, target, case, other), variation, other, pristine)
    return None


def _kept(equality: Equality, target: Target, source: Case, other: Case) -> Equality:
    """The equality that a follow-up case requires. Where its tensors have other strides than the source's, the target
    may run another kernel, whose sums have another order: bits are equal only where it keeps them under `strides`. Nor
    are they where the options of a call depend on the inputs' values."""
    moved = other.inputs != source.inputs and required_equality(target, "strides") != "bitwise"
    moved = moved or target.reads_values(source) or target.reads_values(other)
    return "within_budget" if moved and equality == "bitwise" else equality


def _cases(case: Case, target: Target, variation: Variation, draw: random.Random) -> Iterator[Case]:
    """A variation as cases, in the order in which they are to be tried."""
    inputs = case.inputs
    if variation.order:
        inputs = replace(inputs, **{name: Storage(variation.order) for name in _TENSORS})
        if inputs == case.inputs:
            return
    elif variation.tensors is not None:  # other numbers need not be the same along any axis
        stores = {name: getattr(inputs, name) for name in _TENSORS}
        changed = {n: replace(x, shared="") for n, x in stores.items() if x.shared}
        changed |= {"do": Storage()} if inputs.do.order == "expanded" else {}
        inputs = replace(inputs, **changed)
    if variation.interleaved and not target.interleaves:
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


def _follow_up(
    case: Case, relation: Relation, equality: Equality, variation: Variation, other: Case, pristine: Arena
) -> FollowUp:
    device = pristine.buffer.device
    if variation.interleaved:
        more = replace(case.inputs, seed=(case.inputs.seed + 1) % (1 << 31))
        return FollowUp(relation, equality, variation, other, pristine, build(replace(case, inputs=more), device))
    if variation.options:
        return FollowUp(relation, equality, variation, other, pristine)
    names = list(dict.fromkeys([*(slot.name for slot in pristine.slots), *other.problem.weights]))
    values = {n: x for n in names if (x := (variation.tensors or {}).get(n, pristine.tensor(n))) is not None}
    if not other.problem.backward:
        values.pop("do", None)
    poison = POISON if variation.poison is None else variation.poison
    return FollowUp(relation, equality, variation, other, build(other, device, values, poison))
