"""The numbers of a Case: a counter-based function of (seed, tensor, position), the same on every machine and device.

Only integer arithmetic, one float32 multiplication and one rounding to the dtype stand between the seed and a value, so
a CPU and a GPU make identical bits. 'normal' is the sum of four uniform 16-bit numbers (Irwin-Hall): mean 0, variance
1, |x| < 3.47.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fuzz.core.case import CODED, Case, Storage
from fuzz.tensors.coded_values import coded, fits, fives
from fuzz.tensors.sparse_values import cancel
from oracles.masks import keep
from oracles.problem import AnyProblem, Problem, sequence_view, shapes

STREAMS = ("q", "k", "v", "do", "bias", "needle")
# Streams of weights, at seeds that no case has: a name more above would change the numbers of every seed.
WEIGHT_STREAMS = {"w_k": "q", "w_v": "k", "w_gate": "v"}
WEIGHT_SEED = 1 << 36
LARGE = {"q": 8.0, "k": 2.0}
NEEDLE_GAIN = 4.0
ADVERSARIAL_GAIN = 2.0
PADDING = 100.0
_MASK_SAMPLE = 64
_PLAIN = Storage()
_ROUNDS = ((-7046029254386353131, 31), (-4658895280553007687, 29), (-7723592293110705685, 32))
_PAIRS = 0x0000FFFF0000FFFF  # every other 16 bits
_UNIT = 1.0 / 37837.0  # 1 / standard deviation of the sum of four uniform 16-bit integers


def random_bits(seed: int, stream: str, count: int, device: torch.device | str) -> Tensor:
    """int64 (count,): 64 random bits per position (a splitmix64-style finaliser over the counter; wraps by design). The
    definition, which scripts take along."""
    return _mixed(_counters(seed, stream, count, device))


def bits_at_once(seed: int, stream: str, count: int, device: torch.device | str) -> Tensor:
    """`random_bits`, on a CPU in one pass."""
    if torch.device(device).type != "cpu":
        return random_bits(seed, stream, count, device)
    from oracles.reference import numba_loops

    made = torch.empty(count, dtype=torch.int64)
    numba_loops.random_bits(_start(seed, stream), made.numpy())
    return made


def normal(seed: int, stream: str, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """float32 of `shape`: approximately normal, mean 0, variance 1. The definition, which scripts take along."""
    total = _sums(_mixed(_counters(seed, stream, math.prod(shape), device)))
    return total.sub_(131070).to(torch.float32).mul_(_UNIT).view(shape)


def normals(seed: int, shapes: dict[str, tuple[int, ...]], device: torch.device | str) -> dict[str, Tensor]:
    """`normal` of several streams in one pass: small cases cost what their launches cost."""
    counts = [math.prod(shape) for shape in shapes.values()]
    if torch.device(device).type == "cpu":
        from oracles.reference import numba_loops

        made = torch.empty(sum(counts))
        starts = np.array([_start(seed, stream) for stream in shapes], np.uint64)
        numba_loops.normals(starts, np.array(counts, np.int64), _UNIT, made.numpy())
    else:
        each = (_counters(seed, stream, count, device) for stream, count in zip(shapes, counts, strict=True))
        made = _sums(_mixed(torch.cat(list(each)))).sub_(131070).to(torch.float32).mul_(_UNIT)
    parts = made.split(counts)
    return {stream: part.view(shape) for (stream, shape), part in zip(shapes.items(), parts, strict=True)}


def _start(seed: int, stream: str) -> int:
    return ((seed * len(STREAMS) + STREAMS.index(stream)) * 0x9E3779B97F4A7C15) & ((1 << 62) - 1)


def _counters(seed: int, stream: str, count: int, device: torch.device | str) -> Tensor:
    start = _start(seed, stream)
    return torch.arange(start, start + count, device=device, dtype=torch.int64)


def _mixed(x: Tensor) -> Tensor:
    """The finaliser, in place: memory traffic is what it costs."""
    for factor, shift in _ROUNDS:
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(factor)
    return x.bitwise_xor_((x >> 32).bitwise_and_(0xFFFFFFFF))


def _sums(bits: Tensor) -> Tensor:
    """The sum of the four 16-bit numbers in each word, in place."""
    total = (bits >> 16).bitwise_and_(_PAIRS).add_(bits.bitwise_and_(_PAIRS))
    return total.add_(total >> 32).bitwise_and_(0xFFFFFFFF)


def stream_of(seed: int, name: str) -> tuple[int, str]:
    """The seed and the stream of a tensor's numbers."""
    return (seed + WEIGHT_SEED, WEIGHT_STREAMS[name]) if name in WEIGHT_STREAMS else (seed, name)


