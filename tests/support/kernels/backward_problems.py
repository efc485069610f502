"""Problems for the backward kernels, their right answers in float64, and the comparison; on a GPU or an emulated one.

What forward would have computed (O, LSE) comes from the reference too, so that these tests fail for the backward alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.launch.backward import Workspace, backward_launches, make_workspace
from kernels.blocksparse.launch.forward import Sequences, Values
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_mask
from kernels.blocksparse.lists.intervals import intervals
from kernels.blocksparse.lists.schedule import ALIKE, ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.spec.variant import Variant

# What an error may be, as Frobenius norms over one head of one sequence: a share of the gradient, and a share of the
# same sum # with every term's absolute value, because P and dS are rounded to 16 bits, and O before delta is made of
# it: dP - delta may # cancel to nothing where dP and delta do not. A unit of rounding is 2^-9 (bfloat16) or 2^-12
# (float16).
BOUNDS = {torch.bfloat16: (2**-7.5, 2**-10), torch.float16: (2**-10.5, 2**-13)}


@dataclass(frozen=True)
class Spec:
    """lens_q, lens_k: of each sequence; packed: rows of all sequences one after another, else padded to the longest.

    whole: lengths, of which there is one, are numbers, as where a caller gives none; else tensors
    reverses: of the schedule
    view: operands are slices of wider tensors, so that no strides are the dense ones
    float32: gradients' dtype, else dtype
    mask: full, causal (bottom right), window, documents, prefixes (one for each query, of intervals: causal, top left),
    random (packed bits per head: blocks, empty blocks, single elements)
    """

    lens_q: tuple[int, ...]
    lens_k: tuple[int, ...]
    heads_q: int = 1
    heads_kv: int = 1
    dim: int = 64
    dtype: torch.dtype = torch.bfloat16
    tile_m: int = 64
    tile_n: int = 64
    mask: str = "full"
    packed: bool = False
    whole: bool = False
    softcap: float | None = None
    deterministic: bool = False
    schedule: str = "ascending"
    reverses: bool = False
    pairs: int | None = None
    group_split: int | None = None
    products: str | None = None
    separate_dq: bool = False
    tuning: tuple[tuple[str, int], ...] = ()
    view: bool = False
    float32: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Problem:
    """q, k, v, o, do and lse in the layout of the launcher; the reference's gradients likewise, in float64.

    sizes   the gradients' sums with all terms positive; 0 where no key sees the query, or no query the key
    """

    spec: Spec
    operands: dict[str, Tensor]
    lse: Tensor
    sequences: Sequences
    blocks: BlockSparse
    right: dict[str, Tensor]
    sizes: dict[str, Tensor]
    scale: float


def make(spec: Spec, device: str = "cpu") -> Problem:
    """The problem of a spec; everything random comes from its seed."""
    generator = torch.Generator().manual_seed(spec.seed)
    batch, group = len(spec.lens_q), spec.heads_q // spec.heads_kv
    longest_q, longest_k = max(spec.lens_q), max(spec.lens_k)
    rows_q, rows_k = (sum(spec.lens_q), sum(spec.lens_k)) if spec.packed else (longest_q, longest_k)
    leading = () if spec.packed else (batch,)

    def tensor(rows: int, heads: int) -> Tensor:
        values = torch.randn((*leading, rows, heads, spec.dim + 8 * spec.view), generator=generator)
        return values.to(spec.dtype).to(device)[..., : spec.dim]

    operands = {
        "q": tensor(rows_q, spec.heads_q),
        "k": tensor(rows_k, spec.heads_kv),
        "v": tensor(rows_k, spec.heads_kv),
    }
    operands |= {"o": torch.zeros_like(operands["q"]), "do": tensor(rows_q, spec.heads_q)}
    lse = torch.zeros((*leading, spec.heads_q, rows_q), dtype=torch.float32, device=device)
    right, sizes = (
        {name: torch.zeros(operands[name[1]].shape, dtype=torch.float64, device=device) for name in ("dq", "dk", "dv")}
        for _ in range(2)
    )
    begins_q = [sum(spec.lens_q[:b]) if spec.packed else 0 for b in range(batch)]
    begins_k = [sum(spec.lens_k[:b]) if spec.packed else 0 for b in range(batch)]
    blocks, keep = _blocks(spec, generator, device)
    scale = 1 / math.sqrt(spec.dim)
    for b in range(batch):
        for h in range(spec.heads_q):
            at_q = _place(spec, b, begins_q[b], spec.lens_q[b], h)
            at_k = _place(spec, b, begins_k[b], spec.lens_k[b], h // group)
            here = keep[b % keep.shape[0], h % keep.shape[1], : spec.lens_q[b], : spec.lens_k[b]]
            q, k, v = (
                operands[name][at].double().requires_grad_() for name, at in (("q", at_q), ("k", at_k), ("v", at_k))
            )
            o, statistics, p = _attention(q, k, v, here, scale, spec.softcap)
            do = operands["do"][at_q].double()
            dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
            ds = p * ((do @ v.T).abs() + (do * o).sum(-1, keepdim=True).abs()) * scale
            operands["o"][at_q] = o.detach().to(spec.dtype)
            lse[_place(spec, b, begins_q[b], spec.lens_q[b], h, rows_last=True)] = statistics.detach().float()
            right["dq"][at_q] += dq
            right["dk"][at_k] += dk
            right["dv"][at_k] += dv
            sizes["dq"][at_q] += (ds @ k.abs()).detach()
            sizes["dk"][at_k] += (ds.T @ q.abs()).detach()
            sizes["dv"][at_k] += (p.T @ do.abs()).detach()
    if spec.whole:
        assert set(spec.lens_q) == {longest_q} and set(spec.lens_k) == {longest_k} and not spec.packed
        sequences = Sequences.whole(batch, longest_q, longest_k)
    else:
        of_rows = (begins_q, spec.lens_q, begins_k, spec.lens_k)
        sequences = Sequences(*(torch.tensor(x, dtype=torch.int32, device=device) for x in of_rows))
    return Problem(spec, operands, lse, sequences, blocks, right, sizes, scale)


Run = Callable[[Variant, Values], None]


def run(problem: Problem, launch: Run, poison: float = float("nan")) -> tuple[dict[str, Tensor], Workspace]:
    """Gradients by the kernels, `launch` running each; outputs and workspace are filled with `poison` before."""
    spec, x = problem.spec, problem.operands
    dtype = torch.float32 if spec.float32 else spec.dtype
    out = {name: torch.full_like(x[name[1]], poison, dtype=dtype) for name in ("dq", "dk", "dv")}
    workspace = make_workspace(
        x["q"],
        x["k"],
        problem.sequences,
        problem.blocks,
        spec.deterministic,
        group_split=spec.group_split,
        separate_dq=spec.separate_dq,
        products=spec.products,
    )
    for floats in (workspace.dq_sum, workspace.dkv_sum, workspace.lse2, workspace.delta):
        if floats is not None:
            floats.fill_(poison)
    for ints in (workspace.tile_counter, workspace.semaphores):
        ints.fill_(-7)
    launches = backward_launches(
        out["dq"], out["dk"], out["dv"], x["q"], x["k"], x["v"], x["o"], problem.lse, x["do"],
        problem.sequences, problem.blocks, workspace, scale=problem.scale, softcap=spec.softcap,
        deterministic=spec.deterministic, pairs=spec.pairs, tuning=spec.tuning, products=spec.products,
    )  # fmt: skip
    for variant, values in launches:
        launch(variant, values)
    return out, workspace


def errors(problem: Problem, out: dict[str, Tensor]) -> dict[str, float]:
    """For each gradient the largest error of any head of any sequence, as a multiple of its bound.

    Inf where a value is not finite, where one is not exactly 0 though no key sees the query (or no query the key), and
    where a row past a sequence's end is no longer poisoned.
    """
    spec = problem.spec
    worst = {}
    for name, values in out.items():
        lens, heads = (spec.lens_q, spec.heads_q) if name == "dq" else (spec.lens_k, spec.heads_kv)
        (share, share_of_size), found = BOUNDS[spec.dtype], 0.0
        for b, length in enumerate(lens):
            begin = sum(lens[:b]) if spec.packed else 0
            for h in range(heads):
                at = _place(spec, b, begin, length, h)
                got, right, size = values[at].double(), problem.right[name][at], problem.sizes[name][at]
                unseen = size.sum(-1) == 0
                if not bool(torch.isfinite(got).all()) or bool(got[unseen].any()):
                    found = math.inf
                elif not bool(unseen.all()):
                    allowed = share * right.norm() + share_of_size * size.norm()
                    found = max(found, float((got - right).norm() / allowed))
            if not spec.packed and bool(values[b, length:].isfinite().any()):
                found = math.inf
        worst[name] = found
    return worst


def _place(spec: Spec, b: int, begin: int, length: int, head: int, rows_last: bool = False) -> tuple:
    rows = slice(begin, begin + length)
    place = (head, rows) if rows_last else (rows, head)
    return place if spec.packed else (b, *place)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(o, lse, p) of one head; rows without keys are 0 and -inf."""
    scores = q @ k.T * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    some = keep.any(-1, keepdim=True)
    scores = scores.masked_fill(~keep, -math.inf).masked_fill(~some, 0.0)
    lse = scores.logsumexp(-1) if scores.shape[1] else torch.zeros(len(q), dtype=q.dtype, device=q.device)
    p = torch.exp(scores - lse[:, None]).masked_fill(~keep, 0.0)
    return p @ v, lse.masked_fill(~some[:, 0], -math.inf), p


