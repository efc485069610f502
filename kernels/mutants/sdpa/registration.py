"""Registration of the mutants of `kernels.sdpa`: steps of their own at injection points, and a name. The files beside
this one hold the mutants; each adds its own to MUTANTS when it is imported."""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from kernels.mutants.mutant import Mutant
from kernels.sdpa.api import attention, launches_of
from kernels.sdpa.checks import check_call
from kernels.sdpa.injection import InjectionPoints, register_injection
from kernels.sdpa.launch import compile_launches

MUTANTS: dict[str, Mutant] = {}


def register_mutant(name: str, summary: str, source: str, **steps: Any) -> None:
    """Registers a mutant: `steps` are fields of `kernels.sdpa.injection.InjectionPoints`."""
    injection = f"sdpa!{name}"
    register_injection(injection, replace(InjectionPoints(), **steps))
    call = partial(_injected, injection)
    MUTANTS[name] = Mutant(name, summary, source, ", ".join(steps), call)


def _injected(
    injection: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`scaled_dot_product_attention` with a mutant's steps."""
    call = check_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return attention(call, query.shape[-3:-2], return_lse, injection)


def prepare(
    injection: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    backward: bool = True,
    grad_out: Tensor | None = None,
) -> int:
    """`kernels.sdpa.prepare` with a mutant's steps."""
    call = check_call(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
    return compile_launches(launches_of(call, backward, grad_out, None, injection))
