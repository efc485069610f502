"""From a Case to what flash_attn.cute is called with: options, a mask as a tensor, block lists; imports nothing of it.

Only the token predicate is read of a mask. FlashAttention-4's lists of the backward pass go by key blocks, those of the
forward pass by query blocks; both come from one token mask, since the two passes may want different blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oracles.masks import Causal, Full, Window
from oracles.problem import AnyProblem, cumulative, dense_mask

MASKS = ("options", "mask_mod", "blocks", "scalars")
ROOM_ROWS = 256  # no less than a tile's queries
ROOM_KEYS = 256  # no less than a tile's keys
KEEP_ALIGNMENT = 16  # columns of the mask tensor are padded to it, so that one axis alone has stride 1


@dataclass(frozen=True)
class BlockTensors:
    """Fields of the same names of flash_attn.cute's BlockSparseTensorsTorch: int32, (batch|1, heads_q|1, rows) and
    (batch|1, heads_q|1, rows, columns)."""

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor
    full_block_idx: Tensor
    block_size: tuple[int, int]
    dq_write_order: Tensor | None = None
    dq_write_order_full: Tensor | None = None
    spt: bool | None = None


def mask_options(problem: AnyProblem) -> dict[str, Any] | None:
    """`causal` and `window_size` where they say exactly what the problem's mask says, else None.

    FlashAttention-4 aligns both at the bottom right; where every sequence has as many queries as keys that is the top
    left too.
    """
    mask = problem.mask
    if mask == Full():
        return {}
    if not isinstance(mask, Causal | Window):
        return None
    if mask.align != "bottom_right" and problem.lengths_q != problem.lengths_k:
        return None
    if isinstance(mask, Causal):
        return {"causal": True}
    return {"window_size": (mask.left, mask.right)}


def lengths_options(problem: AnyProblem, device: torch.device | str) -> dict[str, Any]:
    """Arguments by which flash_attn_varlen_func is told of the sequences: cumulative lengths where they are packed,
    used lengths where they are padded and differ, nothing where all are equally long."""

    def int32(values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    if problem.layout == "packed":
        return {
            "cu_seqlens_q": int32(cumulative(problem.lengths_q)),
            "cu_seqlens_k": int32(cumulative(problem.lengths_k)),
            "max_seqlen_q": problem.len_q,
            "max_seqlen_k": problem.len_k,
        }
    if problem.ragged:
        return {"seqused_q": int32(problem.lengths_q), "seqused_k": int32(problem.lengths_k)}
    return {}


def keep_tensor(problem: AnyProblem, device: torch.device | str) -> Tensor:
    """The token predicate, padding excluded: uint8 (batch, heads_q, len_q, len_k rounded up), 1 = keep.

    Its memory goes on for ROOM_ROWS rows and ROOM_KEYS bytes: the forward pass asks a mask_mod about all of a tile,
    rows past the last query too (corpus/regressions/README.md), and would now and then leave what is mapped. A case
    that wants just that says `edge` (guard_page.py).
    """
    kept = dense_mask(problem, device)
    whole = kept.expand(problem.batch, problem.heads_q, problem.len_q, problem.len_k).to(torch.uint8)
    padded = F.pad(whole, (0, -problem.len_k % KEEP_ALIGNMENT))
    room = padded.new_zeros(padded.numel() + ROOM_ROWS * padded.shape[-1] + ROOM_KEYS)
    found = room[: padded.numel()].view(padded.shape)
    found.copy_(padded)
    return found


def block_tensors(
    problem: AnyProblem, block_size: tuple[int, int], device: torch.device | str
) -> tuple[BlockTensors, BlockTensors]:
    """Block lists by query block and by key block. Columns ascend; past a count are block numbers in range."""
    some, whole = classified(dense_mask(problem, device), block_size)
    by_query = _lists(some & ~whole), _lists(some & whole)
    by_key = _lists((some & ~whole).transpose(2, 3)), _lists((some & whole).transpose(2, 3))
    return tuple(BlockTensors(*partial, *full, block_size) for partial, full in (by_query, by_key))  # type: ignore[return-value]


def classified(kept: Tensor, block_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The blocks that keep a pair, and those that keep every pair that there is: bool (batch|1, heads|1, m_blocks,
    n_blocks).

    kept  bool (batch|1, heads|1, len_q, len_k)
    """
    m, n = block_size
    padding = (0, -kept.shape[3] % n, 0, -kept.shape[2] % m)

    def tiled(value: bool) -> Tensor:
        padded = F.pad(kept, padding, value=value)
        return padded.unflatten(3, (-1, n)).unflatten(2, (-1, m))  # batch, heads, m_block, m, n_block, n

    return tiled(False).any(5).any(3), tiled(True).all(5).all(3)


def _lists(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Counts (…, rows) and indices (…, rows, columns): a row's flagged columns first, ascending.

    FlashAttention-4 wants stride 1 on the last axis even where it has one column only; PyTorch calls any stride of such
    an axis contiguous, and `contiguous` keeps it.
    """
    order = torch.sort(flags.to(torch.uint8), dim=-1, descending=True, stable=True).indices
    return tuple(x.to(torch.int32, memory_format=torch.contiguous_format) for x in (flags.sum(-1), order))  # type: ignore[return-value]
