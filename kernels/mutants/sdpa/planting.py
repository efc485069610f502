"""How a bug is planted in `kernels.sdpa`: a seam set of its own, and a name. The bugs are in sdpa.py and the files
beside it whose names begin so; each adds its own to MUTANTS when it is imported."""

from dataclasses import replace
from functools import partial
from typing import Any

from kernels.mutants.mutant import Mutant
from kernels.sdpa import scaled_dot_product_attention
from kernels.sdpa.seams import Seams, register_seams

MUTANTS: dict[str, Mutant] = {}


def plant(name: str, summary: str, source: str, **steps: Any) -> None:
    """A bug: `steps` are fields of `kernels.sdpa.seams.Seams`."""
    seams = f"sdpa!{name}"
    register_seams(seams, replace(Seams(), **steps))
    call = partial(scaled_dot_product_attention, seams=seams)
    MUTANTS[name] = Mutant(name, summary, source, ", ".join(steps), call)
