"""Signature: what makes two failures the same bug, and when a known one explains a new one.

A signature names the cause as far as a failure shows it: target, kernel, source line, kind, oracle and root tensors
(those of the earliest finding, below). Addresses and the mask's kind are no part of it. The features are evidence: a
raw failure has all those of its case, a minimised one only those that it needs, and explains what has at least these.

What two failures may differ in and still be one bug is said here alone: `explains` for a known one and a raw one,
`look_alike` for two minimised ones, `probably_one` for a hint to readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from fuzz.core.case import CODED, Case
from fuzz.core.features import MASKED, ROWS_WITHOUT_KEYS, facts, ordered, switches, traits
from fuzz.core.verdict import Finding, Signature, Verdict, summary
from oracles.masks import KINDS

__all__ = [
    "ANY_RELATION",
    "Signature",
    "cause",
    "explains",
    "look_alike",
    "needs",
    "probably_one",
    "root",
    "root_summary",
    "same_failure",
    "signature",
    "tensors",
    "typed",
]

UNWRITTEN = "read_of_uninitialised_memory"
# Causes stand first: a kernel that writes outside its buffers may well be wrong too, not the other way round. So what
# the emulated GPU sees while a kernel runs stands before the deadlock that follows from it.
_KINDS: tuple[tuple[str, ...], ...] = (
    ("32-bit_arithmetic_wrapped_in_an_address",),
    ("out_of_bounds", "misaligned_access", "address_of_no_tensor", "out_of_bounds_of_shared_memory"),
    ("barrier_in_a_divergent_branch", "barrier_with_a_wrong_count", "mbarrier_misused"),
    ("race",),
    (UNWRITTEN,),
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
ANY_RELATION = "any_relation"  # kind of a known cause that every follow-up case may show, whichever its relation
_SAME_ORACLE = {"exact": "accuracy"}  # wrong numbers are one bug, whichever inputs show it
_STAGES = {
    "blocks": -2,
    "groups": -1,
    "o": 0,
    "lse": 1,
}  # later tensors are wrong because an earlier one is; gradients share a stage
_GRADIENTS = 2
_EMULATOR = "emulator"
_SHARED = "shared memory"
_TYPED = frozenset({"raised", "refused", "crash"})  # their place is the error's type, or the phase that died
_OPTIONS = frozenset(
    {"packed", "softcap", "scale", "bias", "causal", "window", "prefix", "documents", "intervals", "blocks", "tokens"}
    | {
        "and",
        "or",
        "not",
        "top_k",
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
    | {"strict", "w_k", "w_v", "w_gate", "groups"}
    | {"variant", MASKED}
)
_LAYOUT = {"pad": "strides", "offset": "strides"}  # one option: how tensors lie in memory
_TAILS = frozenset({"len_q:tail", "len_k:tail"})
_SAY_LITTLE = frozenset({MASKED, "variant", "ragged", "packed", "backward"})
_MASKS = frozenset(KINDS) | {MASKED}  # what a mask is made of: how a row lost its keys does not matter
_EXACT_INPUTS = frozenset(f"inputs:{style}" for style in CODED)
_TAIL = frozenset({"last tile", "last row", "row tail"})
_INDEX = re.compile(r"[\[,].*|, \d+ bytes.*| byte \d+.*")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THE_KERNELS = re.compile(r"site-packages|/lib/python|/fuzz/|/oracles/|^<")


def signature(case: Case, verdict: Verdict, features: Iterable[str] | None = None) -> Signature:
    """The signature of a bad verdict on `case`.

    features  those that the failure needs, where the minimizer has found out; else all that `case` has of switches,
              facts and traits
    Raises ValueError when the verdict is not a failure.
    """
    if not verdict.bad:
        raise ValueError(f"verdict: needs a failure to sign, got '{verdict.outcome}' of case {verdict.case_id}")
    kind, oracle = _failure(verdict)
    return normal(
        Signature(
            target=case.target,
            kind=kind,
            oracle=oracle,
            tensors=tensors(verdict),
            place=_place(verdict),
            features=ordered(switches(case) | facts(case) | traits(case) if features is None else features),
            line=source_line(verdict),
        )
    )


def cause(found: Signature) -> Signature:
    """`found` without its evidence: equal for failures that nothing but their features and places tells apart."""
    known = normal(found)
    return replace(known, features=(), place=known.place if known.kind in _TYPED else "")


def normal(found: Signature) -> Signature:
    """`found` in one form: kinds of races are one, addresses are left out, and the place of what the emulated GPU saw
    is its kernel. What nothing has written is read by whichever kernel comes first, so there the kernel is no sign of
    the cause."""
    changes: dict[str, Any] = {}
    if (kind := _kind(found.kind)) != found.kind:
        changes["kind"] = kind
    if (names := _names(found.tensors)) != found.tensors:
        changes["tensors"] = names
    if found.oracle == _EMULATOR and (found.place or found.kernel):
        anywhere = found.kind == UNWRITTEN and names != (_SHARED,)
        changes |= {"kernel": "" if anywhere else found.kernel or found.place, "place": ""}
    return replace(found, **changes) if changes else found


def located(found: Signature) -> bool:
    """True if the failure names kernel and tensor, as what the emulated GPU sees does but for a deadlock: then the
    features are evidence alone."""
    return found.oracle == _EMULATOR and found.kind != "hang"


def root(verdict: Verdict) -> Finding | None:
    """The finding that the others may follow from: by kind, then by how early its tensor is computed."""
    return min(verdict.findings, key=_order, default=None)


def root_summary(verdict: Verdict) -> str:
    """One line: the outcome and the finding that the others may follow from."""
    first = root(verdict)
    return summary(verdict if first is None else replace(verdict, findings=(first,)))


def tensors(verdict: Verdict) -> tuple[str, ...]:
    """The root tensors: those with a finding of the root's class (numbers: wrong, nan, nondeterministic) and stage.

    A wrong output makes every gradient wrong, so it is ('o',); a wrong LSE alone is ('lse',); otherwise the gradients.
    An index ('lse[0, 97]') is left out.
    """
    first = root(verdict)
    if first is None:
        return ()
    same = [f for f in verdict.findings if _rank(f) == _rank(first) and _stage(f) == _stage(first)]
    return _names(f.tensor for f in same if f.tensor)


def source_line(verdict: Verdict) -> str:
    """'file.py:12' of the kernel under test, where the failure names one: the innermost frame, of the traceback of an
    exception or of the stack of a crash, that is neither the harness's nor a library's; else ''."""
    first = root(verdict)
    if first is not None and first.place.source:
        return first.place.source
    if _failure(verdict)[0] not in _TYPED:
        return ""
    text = str(verdict.evidence.get("traceback", ""))
    frames = [(path, line) for path, line in _FRAME.findall(text) if not _NOT_THE_KERNELS.search(path)]
    return "{}:{}".format(frames[-1][0].rpartition("/")[2], frames[-1][1]) if frames else ""


def same_failure(known: Verdict, found: Verdict) -> bool:
    """True if `found` fails as `known` does: kind, oracle, a root tensor; the error's type where it raised."""
    if not found.bad or _failure(known) != _failure(found):
        return False
    untyped = _failure(known)[0] not in _TYPED
    return _overlap(tensors(known), tensors(found)) and (untyped or _place(known) == _place(found))