def _blocks(spec: Spec, generator: torch.Generator, device: str) -> tuple[BlockSparse, Tensor]:
    """The block lists, and the same mask as bool (batch, heads, len_q, len_k)."""
    lens_q, lens_k = list(spec.lens_q), list(spec.lens_k)
    longest_q, longest_k = max(lens_q), max(lens_k)
    tiles: dict[str, Any] = {
        "tile_m": spec.tile_m,
        "tile_n": spec.tile_n,
        "schedule": _schedule(spec, generator, device),
    }
    m, n = torch.arange(longest_q)[:, None], torch.arange(longest_k)[None]
    if spec.mask == "full":
        blocks = dense(lens_q, lens_k, device=device, **tiles)
        keep = torch.ones(1, 1, longest_q, longest_k, dtype=torch.bool)
    elif spec.mask in ("causal", "window"):
        left, right = (None, 0) if spec.mask == "causal" else (longest_k // 3, 3)
        align = "bottom_right" if spec.mask == "causal" else "top_left"
        blocks = band(lens_q, lens_k, left=left, right=right, align=align, device=device, **tiles)
        shift = torch.tensor([b - a for a, b in zip(lens_q, lens_k, strict=True)])[:, None, None]
        away = n - m - shift * (spec.mask == "causal")
        keep = ((away <= right) & (away >= -longest_k - longest_q if left is None else away >= -left))[:, None]
    elif spec.mask == "documents":
        bounds = torch.randint(0, longest_k + 1, (1, spec.heads_q, 5, longest_q), generator=generator)
        bounds = torch.where(torch.rand((1, spec.heads_q, 1, longest_q), generator=generator) < 0.1, 0, bounds)
        # runs of rows with equal bounds, so that some blocks are full
        bounds = bounds[..., torch.arange(longest_q) // 50 * 50].to(torch.int32)
        blocks = intervals(bounds.to(device), lens_q, lens_k, **tiles)
        keep = n < bounds[:, :, 0, :, None]
        for f in (1, 3):
            keep = keep | ((n >= bounds[:, :, f, :, None]) & (n < bounds[:, :, f + 1, :, None]))
    elif spec.mask == "prefixes":
        bounds = (m + 1).T.to(torch.int32)[None, None]
        blocks = intervals(bounds.to(device), lens_q, lens_k, **tiles)
        keep = (n <= m)[None, None]
    else:
        shape = (len(lens_q), spec.heads_q, -(-longest_q // 32), -(-longest_k // 32))
        coarse = torch.rand(shape, generator=generator).repeat_interleave(32, 2).repeat_interleave(32, 3)
        fine = torch.rand(len(lens_q), spec.heads_q, longest_q, longest_k, generator=generator)
        coarse = coarse[:, :, :longest_q, :longest_k]
        keep = (coarse < 0.4) & ((coarse < 0.2) | (fine < 0.3))
        if spec.mask == "holes":
            keep[:, 1] = False
            keep[:, :, 64:128] = False
            keep[..., 64:] = False
        blocks = from_mask(keep.to(device), lens_q, lens_k, **tiles)
    return (with_order(blocks) if spec.deterministic else blocks), keep.to(device)


def _schedule(spec: Spec, generator: torch.Generator, device: str) -> Schedule:
    if spec.schedule == "permutation":
        n_blocks = -(-max(spec.lens_k) // spec.tile_n)
        shape = (len(spec.lens_q) if spec.mask == "random" else 1, 1)
        shape = (shape[0], spec.heads_kv if spec.mask == "random" else 1, n_blocks)
        positions = torch.rand(shape, generator=generator).argsort(-1).to(torch.int32).to(device)
        return replace(permutation(positions), reverses=spec.reverses)
    ascending = ALIKE if spec.whole and spec.mask == "full" else ASCENDING
    named = {"ascending": ascending, "descending": DESCENDING}[spec.schedule]
    return replace(named, reverses=True) if spec.reverses else named
