"""The arguments that a user's function (@target) may name: for each its value, and its text in a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Tensors
from oracles.masks import Align, Causal
from oracles.problem import AnyProblem, cumulative, dense_mask

MASKS = frozenset({"mask", "problem"})  # a function that names one of these can express any mask


@dataclass(frozen=True)
class Argument:
    """value: what the function is given for a case and its tensors; text: the same in a script, which has tensors q, k,
    v, `bias` and `keep` (see fuzz/core/script_call.py). Both take the alignment of the function's causal masks last."""

    value: Callable[[Case, Tensors, Align], Any]
    text: Callable[[Case, Align], str]


def exactly_causal(p: AnyProblem, align: Align) -> bool:
    """True if the mask hides from each row of q what a causal mask of this alignment hides, and nothing else: there is
    no padding of keys. Where queries and keys are equally many both alignments are the same."""
    return _causal(p, align) and not (p.layout == "padded" and p.ragged)


def causal_but_for_padding(p: AnyProblem, align: Align) -> bool:
    """As `exactly_causal`, where a key padding mask says the rest: aligned at the top left, as lengths are unknown."""
    return _causal(p, align) and (align == "top_left" or not (p.layout == "padded" and p.ragged))


def _causal(p: AnyProblem, align: Align) -> bool:
    if not isinstance(p.mask, Causal):
        return False
    return p.mask.align == align or p.lengths_q == p.lengths_k


def _key_padding(p: AnyProblem, like: Tensor) -> Tensor:
    """(batch, 1, 1, len_k) bool, True = keep."""
    lengths = torch.tensor(p.lengths_k, device=like.device)
    return (torch.arange(p.len_k, device=like.device) < lengths[:, None])[:, None, None]


def _starts(lengths: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.tensor(cumulative(lengths), dtype=torch.int32, device=like.device)


def _starts_text(lengths: tuple[int, ...]) -> str:
    return f"torch.tensor({list(cumulative(lengths))}, dtype=torch.int32, device=DEVICE)"


ARGUMENTS: dict[str, Argument] = {
    "mask": Argument(lambda c, t, align: dense_mask(c.problem, t.q.device), lambda c, align: "keep"),
    "key_padding_mask": Argument(
        lambda c, t, align: _key_padding(c.problem, t.q),
        lambda c, align: (
            f"(torch.arange({c.problem.len_k}, device=DEVICE) < "
            f"torch.tensor({list(c.problem.lengths_k)}, device=DEVICE)[:, None])[:, None, None]"
        ),
    ),
    "causal": Argument(
        lambda c, t, align: exactly_causal(c.problem, align), lambda c, align: repr(exactly_causal(c.problem, align))
    ),
    "scale": Argument(lambda c, t, align: c.problem.scale_value, lambda c, align: "SCALE"),
    "softcap": Argument(lambda c, t, align: c.problem.softcap, lambda c, align: repr(c.problem.softcap)),
    "bias": Argument(lambda c, t, align: t.bias, lambda c, align: "bias" if c.problem.bias is not None else "None"),
    "problem": Argument(lambda c, t, align: c.problem, lambda c, align: "problem"),
    "cu_seqlens_q": Argument(
        lambda c, t, align: _starts(c.problem.lengths_q, t.q), lambda c, align: _starts_text(c.problem.lengths_q)
    ),
    "cu_seqlens_k": Argument(
        lambda c, t, align: _starts(c.problem.lengths_k, t.q), lambda c, align: _starts_text(c.problem.lengths_k)
    ),
    "max_len_q": Argument(lambda c, t, align: c.problem.len_q, lambda c, align: str(c.problem.len_q)),
    "max_len_k": Argument(lambda c, t, align: c.problem.len_k, lambda c, align: str(c.problem.len_k)),
}
_BESIDE_PADDING = Argument(
    lambda c, t, align: causal_but_for_padding(c.problem, align),
    lambda c, align: repr(causal_but_for_padding(c.problem, align)),
)


def arguments_of(named: frozenset[str]) -> dict[str, Argument]:
    """The arguments of a function whose parameters are `named`."""
    found = {name: argument for name, argument in ARGUMENTS.items() if name in named}
    if "causal" in found and "key_padding_mask" in named and not named & MASKS:
        found["causal"] = _BESIDE_PADDING
    return found
