"""Packed masks: 32 keys in an int32 word, an eighth of the bytes of a bool mask."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dynamic_mask.config import WORD


def pack_mask(mask: Tensor) -> Tensor:
    """bool (…, len_k) as int32 (…, ceil(len_k / 32)): key 32 w + j is bit j of word w; bits beyond len_k are 0.

    Makes int32 of 32 keys at once: memory of 4 bytes a key, for one slice of the rows at a time. Never synchronises.
    """
    words = -(-mask.shape[-1] // WORD)
    found = torch.empty((*mask.shape[:-1], words), dtype=torch.int32, device=mask.device)
    if not found.numel():
        return found
    lines, out = mask.reshape(-1, mask.shape[-1]), found.view(-1, words)
    weights = torch.arange(WORD, device=mask.device, dtype=torch.int32)
    rows = max(1, (1 << 26) // (words * WORD))
    for first in range(0, len(lines), rows):
        part = F.pad(lines[first : first + rows], (0, words * WORD - mask.shape[-1])).view(-1, words, WORD)
        out[first : first + rows] = (part.to(torch.int32) << weights).sum(-1, dtype=torch.int32)
    return found


def unpack_mask(words: Tensor, len_k: int) -> Tensor:
    """Mirror image of `pack_mask`: bool (…, len_k)."""
    places = torch.arange(len_k, device=words.device)
    return (words[..., places // WORD] >> (places % WORD)) & 1 != 0
