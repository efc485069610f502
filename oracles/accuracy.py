"""Accuracy: every element, row, tile and tensor of an answer against a budget made from the case's own data.

The error of an answer is measured in units of what rounding alone does there (`Same`, by same_precision.py): the larger
of the noise of that element and the error of the same-precision runs in its row. Call that quotient z. A kernel that
rounds where its Numerics say has z about 1; a budget is how far z may go, and depends only on how much is averaged:

    one element   |z| <= ELEMENT
    row           rms z <= limit(1), rising to ELEMENT for a row whose elements err alike: it proves no more than one
    tile of 64 rows, tensor   rms z <= limit(rows averaged), rows that err alike counted as one

There is no tolerance in units of the data anywhere. `ratio` is the largest quotient of z and its limit: 1 is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from oracles.answers import Answers
from oracles.finding import Finding
from oracles.numerics import CPU_FLASH, CUDNN, EAGER, EFFICIENT, EXACT, FLEX_EAGER, FUSED, Numerics
from oracles.parts import padded_rows, rows_there
from oracles.place import TILE, locate
from oracles.problem import Problem
from oracles.same_precision import Same, same_precision

__all__ = [
    "CPU_FLASH",
    "CUDNN",
    "EAGER",
    "EFFICIENT",
    "EXACT",
    "FLEX_EAGER",
    "FUSED",
    "Judgement",
    "Numerics",
    "Worst",
    "judge",
    "same_precision",
]

ELEMENT = 10.0  # limit of |z| of one element
PLACE = 0.6  # of that limit: rows beyond it are shown as wrong
HUGE = 1e30  # z2 of NaN and of an inexact exact value
GRAINS = ("element", "row", "tile", "tensor")


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


def limit(rows: Tensor | float) -> Tensor | float:
    """How far the rms of z over that many rows may go: rows of one case err together, so it falls slowly to 2."""
    return 2.0 + 4.0 * rows**-0.5


def judge(problem: Problem, got: Answers, reference: Answers, same: Same, *, padding: bool = False) -> Judgement:
    """Compares what a target gave with the reference, tensor by tensor.

    got        in the problem's layout, on the reference's device; a tensor that is None is not judged
    reference  of `reference.reference`, fp64 (or fp32 when the inputs are of 16 bits)
    same       of `same_precision` with the target's numerics
    padding    whether what lies past a sequence's end is judged too: zeros, and -inf for lse
    Rows without keys must be exactly 0, their LSE -inf. Infinities are right where the true value does not fit the
    dtype, and anything goes where the same-precision run itself overflowed. One synchronisation with the device when
    all is well. Raises ValueError on a tensor that the reference lacks, or of another shape.
    """
    compared = {name: _Compared.of(problem, name, x, reference, same, padding) for name, x in got.items()}
    compared = {name: x for name, x in compared.items() if x.z2.numel()}
    if not compared:
        return Judgement((), 0.0, {})
    numbers = torch.stack([x.summary() for x in compared.values()]).tolist()
    worst = {name: x.worst(row) for (name, x), row in zip(compared.items(), numbers, strict=True)}
    findings = tuple(compared[name].finding(w) for name, w in worst.items() if not w.ratio <= 1)
    return Judgement(findings, max(w.ratio for w in worst.values()), worst)


@dataclass(frozen=True)
class _Compared:
    """One tensor's z and its square; in the square, NaN and infinity count as HUGE.

    z, z2  (batch, heads, rows, dim) or, packed, (total, heads, dim); lse with dim 1; 0 where nothing is judged
    there  bool (batch, 1, rows): rows that exist; None: all do. dbias: (batch, 1, rows, cols)
    """

    problem: Problem
    name: str
    got: Tensor
    want: Tensor
    sigma: Tensor
    z: Tensor
    z2: Tensor
    there: Tensor | None

    @staticmethod
    def of(problem: Problem, name: str, got: Tensor, reference: Answers, same: Same, padding: bool) -> _Compared:
        want, runs, noise = (getattr(x, name) for x in (reference, same.runs, same.noise))
        if want is None or got.shape != want.shape:
            raise ValueError(
                f"{name}: needs shape {None if want is None else tuple(want.shape)}, got {tuple(got.shape)}"
            )
        if name == "lse":
            got, want, runs, noise = (x[..., None] for x in (got, want, runs, noise))
            if problem.layout == "packed":
                got, want, noise = (x.transpose(0, 1) for x in (got, want, noise))
                runs = runs.transpose(1, 2)
        own = runs - (want if problem.dtype == "float32" or name == "lse" else want.float())
        run2 = (own * own).mean(-1, keepdim=True).amax(0).float()
        run2 = torch.where(run2.isnan(), torch.inf, run2)
        if name == "lse":
            run2 = torch.where(want == runs[0], 0.0, run2)  # -inf both
        sigma = torch.maximum(noise, run2.sqrt())
        right = (got == want.to(got.dtype)) | (sigma == torch.inf)
        if got.dtype == torch.float16:
            reaches = want.abs() + ELEMENT * sigma > torch.finfo(got.dtype).max
            right |= got.isinf() & reaches & ((got > 0) == (want > 0))
        z = torch.where(right, 0.0, (got - want).float() / sigma)
        there = None if padding and problem.layout == "padded" else rows_there(problem, name, got.device)
        if there is not None and problem.layout == "padded":
            z = torch.where(there[..., None] if name != "dbias" else there, z, 0.0)
        return _Compared(problem, name, got, want, sigma, z, torch.fmin(z * z, _huge(got.device)), there)

    def summary(self) -> Tensor:
        """float64 (5,): ratio by grain, flat index of the worst row."""
        most, mean, there = self._by_row()
        rows = torch.full((), float(mean.numel()), device=mean.device)
        ones = torch.ones_like(mean[:1, :1]) if there is None else there.to(mean.dtype)
        if there is not None:
            rows = ones.sum() * (mean.numel() / ones.numel())
        tile_rows, tile_sum = _tiles(ones), _tiles(mean)
        apart = 1.0 - self._together()
        tile = (tile_sum / tile_rows.clamp_min(1)).sqrt() / limit(tile_rows.clamp_min(1) ** apart)
        grains = [
            most.amax().sqrt() / ELEMENT,
            (mean.sqrt() / self._row_limit(mean)).amax(),
            tile.amax(),
            (mean.sum() / rows.clamp_min(1)).sqrt() / limit(rows.clamp_min(1) ** apart),
        ]
        return torch.stack([*grains, most.flatten().argmax().double()])

    def _row_limit(self, mean: Tensor) -> Tensor:
        """Limit of the rms of z over each row, (batch, heads, rows); `mean` is that of its z2."""
        alike = self._in_rows(self.z).mean(-1).square() / mean.clamp_min(1e-30)
        least = float(limit(1.0))
        return least + (ELEMENT - least) * alike.nan_to_num(1.0, posinf=1.0).clamp(0.0, 1.0)

    def _together(self) -> Tensor:
        """How far the rows of a head err together, from 0 (each by itself) to 1 (all alike, as for constant inputs).

        Rows that err alike are one draw of the noise, not many: averaging over them proves no more than one row does.
        """
        signed = self._in_rows(self.z)
        alike = signed.sum(2).square().sum() / max(signed.shape[2], 1)
        return (alike / self.z2.sum().clamp_min(1e-30)).nan_to_num(0.0).clamp(0.0, 1.0)

    def worst(self, numbers: list[float]) -> Worst:
        """The summary as a value."""
        row = int(numbers[4])
        heads, rows = self._in_rows().shape[1:3]
        at = (row // (heads * rows), row // rows % heads, row % rows)
        return Worst(dict(zip(GRAINS, numbers, strict=False)), at)

    def finding(self, worst: Worst) -> Finding:
        """The complaint, with its place: may synchronise as it likes."""
        z2 = self._in_rows()
        grain = max(worst.ratios, key=lambda name: worst.ratios[name])
        edge = (PLACE * ELEMENT) ** 2 if worst.ratios["element"] > PLACE else float(z2.amax()) / 4
        bad = z2 > edge
        there = torch.ones_like(bad[..., 0]) if self.there is None else self._rows_there().expand(bad.shape[:-1])
        cols = bad.flatten(0, 2).any(0) if self.name not in ("lse", "dbias") else None
        place = locate(bad.any(-1), there, worst.at, cols=cols)
        b, h, r = worst.at
        column = int(z2[b, h, r].argmax())
        got, want, sigma = (float(self._in_rows(x)[b, h, r, column]) for x in (self.got, self.want, self.sigma))
        not_finite = int((~self.got.isfinite() & (self.z2 > 0)).sum())
        share = float(bad.any(-1).sum() / there.sum().clamp_min(1))
        numbers = {"ratio": worst.ratio, "got": got, "want": want, "error": abs(got - want), "budget": sigma * ELEMENT}
        numbers |= {"bad_rows": share, "not_finite": float(not_finite)}
        kind = "nan" if not_finite else "wrong"
        message = (
            f"{self.name}: {worst.ratio:.3g} times its budget by {grain}; worst at batch {b}, head {h}, row {r}, "
            f"column {column}: got {got:.6g}, want {want:.6g}, {share:.0%} of the rows ({place.pattern})"
        )
        return Finding("accuracy", kind, message, self.name, place, numbers)

    def _in_rows(self, x: Tensor | None = None) -> Tensor:
        """x (z2) as (batch, heads, rows, dim)."""
        x = self.z2 if x is None else x
        return x if x.dim() == 4 else padded_rows(self.problem, self.name, x)

    def _rows_there(self) -> Tensor:
        assert self.there is not None
        return self.there.any(-1) if self.name == "dbias" else self.there

    def _by_row(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Largest and mean z2 of each row (batch, heads, rows), and which rows exist, None for all."""
        z2 = self._in_rows()
        return z2.amax(-1), z2.mean(-1), None if self.there is None else self._rows_there()


@lru_cache(maxsize=8)
def _huge(device: torch.device) -> Tensor:
    return torch.tensor(HUGE, device=device)


def _tiles(x: Tensor) -> Tensor:
    """Sums over tiles of 64 rows: (batch, heads, tiles)."""
    x = F.pad(x, (0, -x.shape[-1] % TILE))
    return x.unflatten(-1, (-1, TILE)).sum(-1)
