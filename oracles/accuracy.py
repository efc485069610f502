"""Accuracy: every element, row, tile and tensor of an answer against a budget made from the case's own data.

The error of an answer is measured in units of what rounding alone does there (Budget, of budget.py): the larger of the
noise of that element and the error of the same-precision runs in its row. Call that quotient z. A kernel that
rounds where its Numerics say has z about 1; a budget is how far z may go, and depends only on how much is averaged:

    one element   |z| <= ELEMENT
    row           rms z <= limit(1), rising to ELEMENT for a row whose elements err alike in size, as where one query or
                  one key makes it: it proves no more than one element
    tile of 64 rows, tensor   rms z <= limit(rows averaged), rows that err alike counted as one

There is no tolerance in units of the data anywhere. `ratio` is the largest quotient of z and its limit: 1 is the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.error_budget.budget import ELEMENT, Budget, Slot, groups
from oracles.error_budget.same_precision import Same, same_precision
from oracles.finding import Finding
from oracles.location import TILE, locate
from oracles.numerics import CPU_FLASH, CUDNN, EAGER, EFFICIENT, EXACT, FLEX_EAGER, FUSED, Numerics
from oracles.outputs import TITLES, Outputs
from oracles.problem import AnyProblem, Problem
from oracles.reference.backend import uses_numba
from oracles.reference.chunks import ON_KEYS, padded_rows, rows_there

__all__ = [
    "CPU_FLASH",
    "CUDNN",
    "EAGER",
    "EFFICIENT",
    "EXACT",
    "FLEX_EAGER",
    "FUSED",
    "Budget",
    "Judgement",
    "Numerics",
    "Worst",
    "judge",
    "judge_with",
    "same_precision",
]

PLACE = 0.6  # of an element's limit: rows beyond it are shown as wrong
NORMAL = 2 / math.pi  # (mean |z|)^2 over mean z^2, of normal errors
HUGE = 1e30  # z2 of NaN and of an inexact exact value
GRAINS = ("element", "row", "tile", "tensor")
_GRAIN = {"row": "a row", "tile": f"a tile of {TILE} rows", "tensor": "the whole tensor"}
Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Worst:
    """The worst of one tensor: ratios by grain, and the worst element's place (batch, head, row) and numbers."""

    ratios: dict[str, float]
    at: tuple[int, int, int]

    @property
    def ratio(self) -> float:
        """Over all grains."""
        return max(self.ratios.values())


@dataclass(frozen=True)
class Judgement:
    """`ratio` is the largest error over its budget anywhere: 1 is the limit, 1e14 stands for NaN and the like."""

    findings: tuple[Finding, ...]
    ratio: float
    worst: dict[str, Worst]


def limit(rows: Rows | float) -> Rows | float:
    """Limit of the rms of z over that many rows: rows of one case err together, so it falls slowly to 2."""
    return 2.0 + 4.0 * rows**-0.5


def judge(problem: Problem, got: Outputs, reference: Outputs, same: Same, *, padding: bool = False) -> Judgement:
    """`judge_with`, for answers that are judged once.

    reference  of `reference.reference`, fp64 (or fp32 when the inputs are of 16 bits)
    same       of `same_precision` with the target's numerics
    padding    whether what lies past a sequence's end is judged too: zeros, and -inf for lse
    """
    return judge_with(Budget.of(problem, reference, same, padding=padding), got)


def judge_with(budget: Budget, got: Outputs) -> Judgement:
    """Compares what a target gave with the reference, tensor by tensor.

    got  in the problem's layout, on the budget's device; a tensor that is None is not judged

    Rows without keys must be exactly 0, their LSE -inf. Infinities are right where the true value does not fit the
    dtype, and anything goes where the same-precision run itself overflowed. One synchronisation with the device when
    all is well. Raises ValueError on a tensor that the reference lacks, or of another shape.
    """
    with torch.no_grad():
        passed = _passed(budget, got)
        if passed is not None:
            return passed
        part, flat, z = budget.z(got)
        if not part.slots:
            return Judgement((), 0.0, {})
        z2 = (z * z).nan_to_num_(nan=HUGE, posinf=HUGE).clamp_max_(HUGE)
        by_name = _rows(part, z, z2)
        worst = {name: by_name[name].worst() for name, _ in got.items() if name in by_name}
        wrong = [(by_name[name].slot, w) for name, w in worst.items() if not w.ratio <= 1]
        findings = tuple(_finding(part, flat, z2, slot, w) for slot, w in wrong)
    return Judgement(findings, max(w.ratio for w in worst.values()), worst)


