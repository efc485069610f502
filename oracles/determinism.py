"""Determinism: repeats of one case must agree bit for bit. What differs is the finding; nothing is retried to green."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.finding import Finding, Location
from oracles.location import position
from oracles.outputs import TITLES, Outputs

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compare(runs: Sequence[Outputs]) -> list[Finding]:
    """One finding per tensor whose bits differ between the first run and any other.

    Bit patterns are compared, so that equal NaNs are equal and 0.0 differs from -0.0. numbers: `differs` of `repeats`
    runs differ from the first one, `elements` of `total` differ in the run that differs most, by `largest` at most (NaN
    where a difference is not a number). The place is the first differing element: (batch, head, row) as far as the
    tensor has axes. Synchronises with the device once when all is well. Raises ValueError where runs hold different
    tensors.
    """
    if len(runs) < 2:
        return []
    names = [name for name, _ in runs[0].items()]
    for run in runs[1:]:
        if [name for name, _ in run.items()] != names:
            raise ValueError(f"runs: the first one holds {names}, another one {[name for name, _ in run.items()]}")
    if all(_same_bits(runs[0], run) for run in runs[1:]):
        return []
    counts = [torch.stack([_differs(runs[0], run, name).sum() for run in runs[1:]]) for name in names]
    if not counts:
        return []
    table = torch.stack(counts).tolist()
    return [_finding(runs, name, row) for name, row in zip(names, table, strict=True) if any(row)]


def _same_bits(first: Outputs, run: Outputs) -> bool:
    """True if they certainly are the same: not compared where it would mean waiting for a device."""
    for (_, one), (_, other) in zip(first.items(), run.items(), strict=True):
        if one.is_cuda or one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not torch.equal(_bits(one), _bits(other)):
            return False
    return True


def _differs(first: Outputs, run: Outputs, name: str) -> Tensor:
    return _bits(getattr(first, name)) != _bits(getattr(run, name))


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(BITS[x.element_size()])


def _finding(runs: Sequence[Outputs], name: str, elements: list[int]) -> Finding:
    """`elements`: how many differ in each run after the first."""
    most = max(range(len(elements)), key=lambda at: elements[at])
    one, other = getattr(runs[0], name), getattr(runs[most + 1], name)
    differs = _differs(runs[0], runs[most + 1], name)
    flat = int(differs.flatten().int().argmax())
    index = tuple(int(at) for at in torch.unravel_index(torch.tensor(flat), one.shape))
    largest = float((one.double() - other.double())[differs].abs().max())
    count = sum(1 for n in elements if n)
    numbers = {
        "differs": float(count),
        "repeats": float(len(elements)),
        "elements": float(elements[most]),
        "total": float(one.numel()),
        "largest": largest,
    }
    message = (
        f"{TITLES[name]} is not deterministic: {count} of {len(elements)} repeats differ from the first run in up to "
        f"{elements[most]} of {one.numel()} elements, by at most {largest:.3g}; first at {position(name, index)}"
    )
    return Finding("determinism", "nondeterministic", message, name, _place(name, index), numbers)


def _place(name: str, index: tuple[int, ...]) -> Location:
    """Padded tensors are (batch, head, row, …), packed ones (row, head, dim) or (head, row) for lse."""
    if len(index) == 4 or (len(index) == 3 and name == "lse"):
        return Location(index[0], index[1], (index[2], index[2] + 1))
    row, head = (index[1], index[0]) if name == "lse" else index[:2]
    return Location(None, head, (row, row + 1))
