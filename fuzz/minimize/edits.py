"""Editing a Case: the few ways in which every pass changes one. An edit that no constructor accepts is None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fuzz.core.case import Case
from oracles.masks import Mask, PerBatch, TopK, parts

replace = msgspec.structs.replace


def edit(case: Case, **changes: Any) -> Case | None:
    """`case` with fields of its problem changed; None where a constructor refuses the values, or the operation has no
    such field."""
    try:
        return replace(case, problem=case.problem.edited(**changes))
    except ValueError:
        return None


def edit_inputs(case: Case, **changes: Any) -> Case | None:
    """`case` with fields of its inputs changed; None where a constructor refuses the values."""
    try:
        return replace(case, inputs=replace(case.inputs, **changes))
    except ValueError:
        return None


def with_lengths(case: Case, pairs: Sequence[tuple[int, int]]) -> Case | None:
    """`case` with these (len_q, len_k), one pair per sequence."""
    return edit(case, lengths_q=tuple(q for q, _ in pairs), lengths_k=tuple(k for _, k in pairs))


def pairs(case: Case) -> list[tuple[int, int]]:
    """(len_q, len_k) of every sequence."""
    return list(zip(case.problem.lengths_q, case.problem.lengths_k, strict=True))


def keep_sequences(case: Case, kept: Sequence[int]) -> Case | None:
    """`case` with only the sequences `kept`, each with the mask that it had."""
    if not kept:
        return None
    here = pairs(case)
    return edit(
        case,
        lengths_q=tuple(here[b][0] for b in kept),
        lengths_k=tuple(here[b][1] for b in kept),
        mask=_of_sequences(case.problem.mask, kept),
    )


def rebuild(mask: Mask, index: int, part: Mask) -> Mask:
    """`mask` with its part number `index` replaced."""
    if isinstance(mask.of, tuple):  # type: ignore[union-attr]
        of = list(mask.of)  # type: ignore[union-attr]
        of[index] = part
        return replace(mask, of=tuple(of))
    return replace(mask, of=part)


def _of_sequences(mask: Mask, kept: Sequence[int]) -> Mask:
    if isinstance(mask, PerBatch):
        chosen = tuple(mask.of[b % len(mask.of)] for b in kept)
        return chosen[0] if len(set(chosen)) == 1 else PerBatch(chosen)
    if isinstance(mask, TopK) and mask.sequence is None and list(kept) != list(range(len(kept))):
        pinned = tuple(replace(mask, sequence=b) for b in kept)
        return pinned[0] if len(pinned) == 1 else PerBatch(pinned)
    for index, part in enumerate(parts(mask)):
        mask = rebuild(mask, index, _of_sequences(part, kept))
    return mask
