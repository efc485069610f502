"""The error budget of native sparse attention with its selection frozen: runs that round at random where kernels round.

NOTE [rounded runs]: forward and backward pass written out, in float64 (in float32 beside 16-bit inputs). Where the
Numerics say that a kernel stores a value in the inputs' dtype, a run multiplies it by 1 + u x, x uniform in [-1, 1], u
the unit roundoff: a rounding error of that size at that place, for each element by itself. fp32 sums that cancel err by
FP32 of the size of their terms, and what fp32 keeps may be taken for 0 below its normal numbers. The runs differ from
the true answer by what rounding alone does to it: their root mean square is the standard deviation of each element, and
`Budget` takes the largest of that and of a row's error.
What kernels keep besides: the means of K and V, those times a weight, O of each branch and, where there are gates, its
dO. The gradients of the branches are fp32, and so are their sums: each is rounded once, when it is stored.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.error_budget.budget import Budget
from oracles.error_budget.same_precision import Same, stored_as
from oracles.native_sparse.pooling import block_means, block_sizes
from oracles.native_sparse.problem import BRANCHES, NativeSparse
from oracles.native_sparse.reference import Part, parts, reference
from oracles.numerics import FUSED, Kept, Numerics
from oracles.outputs import Outputs
from oracles.reference.attention import no_tf32

RUNS = 12
POOL = 1_048_573  # a prime, so that rows of the usual lengths do not meet the same numbers
SEED = 20_480
ROWS = 128  # queries that are looked at together where there are no gradients, with the keys that one of them sees
EQUAL = 64  # terms of an fp32 sum that is off by one rounding more where they are equal
FP32 = 2.0**-22  # relative error of a few roundings of fp32 arithmetic
FLUSHED = torch.finfo(torch.float32).smallest_normal  # what fp32 arithmetic may take for 0


def budget(
    p: NativeSparse,
    tensors: Mapping[str, Tensor | None],
    choices: Mapping[str, Tensor] | None = None,
    *,
    numerics: Numerics = FUSED,
    padding: bool = False,
    runs: int = RUNS,
) -> Budget:
    """The budget of a problem, whose `reference` has the choices; arguments as for `reference.reference`."""
    right = reference(p, tensors, choices)
    chosen = {name: getattr(right, name) for name in p.choices}
    rounded = [rounded_run(p, tensors, chosen, numerics, SEED + run) for run in range(runs)]
    noise, pair = {}, {}
    for name, want in right.items():
        answers = torch.stack([run[name] for run in rounded])
        dtype = stored_as(p, name)
        info = torch.finfo(dtype)
        spread = (answers.double() - want).pow(2).mean(0)
        last = want.abs() * (info.eps / 2) + max(info.smallest_normal * info.eps / 2, FLUSHED) * (want != 0)
        noise[name] = (spread + last**2 / 3).sqrt().float()
        pair[name] = answers[:2].to(dtype).float()
    return Budget.of(p, right, Same(Outputs(**pair), Outputs(**noise)), padding=padding)


def rounded_run(
    p: NativeSparse,
    tensors: Mapping[str, Tensor | None],
    choices: Mapping[str, Tensor],
    numerics: Numerics,
    seed: int | None,
) -> dict[str, Tensor]:
    """Answers by name with a rounding error at every place, NOTE [rounded runs], before the results are stored; float64
    or float32. seed None: without any."""
    there = {name: x.detach() for name, x in tensors.items() if x is not None}
    q = there["q"]
    precision = torch.float64 if p.dtype == "float32" or seed is None else torch.float32
    rounding = _Rounding.make(p, q.device, precision, seed)
    names = ["q", "k", "v", *p.weights]
    sizes = p.shapes()
    outputs = ["o"] + ([f"d{name}" for name in names] if "do" in there else [])
    found = {name: torch.zeros(sizes[name], dtype=precision, device=q.device) for name in outputs}
    with torch.inference_mode(), no_tf32():
        for part in parts(p, choices, q.device):
            given = {name: part.take(name, there[name]).to(precision) for name in (*names, "do") if name in there}
            for name, x in _Run(part, given, numerics, rounding).answers().items():
                part.take(name, found[name]).add_(x)
    return found


@dataclass(frozen=True)
class _Rounding:
    """Rounding errors at random; `unit` of the inputs' dtype, `step` the least that its numbers are apart, or FLUSHED.

    pool  uniform numbers in [-1, 1]; each place takes those from a random one on, since to draw them anew takes longer
          than all the rest
    """

    unit: float
    step: float
    pool: Tensor | None
    draw: random.Random

    @staticmethod
    def make(p: NativeSparse, device: torch.device, precision: torch.dtype, seed: int | None) -> _Rounding:
        info = torch.finfo(p.torch_dtype)
        pool = None
        if seed is not None:
            generator = torch.Generator(device=device).manual_seed(seed)
            pool = torch.rand(POOL, generator=generator, device=device, dtype=precision) * 2 - 1
        step = max(info.smallest_normal * info.eps / 2, FLUSHED)
        return _Rounding(max(info.eps / 2, FP32), step, pool, random.Random(seed))

    def stored(self, x: Tensor) -> Tensor:
        """x as the inputs' dtype keeps it."""
        if self.pool is None:
            return x
        size = x.abs().mul_(self.unit)
        return size.add_(x != 0, alpha=self.step).mul_(self._noise(x)).add_(x)

    def kept(self, x: Tensor, where: Kept) -> Tensor:
        """x as `where` keeps it."""
        return self.stored(x) if where == "input" else self.sum(x, x.abs().add_(x != 0, alpha=FLUSHED / FP32))

    def sum(self, x: Tensor, size: Tensor) -> Tensor:
        """An fp32 sum of terms of that size in all."""
        return x if self.pool is None else torch.addcmul(x, size, self._noise(x), value=FP32)

    def long(self, x: Tensor, terms: int) -> Tensor:
        """A long sum. Where its terms are equal, so are their errors: with 16-bit inputs that is little."""
        return self.sum(x, x.abs() * (1 + terms / EQUAL)) if self.unit == FP32 else x

    def _noise(self, x: Tensor) -> Tensor:
        assert self.pool is not None
        pool, count = self.pool, x.numel()
        start = self.draw.randrange(len(pool))
        if start + count <= len(pool):
            return pool[start : start + count].view(x.shape)
        return pool.repeat(-(-(start + count) // len(pool)))[start : start + count].view(x.shape)


class _Run:
    """One run of one part: tensors as `Part.take` gives them."""

    def __init__(self, part: Part, given: dict[str, Tensor], numerics: Numerics, rounding: _Rounding) -> None:
        self.part, self.p, self.given, self.n, self.r = part, part.p, given, numerics, rounding
        size = self.p.compress_block_size
        self.means = {name: rounding.stored(block_means(given[name], size)) for name in ("k", "v")}
        self.pooled = {name: self._projected(name) for name in ("k", "v")}

    def answers(self) -> dict[str, Tensor]:
        """O and, where dO is given, the gradients."""
        r, given = self.r, self.given
        q, sources = given["q"], (self.pooled, given, given)
        branches = [(s["k"], s["v"], keep) for s, keep in zip(sources, self.part.seen, strict=True)]
        forwards = [self._attend(q, *branch) for branch in branches] if "do" in given else []
        outputs = torch.stack([o for o, _ in forwards] or [self._attend_by_rows(q, *branch) for branch in branches])
        gates = None
        if "w_gate" in given:
            weight = given["w_gate"]
            logits = r.sum(q @ weight.mT, q.norm(dim=-1)[..., None] * weight.norm(dim=-1)[..., None, :])
            gates = r.kept(torch.sigmoid(logits), "float32")
        share = torch.full_like(outputs[..., :1], 1 / len(BRANCHES))
        if gates is not None:
            share = gates.permute(2, 0, 1)[..., None]
        found = {"o": (share * outputs).sum(0)}
        if "do" not in given:
            return found
        do = given["do"]
        found |= {f"d{name}": torch.zeros_like(given[name]) for name in ("q", "k", "v", *self.p.weights)}
        for b, (source, keep, (o, p)) in enumerate(zip(sources, self.part.seen, forwards, strict=True)):
            of_branch = share[b] * do
            of_branch = of_branch if gates is None else r.stored(of_branch)
            dq, dk, dv = self._differentiate(source["k"], source["v"], keep, o, p, of_branch)
            found["dq"] += dq
            for name, grad in (("k", dk), ("v", dv)):
                if source is self.pooled:
                    self._unpool(name, grad, found)
                else:
                    found[f"d{name}"] += grad
        if gates is not None:
            weight = given["w_gate"]
            dgates = r.sum((do * outputs).sum(-1), do.norm(dim=-1) * outputs.norm(dim=-1)).permute(1, 2, 0)
            dlogits = dgates * gates * (1 - gates)
            found["dq"] += dlogits @ weight
            found["dw_gate"] += r.sum(dlogits.mT @ q, dlogits.abs().mT @ q.abs())
        return found

    def _projected(self, name: str) -> Tensor:
        weight = self.given.get(f"w_{name}")
        return self.means[name] if weight is None else self.r.stored(self.means[name] @ weight)

    def _attend_by_rows(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        """O of a branch, as stored. Of thousands of keys a row sees a few."""
        found = []
        for start in range(0, q.shape[1], ROWS):
            its = keep[:, start : start + ROWS]
            seen = its.any(0).any(0).nonzero().flatten()
            o, _ = self._attend(q[:, start : start + ROWS], k[seen], v[seen], its[..., seen], len(k))
            found.append(o)
        return torch.cat(found, 1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, terms: int = 0) -> tuple[Tensor, Tensor]:
        """O of a branch, as stored, and its P in fp32. terms: of its sums; 0: a key each."""
        r = self.r
        scale = self.p.scale_value
        size = abs(scale) * q.norm(dim=-1)[..., None] * k.norm(dim=-1)
        scores = r.kept(r.sum(q @ k.mT * scale, size), self.n.scores)
        probs = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1).nan_to_num(nan=0.0)
        probs = r.kept(probs, "float32")
        return r.stored(r.long(r.kept(probs, self.n.probs) @ v, terms or len(k))), probs

    def _differentiate(
        self, k: Tensor, v: Tensor, keep: Tensor, o: Tensor, probs: Tensor, do: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dQ, dK, dV of a branch; keys' gradients summed over the group's query heads."""
        r, n, q, scale = self.r, self.n, self.given["q"], self.p.scale_value
        size = do.norm(dim=-1)[..., None] * v.norm(dim=-1)
        slope = r.sum(do @ v.mT, size)
        delta = r.sum((o * do).sum(-1), do.norm(dim=-1) * o.norm(dim=-1))[..., None]
        ds = r.kept(probs * (slope - delta), n.dscores)
        rows = q.shape[0] * q.shape[1]
        dq, dk, dv = r.long(ds @ k * scale, len(k)), ds.mT @ q * scale, r.kept(probs, n.probs).mT @ do
        dk, dv = (r.long(r.kept(x, n.heads).sum(0), rows) for x in (dk, dv))
        return dq, dk, dv

    def _unpool(self, name: str, grad: Tensor, found: dict[str, Tensor]) -> None:
        """Adds what a gradient of the compressed keys, or values, is to the tokens' and to the weight's."""
        r = self.r
        weight = self.given.get(f"w_{name}")
        if weight is not None:
            found[f"dw_{name}"] += r.sum(self.means[name].mT @ grad, self.means[name].abs().mT @ grad.abs())
            grad = r.sum(grad @ weight.mT, grad.abs() @ weight.mT.abs())
        length, size = self.given[name].shape[0], self.p.compress_block_size
        counts = block_sizes(length, size, grad.device)
        block = torch.arange(length, device=grad.device) // size
        found[f"d{name}"] += (grad / counts[:, None])[block]