def _passed(budget: Budget, got: Outputs) -> Judgement | None:
    """The judgement of padded answers on a CPU where nothing is wrong, in one pass. None: to be looked at closely."""
    problem = budget.problem
    if not uses_numba(budget.want) or budget.want.dtype != torch.float64 or problem.layout != "padded":
        return None
    given = budget.stored(got)
    if not given:
        return None
    from oracles.reference import numba_loops

    found, ratios = {}, np.empty(len(GRAINS))
    low, want, sigma = (x.numpy() for x in (budget.low, budget.want, budget.sigma))
    checked = None if budget.checked is None else budget.checked.numpy()
    reaches = None if budget.reaches is None else budget.reaches.numpy()
    for slot, x in given:
        part = slice(slot.start, slot.stop)
        heads, rows = slot.padded[1:3]
        exists = _there(budget, slot)
        at = numba_loops.worst(
            x, low[part], want[part], sigma[part], _ALL if checked is None else checked[part],
            _NOWHERE if reaches is None else reaches[part], heads, rows, slot.dim, TILE,
            _EVERYWHERE if exists is None else exists.reshape(-1, rows), ELEMENT, NORMAL, HUGE, ratios,
        )  # fmt: skip
        if not ratios.max() <= 1:
            return None
        place = (at // (heads * rows), at // rows % heads, at % rows)
        found[slot.name] = Worst(dict(zip(GRAINS, ratios.tolist(), strict=True)), place)
    worst = {name: found[name] for name, _ in got.items() if name in found}
    return Judgement((), max(w.ratio for w in worst.values()), worst)


_ALL = np.zeros(0, np.float32)
_NOWHERE = np.zeros(0, np.bool_)
_EVERYWHERE = np.zeros((0, 0))


@dataclass(frozen=True)
class _Rows:
    """Summary of one tensor's z over its rows, fp64 (batch, heads, rows).

    most, at  the largest z squared, and its row; NaN and infinity count as HUGE in it
    mean      the mean of z squared
    over      the row's rms over its limit
    sums      z summed over rows: (batch, heads, dim)
    there     1 for rows that exist, else 0, broadcastable; None: all do
    """

    slot: Slot
    most: float
    at: tuple[int, int, int]
    mean: Rows
    over: Rows
    sums: Rows
    there: Rows | None

    def worst(self) -> Worst:
        """Ratios by grain, and where the largest z is."""
        total = float(self.mean.sum())
        apart = 1.0 - self._together(total)
        tile_rows, rows = self._counts()
        tile = np.sqrt(_tiles(self.mean) / tile_rows) / limit(tile_rows**apart)
        ratios = {
            "element": math.sqrt(self.most) / ELEMENT,
            "row": float(self.over.max()),
            "tile": float(tile.max()),
            "tensor": math.sqrt(total / rows) / float(limit(rows**apart)),
        }
        return Worst(ratios, self.at)

    def _counts(self) -> tuple[Rows, float]:
        """Rows of each tile, (batch or 1, heads or 1, tiles), and of the tensor; at least 1."""
        if self.there is None:
            return _tile_rows(self.mean.shape[-1]), float(self.mean.size)
        rows = float(self.there.sum()) * (self.mean.size / self.there.size)
        return np.maximum(_tiles(self.there), 1.0), max(rows, 1.0)

    def _together(self, total: float) -> float:
        """Degree to which the rows of a head err together, from 0 (each by itself) to 1 (all alike, as for constant
        inputs).

        Rows that err alike are one draw of the noise, not many: averaging over them proves no more than one row does.
        """
        flat = self.sums.ravel()
        alike = float(flat @ flat) / self.mean.shape[2]
        share = alike / max(total * self.slot.dim, 1e-30)
        return 0.0 if math.isnan(share) else min(share, 1.0)


def _rows(budget: Budget, z: Tensor, z2: Tensor) -> dict[str, _Rows]:
    """Sums up each tensor's rows where they are; brings them to the CPU in one copy."""
    p = budget.problem
    by_group = list[list[Tensor]]()
    for group in groups(budget.slots):
        part = slice(group[0].start, group[-1].stop)
        rows, rows2 = z[part].view(-1, group[0].dim), z2[part].view(-1, group[0].dim)
        of_rows = [rows2.mean(1), rows.abs().mean(1)] if group[0].dim > 1 else [z2[part], z[part]]
        by_group.append([*of_rows, rows2.amax(1)])
    whole = [x[0] if len(x) == 1 else torch.cat(x) for x in zip(*by_group, strict=True)]
    count = len(whole)
    whole += [_over_rows(p, s, z[s.start : s.stop].view(s.shape)) for s in budget.slots if s.name != "lse"]
    moved = _moved(whole)
    (mean, size, most), sums = moved[:count], moved[count:]
    over = np.sqrt(mean) / _row_limit(mean, np.abs(size))
    found, start = dict[str, _Rows](), 0
    for i, slot in enumerate(budget.slots):
        here = slice(start, start + (slot.stop - slot.start) // slot.dim)
        start = here.stop
        mean_, over_ = _padded(p, slot, mean[here]), _padded(p, slot, over[here])
        # LSE has one element a row, whose sign was kept
        total = sums[i] if slot.name != "lse" else _padded(p, slot, size[here]).sum(2)
        by_row = _padded(p, slot, most[here])
        row = int(by_row.argmax())
        largest = float(by_row.flat[row])
        b, h, r = map(int, np.unravel_index(row, mean_.shape))
        found[slot.name] = _Rows(slot, largest, (b, h, r), mean_, over_, total, _there(budget, slot))
    return found


def _row_limit(mean: Rows, size: Rows) -> Rows:
    """Limit of the rms of z over rows, of the mean of its square and of its magnitude: between those of a row of
    independent normal errors, for which mean |z| is the root of 2/pi of the rms, and of equal ones."""
    found = np.square(size) / np.maximum(mean, 1e-30)
    alike = np.fmin(np.maximum((found - NORMAL) / (1.0 - NORMAL), 0.0), 1.0)  # NaN: 1
    least = float(limit(1.0))
    return least + (ELEMENT - least) * alike


def _moved(found: list[Tensor]) -> list[Rows]:
    """fp64 on the CPU, with one wait for a device."""
    if found[0].is_cuda:
        found = list(torch.cat([x.flatten() for x in found]).cpu().split([x.numel() for x in found]))
    return [x.numpy().astype(np.float64) for x in found]


def _over_rows(p: AnyProblem, slot: Slot, z: Tensor) -> Tensor:
    """z of one tensor, in the problem's layout, summed over the rows of each sequence and head."""
    if p.layout == "padded" or slot.in_one_layout:
        return z.view(slot.padded).sum(2)
    lengths = _lengths(p, slot)
    if len(set(lengths)) == 1:
        return z.view(len(lengths), -1, *z.shape[1:]).sum(1)
    return torch.stack([part.sum(0) for part in z.split(list(lengths))])


def _padded(p: AnyProblem, slot: Slot, rows: Rows) -> Rows:
    """One number per row, as a tensor in the problem's layout lies, as (batch, heads, rows); zeros past the ends."""
    if p.layout == "padded" or slot.in_one_layout:
        return rows.reshape(slot.padded[:3])
    lengths = _lengths(p, slot)
    rows = rows.reshape(slot.shape).T if slot.name == "lse" else rows.reshape(slot.shape[:2])
    batch, longest, heads = len(lengths), max(lengths), rows.shape[1]
    if len(set(lengths)) > 1:
        padded = np.zeros((batch, longest, heads))
        padded[np.arange(longest) < np.array(lengths)[:, None]] = rows
        rows = padded
    return rows.reshape(batch, longest, heads).transpose(0, 2, 1)


def _lengths(p: AnyProblem, slot: Slot) -> tuple[int, ...]:
    return p.lengths_k if slot.name in ON_KEYS else p.lengths_q


def _there(budget: Budget, slot: Slot) -> Rows | None:
    """1 for the rows that are judged, (batch, 1, rows); None where all are."""
    p = budget.problem
    there = None if budget.padding and p.layout == "padded" else rows_there(p, slot.name, torch.device("cpu"))
    if there is None:
        return None
    return (there.any(-1) if slot.name == "dbias" else there).numpy().astype(np.float64)


def _tiles(rows: Rows) -> Rows:
    """Sums over tiles of 64 rows: (batch, heads, tiles)."""
    return np.add.reduceat(rows, np.arange(0, rows.shape[-1], TILE), axis=-1)


@lru_cache(maxsize=256)
def _tile_rows(count: int) -> Rows:
    return _tiles(np.ones((1, 1, count)))


def _finding(budget: Budget, got: Tensor, z2: Tensor, slot: Slot, worst: Worst) -> Finding:
    """The finding about one tensor, with its location; synchronises with the device."""

    def in_rows(x: Tensor) -> Tensor:
        """Flat numbers as (batch, heads, rows, dim)."""
        x = x[slot.start : slot.stop].view(slot.padded)
        if slot.name == "lse":
            x = x[..., None]
        if budget.problem.layout == "padded" or slot.in_one_layout:
            return x
        return padded_rows(budget.problem, slot.name, x.transpose(0, 1) if slot.name == "lse" else x)

    squares, exists = in_rows(z2), _there(budget, slot)
    grain = max(worst.ratios, key=lambda name: worst.ratios[name])
    edge = (PLACE * ELEMENT) ** 2 if worst.ratios["element"] > PLACE else float(squares.amax()) / 4
    bad = squares > edge
    there = torch.ones_like(bad[..., 0])
    if exists is not None:
        there = torch.from_numpy(exists > 0).to(bad.device).expand(bad.shape[:-1])
    cols = bad.flatten(0, 2).any(0) if slot.name not in ("lse", "dbias") else None
    place = locate(bad.any(-1), there, worst.at, cols=cols)
    b, h, r = worst.at
    column = int(squares[b, h, r].argmax())
    got, want, sigma = (in_rows(x) for x in (got, budget.want, budget.sigma))
    at = (b, h, r, column)
    found, right, unit = float(got[at]), float(want[at]), float(sigma[at])
    not_finite = int((~got.isfinite() & (squares > 0)).sum())
    share = float(bad.any(-1).sum() / there.sum().clamp_min(1))
    numbers = {"ratio": worst.ratio, "got": found, "want": right, "error": abs(found - right), "budget": unit * ELEMENT}
    numbers |= {"bad_rows": share, "not_finite": float(not_finite)}
    kind = "nan" if not_finite else "wrong"
    where = f"at batch {b}, head {h}, row {r}" + (f", column {column}" if slot.name != "lse" else "")
    rows = f"{share:.0%} of the rows are affected: {place.pattern}"
    title = TITLES[slot.name]
    if not math.isfinite(found):
        size = "NaN" if math.isnan(found) else "infinite"
        some = f"{not_finite} element{' is' if not_finite == 1 else 's are'} not finite"
        message = f"{title} is {size}: {where}, where {right:.6g} is expected ({some}; {rows})"
    elif grain == "element" or worst.ratios["element"] > 1:
        explained = f"rounding explains an error of at most {unit * ELEMENT:.2g}"
        message = f"{title} is wrong: {where} it is {found:.6g}, expected {right:.6g} ({explained}; {rows})"
    else:
        message = (
            f"{title} is inaccurate: the rms error of {_GRAIN[grain]} is {worst.ratio:.3g} times what rounding "
            f"explains; the largest error is {where}, where it is {found:.6g}, expected {right:.6g} ({rows})"
        )
    return Finding("accuracy", kind, message, slot.name, place, numbers)