def typed(verdict: Verdict) -> bool:
    """True if the failure is an error or a process that died: the error's type, or the phase, tells it apart."""
    return _failure(verdict)[0] in _TYPED


def explains(known: Signature, found: Signature) -> bool:
    """True if the bug `known` (minimised) accounts for the failure `found` (raw or minimised)."""
    known, found = normal(known), normal(found)
    return (
        (known.target, known.oracle) == (found.target, found.oracle)
        and (known.kind == found.kind or (known.oracle in _COMPARING and known.kind == ANY_RELATION))
        and (_overlap(known.tensors, found.tensors) or (_is_forward(known) and _blind_forward(found)))
        and _one_spot(known, found)
        and _compatible(known, found)
        and (located(known) or set(known.features) <= set(found.features))
    )


def look_alike(one: Signature, other: Signature, *, in_session: bool = False) -> bool:
    """True if two minimised failures are one bug seen from two sides: what they need is equal, and so is the pass
    that goes wrong. Where O happens to be right, as for constant values, the same bug shows in LSE alone; and which
    lengths a reduction ends at is partly chance. Deadlocks of one kernel are one unless each needs an option that the
    other does not. Gradients that need no option are one where they have a tensor in common. A second bug with the same
    needs is reported once the first is fixed.

    in_session  both were met in one session: numbers that are wrong, NaN or differ from run to run are one kind then,
                and one of the two may need more than the other
    """
    one, other = normal(one), normal(other)
    if one.target != other.target:
        return False
    if located(one) and located(other):
        return _one_access(one, other)
    if one.kind == other.kind == "hang" and one.oracle == other.oracle == _EMULATOR:
        return one.kernel == other.kernel and _subset(needs(one), needs(other))
    alike = _class(one) == _class(other) if in_session else (one.kind, one.oracle) == (other.kind, other.oracle)
    enough = needs(one) == needs(other) or (in_session and _narrower(needs(one), needs(other)))
    if not (needs(one) | needs(other)) - _TAILS and not _one_shape(one, other):
        return False
    return alike and enough and _same_pass(one, other) and _one_spot(one, other)


