"""Signature: what makes two failures the same bug, and when a known one explains a new one.

A bug shows first in a large case, with many features and many wrong tensors; its minimised case keeps few of both. So
a signature holds the root of a failure only (the earliest finding, below), and a known one explains a raw one that has
at least its features. What differs in kind, oracle or root tensors is never explained: a look-alike is reported twice
rather than lost. Ask before minimising (is this raw failure known?) and again after (was the minimised one reported?).
"""

from __future__ import annotations

from collections.abc import Iterable

from fuzz.core.case import CODED, Case
from fuzz.core.features import ROWS_WITHOUT_KEYS, facts, ordered, switches, traits
from fuzz.core.verdict import Finding, Signature, Verdict
from oracles.masks import KINDS

__all__ = ["Signature", "explains", "root", "same_failure", "signature", "tensors"]

# Causes stand first: a kernel that writes outside its buffers may well be wrong too, not the other way round.
_KINDS: tuple[tuple[str, ...], ...] = (
    ("hang",),
    ("crash",),
    ("out_of_memory",),
    ("wrote_outside",),
    ("leak", "memory_growth", "compiles"),
    ("changed_input",),
    ("accepted", "refused", "raised"),
    ("unproven", "missing_tensor", "wrong_shape", "wrong_dtype"),
    ("nondeterministic", "nan", "wrong"),
)
_KIND_RANK = {kind: rank for rank, kinds in enumerate(_KINDS) for kind in kinds}
_NUMERIC = _KINDS[-1]
_COMPARING = frozenset({"metamorphic"})  # its kinds are relations, each of them about numbers
_SAME_ORACLE = {"exact": "accuracy"}  # wrong numbers are one bug, whichever inputs show it
_STAGES = {"o": 0, "lse": 1}  # later tensors are wrong because an earlier one is; gradients share a stage
_GRADIENTS = 2
_TYPED = frozenset({"raised", "refused", "crash"})  # their place is the error's type, or the phase that died
_OPTIONS = frozenset(
    {"packed", "softcap", "scale", "bias", "causal", "window", "prefix", "documents", "intervals", "blocks", "tokens"}
    | {
        "and",
        "or",
        "not",
        "per_head",
        "per_batch",
        "ragged",
        "gqa",
        "dim_v",
        "strides",
        "expanded_do",
        "shared",
        "detached",
    }
    | {"variant"}
)
_MASKS = frozenset(KINDS)  # what a mask is made of: how a row lost its keys does not matter
_EXACT_INPUTS = frozenset(f"inputs:{style}" for style in CODED)
_TAIL = frozenset({"last tile", "last row", "row tail"})


def signature(case: Case, verdict: Verdict, features: Iterable[str] | None = None) -> Signature:
    """The signature of a bad verdict on `case`.

    features  those that the failure needs, where the minimizer has found out; else all that `case` has of switches,
              facts and traits
    Raises ValueError when the verdict is not a failure.
    """
    if not verdict.bad:
        raise ValueError(f"verdict: needs a failure to sign, got '{verdict.outcome}' of case {verdict.case_id}")
    kind, oracle = _failure(verdict)
    return Signature(
        target=case.target,
        kind=kind,
        oracle=oracle,
        tensors=tensors(verdict),
        place=_place(verdict),
        features=ordered(switches(case) | facts(case) | traits(case) if features is None else features),
    )


def root(verdict: Verdict) -> Finding | None:
    """The finding that the others may follow from: by kind, then by how early its tensor is computed."""
    return min(verdict.findings, key=_order, default=None)


def tensors(verdict: Verdict) -> tuple[str, ...]:
    """The root tensors: those with a finding of the root's class (numbers: wrong, nan, nondeterministic) and stage.

    A wrong output makes every gradient wrong, so it is ('o',); a wrong LSE alone is ('lse',); otherwise the gradients.
    """
    first = root(verdict)
    if first is None:
        return ()
    same = [f for f in verdict.findings if _rank(f) == _rank(first) and _stage(f) == _stage(first)]
    return tuple(sorted({f.tensor for f in same if f.tensor}))


