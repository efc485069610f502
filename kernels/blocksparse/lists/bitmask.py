"""Masks of partial blocks as packed bits, and blocks of equal masks sharing one slot."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(tiles: Tensor) -> Tensor:
    """bool (blocks, tile_m, tile_n) as int32 (blocks, tile_m, tile_n / 32), element j of 32 being bit j."""
    bit = torch.arange(8, dtype=torch.uint8, device=tiles.device)  # no copy: a CUDA graph has none from a CPU
    weight = torch.ones_like(bit) << bit
    octets = tiles.view(torch.uint8).unflatten(-1, (-1, 8)) * weight
    return octets.sum(-1, dtype=torch.uint8).view(torch.int32)


def unpack(words: Tensor) -> Tensor:
    """The inverse of `pack`."""
    bit = torch.arange(32, device=words.device, dtype=torch.int32)
    return ((words[..., None] >> bit) & 1).flatten(-2).to(torch.bool)


def shared(words: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct blocks and the slot of each: words (slots, …) and slot int32 (blocks,). At least one slot.

    Blocks are distinguished by two 64-bit hashes and then compared; should hashes ever collide, by sorting them whole.
    Asks the device how many there are.
    """
    if not len(words):
        return words.new_zeros((1, *words.shape[1:])), torch.zeros(0, dtype=torch.int32, device=words.device)
    flat = words.flatten(1)
    _, slot = torch.unique(_hashes(flat), dim=0, return_inverse=True)
    slots = int(slot.max()) + 1
    first = torch.full((slots,), len(flat), dtype=torch.int64, device=slot.device)
    first = first.scatter_reduce_(0, slot, torch.arange(len(flat), device=slot.device), "amin")
    if not torch.equal(flat[first[slot]], flat):
        distinct, slot = torch.unique(flat, dim=0, return_inverse=True)
        return distinct.view(-1, *words.shape[1:]).contiguous(), slot.to(torch.int32)
    return words[first].contiguous(), slot.to(torch.int32)


def _hashes(flat: Tensor) -> Tensor:
    """int64 (blocks, 2): sums of the words times odd numbers, modulo 2**64."""
    at = torch.arange(flat.shape[1], dtype=torch.int64, device=flat.device)
    mixed = [(at + salt) * 0x2545F4914F6CDD1D for salt in (0x51ED270B, 0x7F4A7C15)]
    factors = [((m ^ (m >> 29)) * 0x369DEA0F31A53F85) | 1 for m in mixed]
    return torch.stack([(flat * factor).sum(1) for factor in factors], 1)
