"""Operands and settings of calls of kernels.nsa whose block lists are made."""

from dataclasses import replace

import torch

from kernels.nsa.operands import Operands, Settings


def operands_of(settings, lengths, heads=(2, 1), dim=32, packed=False, batch=1, device="cpu"):
    """Operands without values. lengths: of packed sequences; else the first is that of all."""
    rows = (sum(lengths),) if packed else (batch, lengths[0])
    q, k = (torch.zeros(*rows, n, dim, dtype=torch.bfloat16, device=device) for n in heads)
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device) if packed else None
    return Operands(q, k, k, None, None, None, cu, replace(settings, longest=max(lengths)))


def settings_of(block=16, chosen=3, window=40, groups=0, causal=1, tile=128, deterministic=True):
    """Settings whose longest sequence is to be filled in."""
    return Settings(block, chosen, window, groups, causal, tile, 0, 1.0, deterministic)
