"""FunctionTarget: a user's own function as a target; made by @target of function.py."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import AutogradTarget, parameters
from fuzz.targets.user_function.extra_tensors import Reference, Shapes, extra_tensors, own_reference
from fuzz.targets.user_function.function_arguments import MASKS, arguments_of, causal_but_for_padding, exactly_causal
from oracles.masks import Align, Full
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, dense_mask

MOST_PAIRS = 1 << 22  # of all heads, up to which rows without keys are looked for


class FunctionTarget(AutogradTarget):
    """A user's function. See fuzz/targets/user_function/function.py for its parameters.

    axes          order of q, k, v and O: 'bhsd' as everywhere, or 'bshd' (batch, length, heads, dim)
    causal_align  what the function's `causal=True` means where queries and keys are not equally many
    empty_rows    False: rows without keys are undefined, and never asked about
    extra         shapes of further tensors by name, which the function takes as keywords
    reference     the right answer of an operation that is not attention, or None
    """

    axes: str = "bhsd"
    causal_align: Align = "top_left"
    empty_rows: bool = True
    extra: Shapes = MappingProxyType({})
    reference: Reference | None = None

    def __init__(self, name: str, function: Callable[..., Any], device: Device, support: Support, **more: Any) -> None:
        self.name = name
        self.function = function
        self.device = device
        self.support = support
        self.summary = (function.__doc__ or "").strip().split("\n")[0]
        self.parameters = parameters(function)
        self.surface = Surface.of(function)
        for key, value in more.items():
            setattr(self, key, value)
        self.rules = (*self._own_rules(), *self.rules)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """Calls the function with the arguments that it names."""
        given = {name: x.value(case, tensors, self.causal_align) for name, x in arguments_of(self.parameters).items()}
        given |= {name: value for name, value in case.variant.items() if name in self.parameters}
        given |= extra_tensors(self.extra, case, tensors.q.device)
        q, k, v = (self._turned(x) for x in (tensors.q, tensors.k, tensors.v))
        answer = self.surface.call(self.function, q, k, v, **given)
        o, lse = answer if isinstance(answer, tuple) else (answer, None)
        return (self._turned(o) if isinstance(o, Tensor) else o), lse

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (self.surface,)

    def right(self, case: Case, tensors: Tensors, precision: torch.dtype) -> Outputs | None:
        """See Target."""
        if self.reference is None:
            return None
        return own_reference(self.reference, self.extra, case, tensors, precision)

    def script_call(self, case: Case) -> Text:
        """`forward` as text, with the source of the function and of what it uses in its own file."""
        from fuzz.targets.user_function.function_source import user_call

        if self.extra or self.reference is not None:
            raise ScriptError(f"target {self.name!r} has a reference or tensors of its own: there is no script for it")
        return user_call(
            case, self.function, self.parameters, align=self.causal_align, axes=self.axes, host=self.device == "host"
        )

    def executed(self, case: Case, o: Tensor) -> str:
        """The function's own name: a user's function proves nothing more unless it declares `proof`."""
        return super().executed(case, o) if self.proof else self.function.__qualname__

    def _turned(self, x: Tensor) -> Tensor:
        """Heads and length swapped where the function has them the other way round."""
        return x.transpose(1, 2) if self.axes == "bshd" and x.dim() == 4 else x

    def _own_rules(self) -> tuple[Rule, ...]:
        found = []
        if not self.parameters & MASKS and "causal" in self.parameters:
            exact = causal_but_for_padding if "key_padding_mask" in self.parameters else exactly_causal
            align = self.causal_align
            shown = align.replace("_", " ")
            found.append(
                Rule(
                    f"causal masks that are not plain, aligned at the {shown}",
                    lambda c: c.problem.mask != Full() and not exact(c.problem, align),
                )
            )
        if not self.empty_rows:
            found.append(Rule("rows without keys, which are undefined", lambda c: _has_empty_rows(c.problem)))
        return tuple(found)


def _has_empty_rows(p: AnyProblem) -> bool:
    """True if a row of a sequence sees no key; looked for in small problems only."""
    if any(q and not k for q, k in zip(p.lengths_q, p.lengths_k, strict=True)):
        return True
    if p.mask == Full() or p.batch * p.heads_q * p.len_q * p.len_k > MOST_PAIRS:
        return False
    seen = dense_mask(p, torch.device("cpu")).any(-1)
    return any(not bool(seen[min(b, len(seen) - 1), :, :length].all()) for b, length in enumerate(p.lengths_q))
