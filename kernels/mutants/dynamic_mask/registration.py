"""Registration of the mutants of `kernels.dynamic_mask`: steps of their own at injection points, and a name."""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from kernels.dynamic_mask.api import Answer, answer_of, checked
from kernels.dynamic_mask.injection import InjectionPoints, register_injection
from kernels.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {}


def register_mutant(name: str, summary: str, source: str, **steps: Any) -> None:
    """Registers a mutant: `steps` are fields of `kernels.dynamic_mask.injection.InjectionPoints`."""
    injection = f"dynamic_mask!{name}"
    register_injection(injection, replace(InjectionPoints(), **steps))
    MUTANTS[name] = Mutant(name, summary, source, ", ".join(steps), partial(_injected, injection))


def _injected(
    injection: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    deterministic: bool = True,
    num_splits: int = 0,
    **options: Any,
) -> Answer:
    """`dynamic_mask_answer` with a mutant's steps."""
    return answer_of(checked(query, key, value, injection=injection, **options), deterministic, num_splits)
