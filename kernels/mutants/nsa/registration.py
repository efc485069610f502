"""Registration of the mutants of `kernels.nsa`: steps of their own at injection points, and a name."""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from kernels.mutants.mutant import Mutant
from kernels.nsa.api import Answer, answer_of, checked
from kernels.nsa.injection import InjectionPoints, register_injection

MUTANTS: dict[str, Mutant] = {}


def register_mutant(name: str, summary: str, source: str, **steps: Any) -> None:
    """Registers a mutant: `steps` are fields of `kernels.nsa.injection.InjectionPoints`."""
    injection = f"nsa!{name}"
    register_injection(injection, replace(InjectionPoints(), **steps))
    MUTANTS[name] = Mutant(name, summary, source, ", ".join(steps), partial(_injected, injection))


def _injected(injection: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Answer:
    """`native_sparse_answer` with a mutant's steps."""
    return answer_of(*checked(q, k, v, injection=injection, **options))
