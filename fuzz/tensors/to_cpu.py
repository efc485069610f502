"""Answers of several runs, from a device to the CPU in one copy and one wait.

A small case is judged on the CPU (`judge.oracle_device`): its oracles are hundreds of small operations, and on a GPU
shared by many processes every launch and every wait takes its turn. What remains on the device is the kernel itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from oracles.outputs import Outputs


@dataclass(frozen=True)
class _Piece:
    """One tensor of one run: where its bytes lie in the packed copy."""

    run: int
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bytes: Tensor


def to_cpu(runs: Sequence[Outputs], flags: Tensor) -> tuple[list[Outputs], Tensor]:
    """`runs` with every tensor on the CPU, and `flags` (bool, any shape, on the device), with one synchronisation.

    What is no tensor on the device of `flags` is passed on as it is: a target may return anything, and a later check
    says so. Strides are kept where the elements fill their memory without gaps.
    """
    pieces = [piece for at, outputs in enumerate(runs) for piece in _pieces(at, outputs, flags.device)]
    pieces.sort(key=lambda piece: -piece.dtype.itemsize)  # so that each one lies at a multiple of its element size
    whole = torch.cat([*(piece.bytes for piece in pieces), flags.flatten().view(torch.uint8)]).cpu()
    found, start = list(runs), 0
    for piece in pieces:
        stop = start + piece.bytes.numel()
        flat = whole[start:stop].view(piece.dtype)
        tensor = flat.as_strided(piece.shape, piece.strides, flat.storage_offset())
        found[piece.run] = replace(found[piece.run], **{piece.name: tensor})
        start = stop
    return found, whole[start:].view(torch.bool).view(flags.shape)


def _pieces(run: int, outputs: Outputs, device: torch.device) -> list[_Piece]:
    found = []
    for name in (field.name for field in fields(outputs)):
        x = getattr(outputs, name)
        if not isinstance(x, Tensor) or x.device != device:
            continue
        x = x.detach()
        x = x if _dense(x) else x.contiguous()
        flat = x.as_strided((x.numel(),), (1,)).view(torch.uint8)
        found.append(_Piece(run, name, x.dtype, tuple(x.shape), x.stride(), flat))
    return found


def _dense(x: Tensor) -> bool:
    """True if the elements fill their memory without gaps or overlaps, in whatever order of the axes."""
    expected = 1
    for size, stride in sorted(
        ((n, s) for n, s in zip(x.shape, x.stride(), strict=True) if n != 1), key=lambda p: p[1]
    ):
        if stride != expected:
            return False
        expected *= size
    return True
