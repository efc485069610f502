"""Packed masks: 32 keys in an int32 word, an eighth of the bytes of a bool mask."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dynamic_mask.config import WORD

_SLICE = 1 << 26  # keys


def pack_mask(mask: Tensor) -> Tensor:
    """bool (…, len_k) as int32 (…, ceil(len_k / 32)): key 32 w + j is bit j of word w; bits beyond len_k are 0.

    Rows are packed in slices, as each of them takes 4 bytes a key on the way. Never synchronises.
    """
    len_k = mask.shape[-1]
    words = -(-len_k // WORD)
    lines = mask.reshape(math.prod(mask.shape[:-1]), len_k)
    weights = torch.arange(WORD, device=mask.device, dtype=torch.int32)
    parts = []
    for part in lines.split(max(1, _SLICE // max(words * WORD, 1))):
        bits = F.pad(part, (0, words * WORD - len_k)).view(len(part), words, WORD)
        parts.append((bits.to(torch.int32) << weights).sum(-1, dtype=torch.int32))
    return torch.cat(parts).view(*mask.shape[:-1], words)


def unpack_mask(words: Tensor, len_k: int) -> Tensor:
    """Mirror image of `pack_mask`: bool (…, len_k)."""
    places = torch.arange(len_k, device=words.device)
    return (words[..., places // WORD] >> (places % WORD)) & 1 != 0