def same_failure(known: Verdict, found: Verdict) -> bool:
    """True if `found` fails as `known` does: kind, oracle, a root tensor; the error's type where it raised."""
    if not found.bad or _failure(known) != _failure(found):
        return False
    untyped = _failure(known)[0] not in _TYPED
    return _overlap(tensors(known), tensors(found)) and (untyped or _place(known) == _place(found))


def explains(known: Signature, found: Signature) -> bool:
    """True if the bug `known` (minimised) accounts for the failure `found` (raw or minimised)."""
    return (
        (known.target, known.kind, known.oracle) == (found.target, found.kind, found.oracle)
        and (_overlap(known.tensors, found.tensors) or (_is_forward(known) and _blind_forward(found)))
        and _compatible(known, found)
        and set(known.features) <= set(found.features)
    )


def look_alike(one: Signature, other: Signature) -> bool:
    """True if two minimised failures are one bug seen from two sides: what they need is equal, and so is the pass
    that goes wrong. Where O happens to be right, as for constant values, the same bug shows in LSE alone; and which
    lengths a reduction ends at is partly chance. A second bug with the same needs is reported once the first is fixed.
    """
    same_pass = _is_forward(one) == _is_forward(other) or _blind_forward(one) or _blind_forward(other)
    return same_pass and (one.target, one.kind, one.oracle, _needs(one)) == (
        other.target,
        other.kind,
        other.oracle,
        _needs(other),
    )


def _needs(signature: Signature) -> frozenset[str]:
    """The options among its features, without their details ('scale:zero' is 'scale').

    Wrong numbers that need no option are told apart by the side with a tail; writes out of bounds are not. Where rows
    without keys remain after minimising, they are the need, whichever mask made them.
    """
    options = frozenset(name.partition(":")[0] for name in signature.features) & _OPTIONS
    if ROWS_WITHOUT_KEYS in signature.features:
        options = (options - _MASKS) | {ROWS_WITHOUT_KEYS}
    if options or signature.oracle == "memory":
        return options
    return frozenset(signature.features) & {"len_q:tail", "len_k:tail"}


def _blind_forward(signature: Signature) -> bool:
    """True if it was met on exact inputs, whose O does not depend on the scores' size: what is wrong with those shows
    in the gradients alone."""
    return bool(_EXACT_INPUTS & set(signature.features))


def _is_forward(signature: Signature) -> bool:
    return bool(signature.tensors) and set(signature.tensors) <= set(_STAGES)


def _failure(verdict: Verdict) -> tuple[str, str]:
    first = root(verdict)
    return (first.kind, _SAME_ORACLE.get(first.oracle, first.oracle)) if first else (verdict.outcome, "runner")


def _place(verdict: Verdict) -> str:
    first = root(verdict)
    return first.place.pattern if first else ""


def _order(finding: Finding) -> tuple[int, int, int, str, str]:
    within = _NUMERIC.index(finding.kind) if finding.kind in _NUMERIC else 0
    return _rank(finding), _stage(finding), within, finding.oracle, finding.kind


def _rank(finding: Finding) -> int:
    return _KIND_RANK.get(finding.kind, len(_KINDS))


def _stage(finding: Finding) -> int:
    numeric = finding.kind in _NUMERIC or finding.oracle in _COMPARING
    return _STAGES.get(finding.tensor, _GRADIENTS) if numeric else 0


def _overlap(known: tuple[str, ...], found: tuple[str, ...]) -> bool:
    return not known or not found or bool(set(known) & set(found))


def _compatible(known: Signature, found: Signature) -> bool:
    """True if the places may be of one bug.

    Of a small case they are coarse (its only tile is the first, the last and all), so only the two ends of a long
    sequence contradict each other. An error's place is its type, which must be the same.
    """
    if known.kind in _TYPED:
        return known.place == found.place
    ends = {known.place, found.place}
    long = all("len_q:many_tiles" in s.features for s in (known, found))
    return not (long and "first rows" in ends and ends & _TAIL)
