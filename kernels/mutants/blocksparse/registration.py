"""Registration of the mutants of `kernels.blocksparse`: injections into a kernel, or wrong block lists.

A bug in the kernels has injections of its own. A bug in the metadata changes the block lists behind the checks of
`block_sparse_attention`, which refuse them: the kernels trust their metadata. The files beside this one hold the
mutants; each adds its own to MUTANTS and INJECTIONS when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from kernels.blocksparse.api import operator_arguments
from kernels.blocksparse.lists.types import BlockSparse, WriteOrder
from kernels.blocksparse.ops import block_sparse_forward, flatten
from kernels.blocksparse.spec.injection import NO_HOST_INJECTION, HostInjection, Injections, register_injections
from kernels.blocksparse.spec.variant import Injection
from kernels.mutants.mutant import Mutant

CORRECT = Injections()
# The ranks that the kernel waits for, and what it adds to the semaphore at each entry (None: 1).
Protocol: TypeAlias = tuple[WriteOrder, tuple[Tensor, Tensor] | None]


@dataclass(frozen=True)
class BlockSparseMutant(Mutant):
    """A mutant of the block-sparse kernels.

    injection what is injected into them
    blocks    what becomes of the block lists; the lists unchanged where the bug is in a kernel
    protocol  what the ordered adds do, from the lists that the kernels get; None: as the lists say, or nothing is known
    """

    injection: Injections = CORRECT
    blocks: Callable[[BlockSparse], BlockSparse] = lambda blocks: blocks
    protocol: Callable[[BlockSparse], Protocol] | None = None


MUTANTS: dict[str, BlockSparseMutant] = {}
INJECTIONS: dict[str, Injections] = {}  # by name, for building


def register_mutant(
    name: str,
    summary: str,
    source: str,
    *,
    forward: dict[str, Callable] | None = None,
    backward: dict[str, Callable] | None = None,
    host: HostInjection = NO_HOST_INJECTION,
    protocol: Callable[[BlockSparse], Protocol] | None = None,
) -> None:
    """Registers a bug in the kernels, or in what the host launches them with."""
    known = f"blocksparse!{name}"
    replaced = [Injection(known, steps) if steps else Injection() for steps in (forward, backward)]
    injection = Injections(replaced[0], replaced[1], host)
    register_injections(known, injection)
    INJECTIONS[known] = injection
    changed = [f"host.{field.name}" for field in fields(HostInjection) if getattr(host, field.name) != field.default]
    steps = ", ".join([*(forward or {}), *(backward or {}), *changed])
    call = partial(_injected, known)
    MUTANTS[name] = BlockSparseMutant(name, summary, source, steps, call, injection=injection, protocol=protocol)


def _injected(
    known: str, q: Tensor, k: Tensor, v: Tensor, blocks: BlockSparse, *, products: str | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """`block_sparse_attention` with a mutant's injections."""
    arguments = operator_arguments(q, k, v, blocks, products=products, **options)
    return block_sparse_forward(*arguments, known, products or "")


def register_list_mutant(name: str, summary: str, source: str, change: Callable[[BlockSparse], BlockSparse]) -> None:
    """Registers a bug in the metadata: lists of wide tiles, and for pairs of CTAs, have it too."""

    def both(blocks: BlockSparse) -> BlockSparse:
        wide, paired = (None if one is None else change(one) for one in (blocks.wide, blocks.paired))
        return replace(change(blocks), wide=wide, paired=paired)

    call = partial(unchecked, both)
    MUTANTS[name] = BlockSparseMutant(name, summary, source, "metadata", call, blocks=both)


def unchecked(
    change: Callable[[BlockSparse], BlockSparse],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: BlockSparse,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    lengths_q: Tensor | None = None,
    lengths_k: Tensor | None = None,
    products: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`block_sparse_attention` with changed lists and without its checks."""
    given = (cu_seqlens_q, cu_seqlens_k) if cu_seqlens_q is not None else (lengths_q, lengths_k)
    lengths = [x for x in given if x is not None]
    lists, numbers = flatten(change(blocks))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return block_sparse_forward(q, k, v, lengths, lists, numbers, scale, softcap, deterministic, "", products or "")