def make_values(case: Case, device: torch.device | str) -> dict[str, Tensor]:
    """float32 q, k, v and, where the problem has them, do, bias and weights, contiguous, in the problem's layout.

    Every value is exactly representable in, or to be rounded once to, the problem's dtype. Padding holds large finite
    numbers: a target that lets it through shows it.
    """
    p, seed = case.problem, case.inputs.seed
    names = ["q", "k", "v"] + ["do"] * p.backward + ["bias"] * (p.bias is not None) + list(p.weights)
    shape = shapes(p)
    exact = case.inputs.distribution in CODED
    if exact and isinstance(p, Problem) and fits(p):
        made = coded(p, seed, case.inputs.distribution, device, bits_at_once)
        if p.layout == "padded" and p.ragged:
            _fill_padding(p, made)
        return made
    match "integers" if exact else case.inputs.distribution:
        case "integers":
            made = {
                n: fives(bits_at_once(*stream_of(seed, n), math.prod(shape[n]), device)).view(shape[n]) for n in names
            }
        case "constant":
            made = {n: torch.full(shape[n], 0.5 if n == "q" else 1.0, device=device) for n in names}
        case _:
            made = normals(seed, {n: shape[n] for n in names if n not in p.weights}, device)
            for n in p.weights:
                of, stream = stream_of(seed, n)
                made[n] = normals(of, {stream: shape[n]}, device)[stream]
    match case.inputs.distribution:
        case "large":
            for name, gain in LARGE.items():
                made[name] *= gain
        case "needle":
            _point_at_needles(p, seed, made)
        case "adversarial":
            _lift_masked_keys(p, made)
        case "cancelling":
            cancel(p, made)
    for name in p.weights:
        made[name] *= p.dim**-0.5  # what is made of them is as large as before
    shared = {name: store.shared for name in made if (store := getattr(case.inputs, name, _PLAIN)).shared}
    for name, along in shared.items():
        made[name] = _shared(made[name], along)
    if p.layout == "padded" and p.ragged:
        _fill_padding(p, {name: x for name, x in made.items() if name not in shared})
    return made


def _shared(x: Tensor, along: str) -> Tensor:
    """x with its first element along those axes in place of all."""
    axes = "bhsd" if x.dim() == 4 else "shd"
    first = x
    for axis in along:
        if axis in axes and x.shape[axes.index(axis)]:
            first = first.narrow(axes.index(axis), 0, 1)
    return first.expand(x.shape).contiguous()


def _point_at_needles(p: AnyProblem, seed: int, made: dict[str, Tensor]) -> None:
    """Each query becomes a multiple of one key of its KV head, so that one logit stands far above the rest."""
    for b in range(p.batch):
        if not (p.lengths_q[b] and p.lengths_k[b]):
            continue
        q, k = sequence_view(p, "q", made["q"], b), sequence_view(p, "k", made["k"], b)
        pick = bits_at_once(seed + b, "needle", p.heads_q * p.lengths_q[b], q.device) % p.lengths_k[b]
        heads = torch.arange(p.heads_q, device=q.device)[:, None] // p.group
        q.copy_(k[heads, pick.view(p.heads_q, -1)] * NEEDLE_GAIN)


def _lift_masked_keys(p: AnyProblem, made: dict[str, Tensor]) -> None:
    """Keys get a logit that grows with the share of the rows that do not see them: a leak then dominates the
    softmax."""
    made["q"] += ADVERSARIAL_GAIN
    for b in range(p.batch):
        n_q, n_k = p.lengths_q[b], p.lengths_k[b]
        if not (n_q and n_k):
            continue
        step = max(1, n_q // _MASK_SAMPLE)
        rows = torch.arange(0, n_q, step, device=made["q"].device)[:, None]
        cols = torch.arange(n_k, device=made["q"].device)[None, :]
        k = sequence_view(p, "k", made["k"], b)
        for head in range(p.heads_kv):
            kept = keep(p.mask, rows, cols, batch=b, head=head * p.group, group=p.group, len_q=n_q, len_k=n_k)
            hidden = (~kept).sum(0) * 16 // rows.shape[0]
            k[head] += hidden.to(torch.float32)[:, None] * (1 / 16)


def _fill_padding(p: AnyProblem, made: dict[str, Tensor]) -> None:
    for b in range(p.batch):
        for name, lengths in (("q", p.lengths_q), ("do", p.lengths_q), ("k", p.lengths_k), ("v", p.lengths_k)):
            if name in made:
                made[name][b, :, lengths[b] :] = PADDING
