"""Budget: what an answer is measured in: the true value and one standard deviation of rounding for every element.

Made once per case, before the kernel runs, and used for every run that is judged. All tensors lie one after the other
in rows of numbers, so that a small case costs what some thirty operations cost and not two hundred. The order keeps
together what has the same dtype and the same last axis; LSE, which many a target does not give, comes last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.error_budget.same_precision import Same, stored_as
from oracles.outputs import OF_WEIGHTS, Outputs
from oracles.problem import AnyProblem
from oracles.reference.backend import uses_numba
from oracles.reference.chunks import rows_there

ELEMENT = 10.0  # limit of |z| of one element
# Where all roundings of a row fall on ties, one element takes their whole error and its neighbours none: an element may
# err as a same-precision run does at that very place, which counts as so many sigma.
HERE = 6.0
ORDER = ("o", "dv", "dq", "dk", "dw_k", "dw_v", "dw_gate", "dbias", "lse")


@dataclass(frozen=True)
class Slot:
    """Position of a tensor in the row of numbers; `dim` is its last axis, 1 for lse."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return 1 if self.name == "lse" else self.shape[-1]

    @property
    def in_one_layout(self) -> bool:
        """True if it is no tensor of sequences, which lie packed or padded."""
        return self.name == "dbias" or self.name in OF_WEIGHTS

    @property
    def padded(self) -> tuple[int, ...]:
        """Its shape with an axis of sequences, (batch, heads, rows, …), unless it is packed."""
        return (1, *self.shape) if self.name in OF_WEIGHTS else self.shape


