"""Nested rows of forward lists (`BlockLists.nested`), which Hopper's forward kernel takes in pairs, for short sequences
too: the builder says of its own accord that rows are nested only where they are so many that pairs are faster."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.support import Rule
from oracles.masks import Causal, Full
from oracles.problem import AnyProblem


def useful(problem: AnyProblem, tile_m: int) -> bool:
    """True where a pair of query tiles has rows of unequal length."""
    alone = problem.layout == "packed" or problem.ragged
    return isinstance(problem.mask, Causal) and not alone and problem.len_q > tile_m


def rule() -> Rule:
    """Refusal of other masks, and of what makes lists anew."""
    return Rule("nested rows of other masks than causal and full ones as bands, or of keys in two calls", _elsewhere)


def _elsewhere(case: Case) -> bool:
    given = case.variant
    causal = given.get("mask") == "band" and isinstance(case.problem.mask, Causal | Full)
    return bool(given.get("nested")) and (not causal or given.get("keys") == "split")
