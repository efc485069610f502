"""The option `nested`: forward lists that promise nested rows (`BlockLists.nested`), which Hopper's forward kernel
takes in pairs. By default the builder promises them for long sequences alone, where pairs are faster."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.support import Rule
from fuzz.targets.blocksparse.by_head import hidden_keys
from oracles.masks import Causal, Full
from oracles.problem import AnyProblem


def useful(problem: AnyProblem, tile_m: int) -> bool:
    """True where a pair of query tiles has rows of unequal length."""
    of_one_length = problem.layout == "padded" and not problem.ragged
    return isinstance(problem.mask, Causal) and of_one_length and problem.len_q > tile_m


def rule() -> Rule:
    """Refusal of other masks, and of what makes lists anew."""
    return Rule("nested rows of other masks than causal and full ones as bands, or of keys in two calls", _elsewhere)


def _elsewhere(case: Case) -> bool:
    given = case.variant
    mask = case.problem.mask
    causal = given.get("mask") == "band" and (isinstance(mask, Causal | Full) or bool(hidden_keys(mask)))
    return bool(given.get("nested")) and (not causal or given.get("keys") == "split")
