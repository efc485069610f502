"""Same-precision run: what rounding alone does to a case's answers, as a kernel of the declared numerics rounds.

Two things come out of it, and the budget is made of both (see accuracy.py):
    runs   PyTorch runs in the problem's precision that round where the Numerics say. Two of them, with P normalised
           before and after P V, because a rounding that happens to be exact in one (a power of two) seldom is in the
           other.
    noise  the standard deviation that first-order error propagation gives every single element when each rounding is
           an independent random error of u / sqrt(3): sums of squares, such as u^2 sum_k P^2 V^2 for O. It keeps the
           budget of a row from collapsing where a run was lucky.
Dot products of values rounded to the input dtype are exact in fp32 up to the order of the sum, so the emulation
computes in fp32 and rounds explicitly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.error_budget.backward_run import BackwardRun, tiles, wants_dbias
from oracles.error_budget.forward_run import RUNS, ForwardRun
from oracles.error_budget.rounding_units import BASE, ROUND2, Units
from oracles.numerics import FUSED, Numerics
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, Problem, shapes
from oracles.reference.attention import no_tf32
from oracles.reference.backend import uses_numba
from oracles.reference.chunks import Chunk, split

PAIR_BYTES = 4 * 24
CHUNK_BYTES = 256 << 20


@dataclass(frozen=True)
class Same:
    """`runs`: tensors (RUNS, *shape), fp32. `noise`: tensors of the problem's shapes, fp32, one standard deviation."""

    runs: Outputs
    noise: Outputs


def same_precision(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    do: Tensor | None = None,
    numerics: Numerics = FUSED,
) -> Same:
    """Runs and noise of a case, in the problem's layout, on the inputs' device; arguments as for `reference`.

    Padding and rows without keys have the reference's values in `runs` (0 and -inf) and no noise. Memory is bounded as
    the reference's is: large problems are cut into parts. The tensors are of torch.inference_mode: nothing made of them
    has a gradient.
    """
    chunks = list(split(problem, PAIR_BYTES, CHUNK_BYTES))
    tensors = {"q": q, "k": k, "v": v, "do": do, "bias": bias}
    with torch.inference_mode(), no_tf32():
        units = Units.make(problem, numerics, tensors)
        if len(chunks) == 1 and chunks[0].whole:
            runs, variance = _of_chunk(chunks[0], numerics, units, tensors)
            runs = {n: torch.stack([chunks[0].shaped(n, run) for run in x]) for n, x in runs.items()}
            variance = {n: chunks[0].shaped(n, x) for n, x in variance.items()}
        else:
            runs, variance = (
                _blank(problem, q.device, RUNS, do is not None),
                _blank(problem, q.device, 0, do is not None),
            )
            for chunk in chunks:
                chunk_runs, chunk_variance = _of_chunk(chunk, numerics, units, tensors)
                for name, x in chunk_variance.items():
                    _add(chunk, name, variance[name], x)
                    for run, values in zip(runs[name], chunk_runs[name], strict=True):
                        _add(chunk, name, run, values)
        noise = _noise(problem, numerics, units, runs, variance)
        return Same(Outputs(**{n: _stored(problem, n, x) for n, x in runs.items()}), Outputs(**noise))


def _noise(
    problem: Problem, numerics: Numerics, units: Units, runs: dict[str, Tensor], variance: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Standard deviations: variances out of their units, with the rounding of the result itself."""
    p, of = problem, units.of
    size: dict[str, Tensor | float] = {"o": of["v"], "lse": 1.0}
    if "do" in of:
        both = of["v"] * of["do"]
        size |= {"dv": of["do"], "dq": abs(p.scale_value) * both * of["k"], "dbias": both}
        size["dk"] = both * of["q"] * (1.0 if numerics.scales_q_of_dk else abs(p.scale_value))
    found = {}
    for name, x in variance.items():
        info = torch.finfo(stored_as(problem, name))
        times = 1.0
        if numerics.sums == "input" and name in ("dq", "dk", "dv"):
            times += tiles(p.len_k if name == "dq" else p.len_q, numerics)
        if numerics.heads == "input" and name in ("dk", "dv"):
            times += p.group > 1
        terms = {"dq": p.len_k, "dk": p.len_q * p.group}.get(name, 0)  # o and dv have theirs in the variance
        steps = units.summed(terms) / BASE**2 if terms else 0.0
        last = math.sqrt(ROUND2 * times * (info.eps / 2) ** 2 + steps)
        least = info.smallest_normal * info.eps / 2
        found[name] = _deviation(x, runs[name][0], size[name] / BASE, last, least, name == "lse")
    return found


def _deviation(variance: Tensor, run: Tensor, unit: Tensor | float, last: float, least: float, lse: bool) -> Tensor:
    """One tensor's standard deviation: its variance is in units of `unit` squared; a result of 1 is rounded with a
    standard deviation of `last`, one that is not 0 by `least` at least; an LSE of -inf has none."""
    if uses_numba(run):
        from oracles.reference import numba_loops

        found = torch.empty(run.shape)
        numba_loops.noise(
            variance.contiguous().flatten().numpy(),
            run.contiguous().flatten().numpy(),
            float(unit),
            last,
            least,
            lse,
            found.view(-1).numpy(),
        )
        return found
    rounding = run.abs() * last
    whole = torch.hypot(variance.clamp_min(0).sqrt() * unit, rounding)
    if lse:
        return torch.where(rounding.isfinite(), whole, 0.0)
    return whole + torch.where(rounding == 0, 0.0, least)


def _of_chunk(
    chunk: Chunk, numerics: Numerics, units: Units, tensors: dict[str, Tensor | None]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Runs (RUNS, …) before the results are rounded, and variances without that last rounding, in the part's shapes."""
    forward = ForwardRun(chunk, numerics, units, tensors)
    runs, variance = {"o": forward.o, "lse": forward.lse.expand(RUNS, *forward.lse.shape)}, forward.variance()
    if tensors["do"] is not None:
        backward = BackwardRun(forward, tensors["do"])
        runs |= backward.runs()
        variance |= backward.variance(variance["o"], variance["lse"])
    return runs, variance


def stored_as(problem: AnyProblem, name: str) -> torch.dtype:
    """The dtype in which an answer is stored."""
    if name == "lse" or (name == "dbias" and problem.bias is not None and problem.bias.dtype == "float32"):
        return torch.float32
    return problem.torch_dtype


def _stored(problem: Problem, name: str, x: Tensor) -> Tensor:
    """Values as stored; what only the dtype's range turns into an infinity stays a number, so that its error is one
    too."""
    dtype = stored_as(problem, name)
    stored = x.to(dtype).float()
    return torch.where(stored.isinf(), x, stored) if dtype == torch.float16 else stored


def _add(chunk: Chunk, name: str, whole: Tensor, values: Tensor) -> None:
    if name == "dbias":
        chunk.bias(whole).add_(values)
    elif name == "lse":
        chunk.put(name, whole, values)
    else:
        chunk.add(name, whole, values)


def _blank(problem: Problem, device: torch.device, runs: int, backward: bool) -> dict[str, Tensor]:
    """Zeros (runs, *shape) or, with runs = 0, variances (*shape); LSE of runs is -inf."""
    names = ["o", "lse"] + (["dq", "dk", "dv"] if backward else [])
    if backward and wants_dbias(problem):
        names.append("dbias")
    sizes, lead = shapes(problem), (runs,) if runs else ()
    fill = {"lse": -math.inf} if runs else {}
    return {n: torch.full((*lead, *sizes[n]), fill.get(n, 0.0), device=device) for n in names}