@dataclass(frozen=True)
class Budget:
    """Flat tensors on one device, each of the elements of `slots`; empty tensors have no slot.

    shapes    of all tensors of the reference, the empty ones too
    want      the reference, fp64 or fp32
    low       what the reference is when it is stored in its dtype, fp32
    sigma     the larger of the noise and of the same-precision runs' rms error over the row, fp32
    checked   1, or 0 where an element is not judged, as in padding or where the same-precision run overflowed, fp32;
              None: all is
    reaches   bool: rounding may take a value out of float16, so that an infinity of its sign is right; None: nowhere
    both      what low and sigma are halves of
    choices   what the reference chose, or what was frozen in it, by name
    padding   whether what lies past a sequence's end is judged too

    Comparisons are made with floats as their results where that can be: those with bools are several times slower on a
    CPU.
    """

    problem: AnyProblem
    padding: bool
    shapes: dict[str, tuple[int, ...]]
    slots: tuple[Slot, ...]
    want: Tensor
    low: Tensor
    sigma: Tensor
    checked: Tensor | None
    reaches: Tensor | None
    both: Tensor
    choices: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(problem: AnyProblem, reference: Outputs, same: Same, *, padding: bool = False) -> Budget:
        """`reference` of reference.reference, `same` of same_precision.same_precision with the target's numerics."""
        shapes = {name: tuple(x.shape) for name, x in reference.items()}
        slots = _slots(problem, shapes)
        if not slots:
            none = torch.zeros(0, device=reference.o.device)
            return Budget(problem, padding, shapes, (), none, none, none, None, None, none, reference.choices())
        want, noise = _flat(slots, reference), _flat(slots, same.noise)
        runs = torch.cat([getattr(same.runs, s.name).flatten(1) for s in slots], 1)
        lows, sigmas = list[Tensor](), list[Tensor]()
        for group in groups(slots):
            part = slice(group[0].start, group[-1].stop)
            lows.append(want[part].to(group[0].dtype).float())
            sigmas.append(_sigma(problem, group[0], want[part], runs, part.start, noise[part]))
        both = torch.cat([*lows, *sigmas])
        low, sigma = both.split(len(want))
        checked = None if _all(sigma.amax() < torch.inf) else (sigma != torch.inf).float()
        if problem.layout == "padded" and not padding and problem.ragged:
            checked = _without_padding(problem, slots, torch.ones_like(sigma) if checked is None else checked)
        reaches = _reaches(slots, want, sigma)
        choices = reference.choices()
        return Budget(problem, padding, shapes, slots, want, low, sigma, checked, reaches, both, choices)

    @property
    def reference(self) -> Outputs:
        """The true answers, as views of `want`."""
        empty = {name: self.want.new_zeros(shape) for name, shape in self.shapes.items()}
        return Outputs(
            **self.choices, **(empty | {s.name: self.want[s.start : s.stop].view(s.shape) for s in self.slots})
        )

    def sealed(self) -> Tensor:
        """Bitwise sums of what is compared with; stays on the device."""
        return torch.stack([x.view(_word(x)).sum(dtype=torch.int64) for x in (self.want, self.both)])

    def z(self, got: Outputs) -> tuple[Budget, Tensor, Tensor]:
        """The budget of what is in `got`; `got` as it lies in there, flat; its error in units of sigma, fp32, 0 where
        it is exactly right or anything goes.

        Raises ValueError on a tensor that the reference lacks, or of another shape.
        """
        there = self._there(got)
        budget = self if len(there) == len(self.slots) else self._part(there)
        given = [getattr(got, s.name) for s in there]
        if not given:
            return budget, budget.want, budget.want
        flat = torch.cat([x.flatten() for x in given])
        if all(x.dtype == s.dtype for x, s in zip(given, there, strict=True)):
            low, reaches = budget.low, budget.reaches
        else:  # a dtype that was not asked for
            low, reaches = budget._as_stored(given)
        wrong = torch.ne(flat, low, out=torch.empty_like(budget.sigma))
        if budget.checked is not None:
            wrong.mul_(budget.checked)
        if reaches is not None:
            wrong.masked_fill_(flat.isinf() & reaches & ((flat > 0) == (budget.want > 0)), 0.0)
        z = (flat - budget.want).float().div_(budget.sigma)
        z.view(torch.int32).bitwise_and_(wrong.int().neg_())  # no product: what is right may be 0 / 0 here
        return budget, flat, z

    def stored(self, got: Outputs) -> list[tuple[Slot, NDArray[np.float32]]] | None:
        """Contents of `got`, flat and as fp32, with its slot; on a CPU. None where it has not the dtypes asked for."""
        there = self._there(got)
        given = [getattr(got, s.name) for s in there]
        if any(x.dtype != s.dtype for x, s in zip(given, there, strict=True)):
            return None
        return [(s, x.detach().float().contiguous().flatten().numpy()) for s, x in zip(there, given, strict=True)]

    def _there(self, got: Outputs) -> tuple[Slot, ...]:
        for name, x in got.items():
            expected = self.shapes.get(name)
            if tuple(x.shape) != expected:
                raise ValueError(f"{name}: needs shape {expected}, got {tuple(x.shape)}")
        return tuple(s for s in self.slots if getattr(got, s.name) is not None)

    def _part(self, selected: tuple[Slot, ...]) -> Budget:
        """Budget of some slots only; views where they are neighbours, as all but LSE are."""
        slots, start = [], 0
        for s in selected:
            slots.append(Slot(s.name, s.shape, s.dtype, start, start + s.stop - s.start))
            start = slots[-1].stop
        neighbours = all(a.stop == b.start for a, b in pairwise(selected))

        def take(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            if neighbours:
                return x[selected[0].start : selected[-1].stop] if selected else x[:0]
            return torch.cat([x[s.start : s.stop] for s in selected])

        want, low, sigma, checked, reaches = map(take, (self.want, self.low, self.sigma, self.checked, self.reaches))
        assert want is not None and low is not None and sigma is not None
        return Budget(
            self.problem,
            self.padding,
            self.shapes,
            tuple(slots),
            want,
            low,
            sigma,
            checked,
            reaches,
            self.both,
            self.choices,
        )

    def _as_stored(self, given: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """`low` and `reaches` for answers of other dtypes than were asked for."""
        low, reaches = [], []
        for s, x in zip(self.slots, given, strict=True):
            part = slice(s.start, s.stop)
            low.append(self.want[part].to(x.dtype).double())
            out = self.want[part].abs() + ELEMENT * self.sigma[part] > torch.finfo(torch.float16).max
            reaches.append(out if x.dtype == torch.float16 else torch.zeros_like(out))
        return torch.cat(low), torch.cat(reaches)


def groups(slots: tuple[Slot, ...]) -> list[list[Slot]]:
    """Neighbours whose rows have the same length and whose elements are stored alike."""
    return [list(group) for _, group in groupby(slots, key=lambda s: (s.dim, s.dtype, s.name == "lse"))]


def _slots(problem: AnyProblem, shapes: dict[str, tuple[int, ...]]) -> tuple[Slot, ...]:
    slots, start = [], 0
    for name in ORDER:
        size = math.prod(shapes.get(name, (0,)))
        if size:
            slots.append(Slot(name, shapes[name], stored_as(problem, name), start, start + size))
            start += size
    return tuple(slots)


def _flat(slots: tuple[Slot, ...], outputs: Outputs) -> Tensor:
    return torch.cat([getattr(outputs, s.name).flatten() for s in slots])


def _sigma(problem: AnyProblem, slot: Slot, want: Tensor, runs: Tensor, first: int, noise: Tensor) -> Tensor:
    """Sigma of neighbours of slot's kind: want and noise (elements,); runs (RUNS, more), from `first` on."""
    lse = slot.name == "lse"
    if uses_numba(want) and want.dtype == torch.float64:
        from oracles.reference import numba_loops

        found = torch.empty(want.shape)
        exactly = problem.dtype == "float32" or lse
        given = want.numpy(), runs.numpy(), first, noise.numpy()
        numba_loops.sigma(*given, slot.dim, exactly, lse, 1 / HERE, found.numpy())
        return found
    runs = runs[:, first : first + len(want)]
    own = runs - (want if problem.dtype == "float32" or lse else want.float())
    own2 = (own * own).view(len(runs), -1, slot.dim)
    run2 = own2.mean(-1).amax(0).float()
    run2 = torch.where(run2.isnan(), torch.inf, run2)
    if lse:
        run2 = torch.where(want == runs[0], 0.0, run2)  # -inf both
    sigma = torch.maximum(noise.view(-1, slot.dim), run2.sqrt()[:, None])
    if slot.dim > 1:
        sigma = torch.fmax(sigma, own2.amax(0).float().sqrt() / HERE)
    return sigma.flatten()


def _without_padding(problem: AnyProblem, slots: tuple[Slot, ...], checked: Tensor) -> Tensor:
    """`checked`, but nothing of what lies past a sequence's end; padded layout."""
    for slot in slots:
        there = rows_there(problem, slot.name, checked.device)
        if there is not None:
            shape = slot.shape if slot.name == "dbias" else (*slot.shape[:3], slot.dim)
            checked[slot.start : slot.stop].view(shape).mul_(there if slot.name == "dbias" else there[..., None])
    return checked


def _reaches(slots: tuple[Slot, ...], want: Tensor, sigma: Tensor) -> Tensor | None:
    """True where rounding may take a value out of float16."""
    narrow, most = [s for s in slots if s.dtype == torch.float16], torch.finfo(torch.float16).max
    if not narrow:
        return None
    part = slice(narrow[0].start, narrow[-1].stop)  # neighbours: LSE and a float32 bias come after them
    if _all(want[part].abs().amax() + ELEMENT * sigma[part].amax() <= most):
        return None
    found = torch.zeros(want.shape, dtype=torch.bool, device=want.device)
    found[part] = want[part].abs() + ELEMENT * sigma[part] > most
    return found


def _all(holds: Tensor) -> bool:
    """True if a bool scalar is certainly True; a device is not waited for."""
    return not holds.is_cuda and bool(holds)


def _word(x: Tensor) -> torch.dtype:
    return torch.int64 if x.numel() * x.element_size() % 8 == 0 else torch.int32
