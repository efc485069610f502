"""FlexAttention's block mask of a mask tensor, by tensor operations.

`create_block_mask(…, _compile=True)` makes the same lists, but PyTorch's compiler unrolls a stable sort of up to 512
columns into one kernel: for 128 columns and eight rows in a program 16,319 lines of PTX, which compile for 22 s (Triton
3.9, a busy core). On an H200 with PyTorch 2.11 ptxas was still at one of its kernels after a minute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE = 128


def tiles_of(mask: Tensor, tile: int = TILE) -> tuple[Tensor, Tensor]:
    """Tiles that keep some pairs but not all, and those that keep all: two bools (m_blocks, n_blocks).

    mask  bool (len_q, len_k); beyond its ends no pair is kept, so that a tile cut by an end is never full
    """
    len_q, len_k = mask.shape
    mask = pad(mask, (0, -len_k % tile, 0, -len_q % tile))
    tiles = mask.view(mask.shape[0] // tile, tile, mask.shape[1] // tile, tile)
    some, full = tiles.any(3).any(1), tiles.all(3).all(1)
    return some & ~full, full


def listed_first(grid: Tensor) -> Tensor:
    """Columns of a bool grid (rows, columns), the True ones first, ascending: int32, its shape."""
    return grid.int().argsort(dim=-1, descending=True, stable=True).to(torch.int32).contiguous()


def block_mask_of(mask: Tensor, tile: int = TILE) -> Any:
    """BlockMask of a bool mask (1, 1, len_q, len_k), for all batches and heads.

    Its lists are those that create_block_mask makes; its mask_mod, for partial tiles, reads the tensor.
    """
    from torch.nn.attention.flex_attention import BlockMask

    cut, full = tiles_of(mask[0, 0], tile)
    lists = [x[None, None] for grid in (cut, full) for x in (grid.sum(-1).to(torch.int32), listed_first(grid))]

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return mask[0, 0, q, k]

    lengths = mask.shape[2], mask.shape[3]
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=tile, mask_mod=mask_mod, seq_lengths=lengths)
