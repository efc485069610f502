"""Forward problems with a token mask, block lists from the package's own builders, and the answer in float64.

The answer comes from the token mask alone. The tolerance is per element and derived: rounding P and O to the dtype, and
fp32 products, bound the error by a multiple of P·|V|.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.launch import forward
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.intervals import intervals
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.variant import Variant


@dataclass(frozen=True)
class Case:
    """lengths of the sequences; mask: dense, tokens (random, `density`), blocks (random 64 × 64 ones), intervals, band.

    empty   heads, or every third row, without any key (tokens and blocks); varied: a mask per sequence and head
    view    q, k, v as slices of one wider tensor, so that strides are not the dense ones
    nested  the lists of a band say that their rows are nested
    """

    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads_q: int = 2
    heads_kv: int = 2
    dim: int = 64
    dtype: torch.dtype = torch.bfloat16
    mask: str = "dense"
    packed: bool = False
    tile_m: int = 64
    tile_n: int = 64
    density: float = 0.5
    empty: bool = False
    varied: bool = True
    left: int | None = None
    right: int | None = 0
    align: str = "top_left"
    n_func: int = 3
    softcap: float | None = None
    scale: float | None = None
    view: bool = False
    nested: bool = False
    spread: float = 1.0
    seed: int = 0
    tuning: tuple[tuple[str, int], ...] = field(default=())
    products: str | None = None

    def __str__(self) -> str:
        parts = [f"{k}={v}" for k, v in self.__dict__.items() if v != getattr(type(self), k, None)]
        return " ".join(parts).replace("torch.", "")


def drawn(seed: int, **changes: Any) -> Case:
    """A case at random: lengths, heads, dims, tiles, masks, strides. changes: fields that are said instead."""
    draw = random.Random(seed)
    batch, top = draw.choice([1, 2, 4]), draw.choice([70, 200, 500])
    packed, heads_kv = draw.random() < 0.4, draw.choice([1, 2])
    lengths = [tuple(draw.randint(0 if i else 1, top) for i in range(batch)) for _ in "qk"]
    case = Case(
        *lengths,
        heads_q=heads_kv * draw.choice([1, 4]),
        heads_kv=heads_kv,
        dim=draw.choice([32, 40, 64, 80, 96, 120, 128, 160, 192, 256]),
        dtype=draw.choice([torch.bfloat16, torch.float16]),
        mask=draw.choice(["dense", "tokens", "blocks", "intervals", "band"]),
        packed=packed,
        tile_m=draw.choice([64, 128]),
        tile_n=draw.choice([64, 128]),
        density=draw.choice([0.1, 0.5, 0.9]),
        empty=draw.random() < 0.3,
        left=draw.choice([None, 5, 100]),
        align=draw.choice(["top_left", "bottom_right"]),
        softcap=draw.choice([None, None, 20.0]),
        view=draw.random() < 0.3,
        spread=draw.choice([1.0, 3.0]),
        seed=seed,
    )
    return replace(case, **changes)


@dataclass(frozen=True, eq=False)
class Problem:
    """The tensors of one case, on a device. keep: bool (batch, heads_q, longest_q, longest_k)."""

    case: Case
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor
    sequences: forward.Sequences
    blocks: BlockSparse
    keep: Tensor
    scale: float

    @property
    def variant(self) -> Variant:
        return forward.forward_variant(self.q, self.blocks, self.case.softcap, self.case.tuning, self.case.products)

    def values(self, **persistent: Any) -> forward.Values:
        return forward.forward_values(
            self.q,
            self.k,
            self.v,
            self.o,
            self.lse,
            self.sequences,
            self.blocks,
            scale=self.scale,
            softcap=self.case.softcap,
            cluster=forward.cluster_size(self.variant),
            **persistent,
        )

    def run(self) -> None:
        forward.forward(
            self.q,
            self.k,
            self.v,
            self.o,
            self.lse,
            self.sequences,
            self.blocks,
            scale=self.scale,
            softcap=self.case.softcap,
            tuning=self.case.tuning,
            products=self.case.products,
        )


def tuning_of(
    tokens: int,
    dim: int = 128,
    *,
    blocks: BlockSparse | None = None,
    packed: bool = False,
    products: str = "wgmma",
    **options: Any,
) -> dict[str, int]:
    """The tuning of the forward kernel for two sequences of so many queries and keys. blocks: the lists; None: those of
    a full mask."""
    shape = (2 * tokens, 4, dim) if packed else (2, tokens, 4, dim)
    q = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    lists = dense([tokens] * 2, [tokens] * 2, **options) if blocks is None else blocks
    return dict(forward.forward_variant(q, lists, products=products).tuning)


def problem(case: Case, device: str = "cpu") -> Problem:
    """The case's tensors; o and lse start as NaN, so that what is not written shows."""
    make = torch.Generator().manual_seed(case.seed)
    longest_q, longest_k = max(case.lengths_q), max(case.lengths_k)
    batch = len(case.lengths_q)
    keep, blocks = _mask(case, make, device)

    def operand(lengths: tuple[int, ...], heads: int) -> Tensor:
        rows = (sum(lengths),) if case.packed else (batch, max(lengths))
        wide = torch.randn((*rows, heads + case.view, case.dim + 8 * case.view), generator=make) * case.spread
        if not case.packed:
            for b, length in enumerate(lengths):
                wide[b, length:] = torch.nan
        return wide.to(case.dtype).to(device)[..., :heads, : case.dim]

    q = operand(case.lengths_q, case.heads_q)
    k, v = operand(case.lengths_k, case.heads_kv), operand(case.lengths_k, case.heads_kv)
    lse_shape = (case.heads_q, sum(case.lengths_q)) if case.packed else (batch, case.heads_q, longest_q)

    def begins(lengths: tuple[int, ...]) -> list[int]:
        return [sum(lengths[:b]) if case.packed else 0 for b in range(batch)]

    sequences = forward.Sequences(
        *(
            torch.tensor(x, dtype=torch.int32, device=device)
            for x in (begins(case.lengths_q), case.lengths_q, begins(case.lengths_k), case.lengths_k)
        )
    )
    return Problem(
        case,
        q,
        k,
        v,
        torch.full(q.shape, torch.nan, dtype=case.dtype, device=device),
        torch.full(lse_shape, torch.nan, device=device),
        sequences,
        blocks,
        keep.expand(batch, case.heads_q, longest_q, longest_k),
        case.dim**-0.5 if case.scale is None else case.scale,
    )


