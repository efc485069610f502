"""Lists of key blocks as cuDNN's kernels take them. Unused entries hold a number that a kernel which reads it cannot
survive."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

UNUSED = 0x3FFFFFF  # a block number, or a number of keys, that nothing has
WIDE = 3  # entries past the longest list, where lists are to have some
Order: TypeAlias = Literal["ascending", "descending", "shuffled"]


def index_tensor(listed: Tensor, order: Order, seed: int, width: int) -> Tensor:
    """int32 (..., width): the listed blocks of each row in that order, then UNUSED.

    listed  bool (..., blocks)
    seed    of the shuffled order
    """
    n = listed.shape[-1]
    rank = torch.arange(n).expand(listed.shape).to(torch.float32)
    if order == "descending":
        rank = -rank
    elif order == "shuffled":
        rank = torch.rand(listed.shape, generator=torch.Generator().manual_seed(seed))
    places = torch.argsort(rank.masked_fill(~listed, float("inf")), dim=-1, stable=True).to(torch.int32)
    used = torch.arange(n) < listed.sum(-1)[..., None]
    filled = F.pad(places.masked_fill(~used, UNUSED), (0, max(width - n, 0)), value=UNUSED)
    return filled[..., :width].contiguous()
