"""The metamorphic relations that a target can be asked about, and the equality that each requires of it."""

from __future__ import annotations

from functools import lru_cache

from fuzz.core.case import Case
from fuzz.core.target import Target
from oracles.metamorphic.relations import RELATIONS, Equality, Relation


def relations_for(target: Target, case: Case) -> tuple[str, ...]:
    """Names of the relations that a session draws from for a case, without looking at tensors."""
    return tuple(r.name for r in _askable(target) if r.holds_for(case.problem))


def required_equality(target: Target, relation: str) -> Equality:
    """The equality that `relation` requires of `target`: 'bitwise', 'within_budget', or 'off' (no follow-up case).
    Two runs of a target that adds in any order need not have equal bits."""
    declared = target.relations.get(relation, RELATIONS[relation].default)
    return "within_budget" if declared == "bitwise" and not target.deterministic else declared


@lru_cache(maxsize=256)
def _askable(target: Target) -> tuple[Relation, ...]:
    """The relations that a target can be asked about, whatever the case; they are attention's."""
    if not target.attention:
        return ()
    able = {
        "strides": target.support.strides,
        "repeated_kv": target.support.gqa,
        "scaled_q": target.support.scale,
        "two_forwards": target.interleaves,
        "options": target.chooses_variants or len(target.variants) > 1,
        "same_bits_options": bool(target.same_options),
    }
    return tuple(r for r in RELATIONS.values() if able.get(r.name, True) and required_equality(target, r.name) != "off")