def _mask(case: Case, make: torch.Generator, device: str) -> tuple[Tensor, BlockSparse]:
    batch, longest_q, longest_k = len(case.lengths_q), max(case.lengths_q), max(case.lengths_k)
    groups = (batch, case.heads_q) if case.varied else (1, 1)
    tiles = {"tile_m": case.tile_m, "tile_n": case.tile_n, "backward": False}
    row, column = torch.arange(longest_q)[:, None], torch.arange(longest_k)[None, :]
    if case.mask == "dense":
        keep = torch.ones((1, 1, longest_q, longest_k), dtype=torch.bool)
        return keep.to(device), dense(case.lengths_q, case.lengths_k, device=device, **tiles)
    if case.mask == "band":
        blocks = band(
            case.lengths_q,
            case.lengths_k,
            left=case.left,
            right=case.right,
            align=case.align,
            device=device,
            nested=case.nested or None,
            **tiles,
        )
        offset = torch.tensor(case.lengths_k) - torch.tensor(case.lengths_q)
        offset = offset * (case.align == "bottom_right")
        away = column - row - offset[:, None, None]
        keep = torch.ones_like(away, dtype=torch.bool)
        keep &= away >= -case.left if case.left is not None else keep
        keep &= away <= case.right if case.right is not None else keep
        return keep[:, None].to(device), blocks
    if case.mask == "intervals":
        bounds = torch.randint(0, longest_k + 1, (*groups, case.n_func, longest_q), generator=make)
        bounds[..., 0, :] //= 4
        bounds = bounds.to(torch.int32)
        keep = column < bounds[..., 0, :, None]
        for i in range(1, case.n_func, 2):
            keep = keep | ((column >= bounds[..., i, :, None]) & (column < bounds[..., i + 1, :, None]))
        blocks = intervals(bounds.to(device), case.lengths_q, case.lengths_k, **tiles)
        return keep.to(device), blocks
    if case.mask == "tokens":
        keep = torch.rand((*groups, longest_q, longest_k), generator=make) < case.density
        coarse = torch.rand((*groups, -(-longest_q // 64), -(-longest_k // 64)), generator=make)
    else:
        coarse = torch.rand((*groups, -(-longest_q // 64), -(-longest_k // 64)), generator=make)
        keep = torch.zeros((*groups, longest_q, longest_k), dtype=torch.bool)
    fine = coarse.repeat_interleave(64, 2).repeat_interleave(64, 3)[..., :longest_q, :longest_k]
    # some blocks without keys, some full
    keep = (keep | (fine < case.density / 2 if case.mask == "tokens" else fine < case.density)) & (fine < 0.85)
    if case.empty:
        keep[..., ::3, :] = False
        keep[:, -1] = False
    return keep.to(device), from_mask(keep.to(device), case.lengths_q, case.lengths_k, **tiles)


def reference(p: Problem, b: int) -> tuple[Tensor, Tensor, Tensor]:
    """o (len_q, heads_q, dim), lse (heads_q, len_q) and P·|V| like o, of one sequence, in float64 on p's device."""
    q, k, v = (sequence(p, x, b).double().transpose(0, 1) for x in (p.q, p.k, p.v))
    keep = p.keep[b, :, : q.shape[1], : k.shape[1]]
    group = p.case.heads_q // p.case.heads_kv
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT * p.scale
    if p.case.softcap is not None:
        scores = torch.tanh(scores / p.case.softcap) * p.case.softcap
    scores = scores.masked_fill(~keep, -torch.inf)
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    weights = torch.where(lse[..., None].isinf(), 0.0, (scores - lse[..., None]).exp()).nan_to_num(0.0)
    return (weights @ v).transpose(0, 1), lse, (weights @ v.abs()).transpose(0, 1)


def sequence(p: Problem, x: Tensor, b: int) -> Tensor:
    """The rows (length, heads, dim) of one sequence of q, k, v or o."""
    keys = x is p.k or x is p.v
    lengths = p.case.lengths_k if keys else p.case.lengths_q
    if p.case.packed:
        return x[sum(lengths[:b]) : sum(lengths[: b + 1])]
    return x[b, : lengths[b]]


def errors(p: Problem) -> tuple[float, float]:
    """Largest errors of o and of lse as multiples of what is allowed: right when both are at most 1.

    P and O are rounded to the dtype (u each), and sums and exponentials are in fp32 with approximate instructions:
    |o - ref| <= (2u + e) · P·|V|, where e = 2⁻²⁰ (1 + largest |score|) covers fp32 scores as well. |lse - ref| <= e.
    Rows without keys must be exact. Rows past a sequence's end must still be NaN.
    """
    half = p.case.dtype == torch.float16
    unit = 2.0**-11 if half else 2.0**-8
    worst_o, worst_lse = 0.0, 0.0
    for b in range(len(p.case.lengths_q)):
        length = p.case.lengths_q[b]
        if not length:
            continue
        o, lse, size = reference(p, b)
        got_o = sequence(p, p.o, b).double()
        at = sum(p.case.lengths_q[:b])
        got_lse = (p.lse[:, at : at + length] if p.case.packed else p.lse[b, :, :length]).double()
        rows = sequence(p, p.q, b).double().norm(dim=-1).max(), 1.0
        if p.case.lengths_k[b]:
            rows = rows[0], sequence(p, p.k, b).double().norm(dim=-1).max()
        tiny = 2.0**-20 * (1 + float(rows[0] * rows[1]) * p.scale)
        bound = (2 * unit + tiny) * size + 1e-38
        if half and p.case.lengths_k[b]:  # small probabilities are subnormal
            bound += 2.0**-25 * (1 + p.case.lengths_k[b] * float(sequence(p, p.v, b).abs().max()))
        worst_o = max(worst_o, _largest((got_o - o).abs() / bound))
        none = lse == -torch.inf
        if not torch.equal(got_lse == -torch.inf, none) or (got_o.transpose(0, 1)[none] != 0).any():
            return float("inf"), float("inf")
        gap = torch.where(none, 0.0, (got_lse - torch.where(none, 0.0, lse)).abs())
        worst_lse = max(worst_lse, _largest(gap / tiny))
        if not p.case.packed and not p.o[b, length:].isnan().all():
            return float("inf"), float("inf")
    return worst_o, worst_lse


def _largest(x: Tensor) -> float:
    return float("inf") if x.isnan().any() else float(x.max())
