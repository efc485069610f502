"""A target's call as text: what `attnfuzz repro --script` writes into a bug report.

Target.script_call(case) gives a Text, which says in plain code what its `forward` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracles.masks import Causal, Full
from oracles.problem import AnyProblem


class ScriptError(ValueError):
    """No script can be written; one line."""


@dataclass(frozen=True)
class Text:
    """Text of a target's call.

    call      lines that leave `o` (and `lse`, where `lse` is True) behind. They may use q, k, v, the tensor `bias` of a
              problem with one, and `keep`, bool (batch or 1, heads_q or 1, len_q, len_k), where `mask` is True
    imports   import lines; torch is there already
    setup     lines before the inputs are made: functions, the source of a user's kernel
    mask      whether `call` reads `keep`
    lse       whether `call` makes `lse`, natural logarithm, in the problem's layout
    emulated  of a kernel that runs on the emulated GPU: a context manager in which `call` and the backward pass run,
              and whose value has `reports`, those of its launches; "": it runs elsewhere
    """

    call: tuple[str, ...]
    imports: tuple[str, ...] = ()
    setup: str = ""
    mask: bool = False
    lse: bool = False
    emulated: str = ""


def dense_text(problem: AnyProblem) -> tuple[str, bool]:
    """attn_mask and is_causal as `base.dense_arguments` chooses them, as text; and whether `keep` is read."""
    p = problem
    if p.bias is None and not p.ragged:
        if p.mask == Full():
            return "", False
        if p.mask == Causal():
            return "is_causal=True", False
    if p.bias is None:
        return "attn_mask=keep", True
    if p.mask == Full() and not p.ragged:
        return "attn_mask=bias", False
    return 'attn_mask=torch.where(keep, bias, float("-inf"))', True


def options(problem: AnyProblem) -> list[str]:
    """scale and enable_gqa, where they are not the defaults."""
    p = problem
    return ([f"scale={p.scale!r}"] if p.scale is not None else []) + (["enable_gqa=True"] if p.group > 1 else [])
