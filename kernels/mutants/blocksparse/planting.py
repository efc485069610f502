"""How a bug is planted in `kernels.blocksparse`: a seam of a kernel each, or block lists as somebody once made them.

A bug in the kernels is a seam set of its own. A bug in the metadata changes the block lists behind the checks of
`block_sparse_attention`, which refuse them: the kernels trust their metadata. The bugs themselves are in blocksparse.py
and in the files beside it whose names begin so; each adds its own to MUTANTS and SEAMS when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeAlias

from torch import Tensor

from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.lists.types import BlockSparse, WriteOrder
from kernels.blocksparse.ops import block_sparse_forward, flatten
from kernels.blocksparse.spec.seams import NO_HOST, Host, SeamSet, register_seams
from kernels.blocksparse.spec.variant import Seams
from kernels.mutants.mutant import Mutant

CORRECT = SeamSet()
# The ranks that the kernel waits for, and what it adds to the semaphore at each entry (None: 1).
Protocol: TypeAlias = tuple[WriteOrder, tuple[Tensor, Tensor] | None]


@dataclass(frozen=True)
class BlockSparseMutant(Mutant):
    """A planted bug of the block-sparse kernels.

    seams     what is replaced in them
    blocks    what becomes of the block lists; the lists unchanged where the bug is in a kernel
    protocol  what the ordered adds do, from the lists that the kernels get; None: as the lists say, or nothing is known
    """

    seams: SeamSet = CORRECT
    blocks: Callable[[BlockSparse], BlockSparse] = lambda blocks: blocks
    protocol: Callable[[BlockSparse], Protocol] | None = None


MUTANTS: dict[str, BlockSparseMutant] = {}
SEAMS: dict[str, SeamSet] = {}  # by name, for building


def plant(
    name: str,
    summary: str,
    source: str,
    *,
    forward: dict[str, Callable] | None = None,
    backward: dict[str, Callable] | None = None,
    host: Host = NO_HOST,
    protocol: Callable[[BlockSparse], Protocol] | None = None,
) -> None:
    """A bug in the kernels, or in what the host launches them with."""
    known = f"blocksparse!{name}"
    replaced = [Seams(known, steps) if steps else Seams() for steps in (forward, backward)]
    seams = SeamSet(replaced[0], replaced[1], host)
    register_seams(known, seams)
    SEAMS[known] = seams
    changed = [f"host.{field.name}" for field in fields(Host) if getattr(host, field.name) != field.default]
    steps = ", ".join([*(forward or {}), *(backward or {}), *changed])
    call = partial(block_sparse_attention, seams=known)
    MUTANTS[name] = BlockSparseMutant(name, summary, source, steps, call, seams=seams, protocol=protocol)


def plant_lists(name: str, summary: str, source: str, change: Callable[[BlockSparse], BlockSparse]) -> None:
    """A bug in the metadata."""
    call = partial(_unchecked, change)
    MUTANTS[name] = BlockSparseMutant(name, summary, source, "metadata", call, blocks=change)


def _unchecked(
    change: Callable[[BlockSparse], BlockSparse],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: BlockSparse,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
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
