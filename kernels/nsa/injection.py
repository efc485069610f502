"""Injection points: the steps that a mutant replaces, and what mutants replace them with, by name.

As in kernels.sdpa.injection: kernels take each step as a constexpr function, steps of the host are plain functions, and
the custom operators carry only the name of a set of steps; "" names the correct one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection
from kernels.nsa.choice import allowed_blocks, ascending, folded, group_scores, tiles_at_once
from kernels.nsa.choose import is_first, may_choose
from kernels.nsa.compress import project, project_backward
from kernels.nsa.gates import add, gate_of, gate_row, logit_gradient
from kernels.nsa.means import rows_there, share_of_mean
from kernels.sdpa.registry import Registry


def as_built(blocks: BlockSparse, branch: str, backward: bool) -> BlockSparse:
    """Block lists of a branch ("compressed", "selected", "window"), for the forward or the backward kernels."""
    return blocks


def width_of_window(window: int, backward: bool) -> int:
    """Keys of the window."""
    return window


def mean_shift(tile: int, causal: int) -> int:
    """Rows from a tile's first query to the first one of its mean query. Strict: the last one of its mean query is the
    tile's first, as a tile's choice is its first query's too."""
    return 1 - tile if causal == 2 else 0


@dataclass(frozen=True)
class InjectionPoints:
    """One function for each replaceable step: those of the kernels, then those of the host; and what is injected into
    the forward kernel of the branches, and into their backward kernels. Defaults are correct."""

    divisor: Any = rows_there
    share_of_mean: Any = share_of_mean
    gate_row: Any = gate_row
    gate_of: Any = gate_of
    add: Any = add
    logit_gradient: Any = logit_gradient
    may_choose: Any = may_choose
    is_first: Any = is_first

    project: Callable[[Tensor, Tensor | None], Tensor] = project
    project_backward: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]] = project_backward
    mean_shift: Callable[[int, int], int] = mean_shift
    tiles_at_once: Callable[[int], int] = tiles_at_once
    folded: Callable[[Tensor, int], Tensor] = folded
    allowed_blocks: Callable[[Tensor, Tensor, int, int, int], Tensor] = allowed_blocks
    group_scores: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = group_scores
    ascending: Callable[[Tensor], Tensor] = ascending
    lists: Callable[[BlockSparse, str, bool], BlockSparse] = as_built
    width_of_window: Callable[[int, bool], int] = width_of_window
    attention: Injection = NO_INJECTION
    attention_backward: Injection = NO_INJECTION


_REGISTRY = Registry(InjectionPoints())
register_injection, find_injection = _REGISTRY.register, _REGISTRY.find