def probably_one(one: Signature, other: Signature) -> str:
    """Why two findings that stay apart may be one bug, for readers: 'same line …', 'same tensor …', 'both need …'; '':
    no sign of it."""
    one, other = normal(one), normal(other)
    if one.target != other.target:
        return ""
    if one.line and one.line == other.line:
        return f"same line, {one.line}"
    where = f" of the {one.kernel} kernel" if one.kernel and one.kernel == other.kernel else ""
    both = [name for name in one.tensors if name in other.tensors]
    if both:
        return f"same tensor{'s' if len(both) > 1 else ''}, {', '.join(both)}{where}"
    if one.kind == other.kind == "hang":
        return "both are hangs"
    options = needs(one) & needs(other)
    return f"both need {', '.join(ordered(options))}" if options and _subset(needs(one), needs(other)) else ""


def needs(signature: Signature) -> frozenset[str]:
    """The options among the features of a signature, without their details ('scale:zero' is 'scale').

    Numbers that are wrong in every run and need no option are told apart by the side with a tail; other failures are
    not. Where rows without keys remain after minimising, they are the need, whichever mask made them.
    """
    names = (name.partition(":")[0] for name in signature.features)
    options = frozenset(_LAYOUT.get(name, name) for name in names) & _OPTIONS
    if signature.oracle == _EMULATOR:
        return options - {"variant"}
    if ROWS_WITHOUT_KEYS in signature.features:
        options = (options - _MASKS) | {ROWS_WITHOUT_KEYS}
    if options or signature.kind not in ("nan", "wrong"):
        return options
    return frozenset(signature.features) & _TAILS


def _one_access(one: Signature, other: Signature) -> bool:
    """True if two failures of one kernel's accesses, or of two kernels', come from one wrong index or one missing wait:
    they need the same options, at least one, and are of one kind, or of one kernel and tensor."""
    same_spot = one.kernel == other.kernel and _overlap(one.tensors, other.tensors)
    return bool(needs(one)) and needs(one) == needs(other) and (one.kind == other.kind or same_spot)


def _one_shape(one: Signature, other: Signature) -> bool:
    """True if two failures that need no option may be one all the same: gradients with one in common, and follow-up
    cases with follow-up cases."""
    if (one.oracle in _COMPARING) != (other.oracle in _COMPARING):
        return False
    return _is_forward(one) or _is_forward(other) or _overlap(one.tensors, other.tensors)


def _narrower(one: frozenset[str], other: frozenset[str]) -> bool:
    """True if one of two failures needs all that the other needs, which is an option that says something, and more: a
    mask or a variant alone says little."""
    least = min(one, other, key=len)
    return _subset(one, other) and bool(least - _SAY_LITTLE)


def _subset(one: frozenset[str], other: frozenset[str]) -> bool:
    """True if one of them holds the other."""
    return one <= other or other <= one


def _class(signature: Signature) -> tuple[str, str]:
    """Kind and oracle, as far as they tell bugs apart: numbers that are wrong, NaN or differ are one class."""
    numeric = signature.kind in _NUMERIC or signature.oracle in _COMPARING
    return ("numbers", "") if numeric else (signature.kind, signature.oracle)


def _same_pass(one: Signature, other: Signature) -> bool:
    if _class(one)[0] != "numbers":
        return _overlap(one.tensors, other.tensors)
    return _is_forward(one) == _is_forward(other) or _blind_forward(one) or _blind_forward(other)


def _one_spot(one: Signature, other: Signature) -> bool:
    """True if kernel and source line may be the same: where both are known they are."""
    return all(not a or not b or a == b for a, b in ((one.kernel, other.kernel), (one.line, other.line)))


def _blind_forward(signature: Signature) -> bool:
    """True if it was met on exact inputs, whose O does not depend on the scores' size: what is wrong with those shows
    in the gradients alone."""
    return bool(_EXACT_INPUTS & set(signature.features))


def _is_forward(signature: Signature) -> bool:
    return bool(signature.tensors) and set(signature.tensors) <= set(_STAGES)


def _failure(verdict: Verdict) -> tuple[str, str]:
    first = root(verdict)
    return (_kind(first.kind), _SAME_ORACLE.get(first.oracle, first.oracle)) if first else (verdict.outcome, "runner")


def _place(verdict: Verdict) -> str:
    first = root(verdict)
    return first.place.pattern if first else ""


def _kind(kind: str) -> str:
    """Races in either order, and of two writes, are one kind."""
    return "race" if kind.startswith("race_") else kind


@lru_cache(maxsize=1024)
def _without_index(tensor: str) -> str:
    return _INDEX.sub("", tensor)


def _names(found: Iterable[str]) -> tuple[str, ...]:
    """Names of tensors without the addresses in them, each once."""
    return tuple(sorted({_without_index(name) for name in found}))


def _order(finding: Finding) -> tuple[int, int, int, str, str]:
    within = _NUMERIC.index(finding.kind) if finding.kind in _NUMERIC else 0
    return _rank(finding), _stage(finding), within, finding.oracle, finding.kind


def _rank(finding: Finding) -> int:
    return _KIND_RANK.get(_kind(finding.kind), len(_KINDS))


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
