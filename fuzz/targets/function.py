"""@target: a user's own attention function as a target, in ten lines.

    from fuzz.targets import target

    @target("mine", dtypes=["float32"])
    def attention(q, k, v, mask, scale):
        scores = q @ k.transpose(-1, -2) * scale
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v

The names of the function's parameters say what it can express; whatever it does not take is never asked of it:
    q, k, v      (batch, heads, length, dim), or packed (total, heads, dim) with layouts=["packed"]
    mask         bool (batch or 1, heads_q or 1, len_q, len_k), True = keep; always given. Without it only `causal` can
                 say anything about a mask
    causal       bool: the mask is exactly causal (top-left); where the function takes no `mask`, only full and causal
                 are asked
    scale        float
    softcap      float, 0 = none;  bias  additive, broadcastable, or None
    cu_seqlens_q, cu_seqlens_k, max_len_q, max_len_k   int32 tensors and ints of a packed problem
    problem      the whole Problem
It returns O, or (O, LSE). Gradients come from autograd. Heads of k and v may be fewer than q's unless gqa=False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors
from fuzz.targets.autograd import AutogradTarget, parameters
from oracles.masks import KINDS, Causal, Full
from oracles.numerics import FUSED, Numerics
from oracles.problem import cumulative, dense_mask

DECLARED: list[FunctionTarget] = []


class FunctionTarget(AutogradTarget):
    """A user's function. See the module's text for the parameters."""

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

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """Calls the function with the arguments that it names."""
        p = case.problem
        offered: dict[str, Callable[[], Any]] = {
            "mask": lambda: dense_mask(p, tensors.q.device),
            "causal": lambda: p.mask == Causal(),
            "scale": lambda: p.scale_value,
            "softcap": lambda: p.softcap,
            "bias": lambda: tensors.bias,
            "problem": lambda: p,
            "cu_seqlens_q": lambda: _starts(p.lengths_q, tensors.q),
            "cu_seqlens_k": lambda: _starts(p.lengths_k, tensors.q),
            "max_len_q": lambda: p.len_q,
            "max_len_k": lambda: p.len_k,
            **{key: partial(case.variant.__getitem__, key) for key in case.variant},
        }
        given = {key: make() for key, make in offered.items() if key in self.parameters}
        answer = self.surface.call(self.function, tensors.q, tensors.k, tensors.v, **given)
        return answer if isinstance(answer, tuple) else (answer, None)

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (self.surface,)

    def script_call(self, case: Case) -> Text:
        """`forward` as text, with the source of the function and of what it uses in its own file."""
        from fuzz.targets.function_source import user_call

        return user_call(case, self.function, self.parameters)

    def executed(self, case: Case, o: Tensor) -> str:
        """The function's own name: a user's function proves nothing more unless it declares `proof`."""
        return super().executed(case, o) if self.proof else self.function.__qualname__


def target(
    name: str,
    *,
    device: Device | Iterable[Device] = ("host", "cuda"),
    dtypes: Iterable[str] | None = None,
    layouts: Iterable[str] = ("padded",),
    masks: Iterable[str] | None = None,
    dims: tuple[int, int, int] = (1, 256, 1),
    gqa: bool = True,
    dim_v_differs: bool = True,
    zero_lengths: bool = True,
    strides: bool = True,
    backward: bool = True,
    max_pairs: int = 1 << 20,
    numerics: Numerics = FUSED,
    proof: Iterable[str] = (),
    deterministic: bool = True,
    rules: Iterable[Rule] = (),
    variants: Iterable[dict[str, str | int | bool]] = ({},),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the decorated function a target named `name`; the function itself is returned unchanged.

    Raises ValueError for an unknown device, dtype or mask kind.
    """
    devices: tuple[Any, ...] = (device,) if isinstance(device, str) else tuple(device)
    _known("device", devices, ("host", "cuda"))
    _known("dtypes", dtypes or (), ("float16", "bfloat16", "float32"))
    _known("layouts", layouts, ("padded", "packed"))
    _known("masks", masks or (), tuple(KINDS))

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        asked = parameters(function)
        expressible: frozenset[str] | None = frozenset(masks) if masks is not None else None
        if not asked & {"mask", "problem"}:
            expressible = frozenset({"full", "causal"} if "causal" in asked else {"full"})
        blind = not asked & {"mask", "problem"}
        support = Support(
            dtypes=tuple(dtypes or ("float16", "bfloat16", "float32")),  # type: ignore[arg-type]
            layouts=tuple(layouts),  # type: ignore[arg-type]
            masks=expressible,
            ragged=not blind,
            bias=bool(asked & {"bias", "problem"}),
            bias_grad=bool(asked & {"bias"}),
            softcap=bool(asked & {"softcap", "problem"}),
            scale=bool(asked & {"scale", "problem"}),
            gqa=gqa,
            dim=dims,
            dim_v_differs=dim_v_differs,
            zero_lengths=zero_lengths,
            strides=strides,
            shared=strides,
            backward=backward,
            lse=True,
            max_pairs=max_pairs,
        )
        extra = (Rule("causal masks other than plain top-left", _odd_causal),) if blind and "causal" in asked else ()
        for where in devices:
            made = FunctionTarget(
                name,
                function,
                where,
                support,
                rules=(*extra, *rules),
                numerics=numerics,
                proof=tuple(proof),
                deterministic=deterministic,
                variants=tuple(variants),
                pairs_per_second=2e6 if where == "host" else 1e9,
            )
            DECLARED.append(made)
        return function

    return declare


def _odd_causal(case: Case) -> bool:
    return case.problem.mask not in (Full(), Causal())


def _starts(lengths: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.tensor(cumulative(lengths), dtype=torch.int32, device=like.device)


def _known(field: str, given: Iterable[Any], allowed: tuple[str, ...]) -> None:
    for value in given:
        if value not in allowed:
            raise ValueError(f"{field}: must be one of {', '.join(allowed)}, got {value!r}")
