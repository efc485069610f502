"""The right answer and what rounding alone does to it, as text: attention's formulas in float64, for one case.

The same function serves both: `r` leaves its argument alone, or multiplies it by 1 ± half a unit in the last place,
wherever the target's Numerics say that it rounds.
"""

from __future__ import annotations

from oracles.numerics import Numerics
from oracles.problem import AnyProblem

FP32 = "FP32"


def units(problem: AnyProblem) -> str:
    """Lines that name what one rounding is."""
    fp32 = "FP32 = 2**-21  # a few roundings of fp32 arithmetic"
    if problem.dtype == "float32":
        return f"{fp32}\nEPS = FP32"
    return f"EPS = torch.finfo(DTYPE).eps\n{fp32}"


def formulas(problem: AnyProblem, numerics: Numerics, masked: bool) -> str:
    """Text of `formulas(q, k, v, do, bias, keep, r)` on (batch, heads, length, dim); returns a dict of tensors."""
    p, n = problem, numerics
    bias, keep = p.bias is not None, masked
    arguments = ["q", "k", "v"] + ["do"] * p.backward + ["bias"] * bias + ["keep"] * keep + ["r"]
    doubles = [a for a in arguments if a in ("q", "k", "v", "do")]
    lines = [f"{', '.join(doubles)} = (r(x.double(), {FP32}) for x in ({', '.join(doubles)}))"]
    if p.group > 1:
        lines.append(
            f"k, v = (x.repeat_interleave({p.group}, 1) for x in (k, v))  # query head h reads KV head h // {p.group}"
        )
    folded = _at("k", n.folded)  # with the scale
    lines.append(f"s = {_at(f'q @ {folded}.mT * SCALE' if n.scaled == 'k' else 'q @ k.mT * SCALE', n.scores)}")
    if p.softcap:
        lines += [f"bend = torch.tanh(s / {p.softcap})", f"s = {_at(f'{p.softcap} * bend', n.scores)}"]
    if bias:
        by_query = f".repeat_interleave({p.group}, 1)" if p.bias is not None and p.bias.kv_heads and p.group > 1 else ""
        lines.append(f"s = {_at(f's + bias.double(){by_query}', n.scores)}")
    if keep:
        lines.append('s = s.masked_fill(~keep, float("-inf"))')
    lines += [
        f"lse = r(s.logsumexp(-1, keepdim=True), {FP32})",
        "p = torch.exp(s - lse.nan_to_num(neginf=0.0))  # rows without keys are 0",
    ]
    if n.merged:
        lines += [
            f"odd = torch.arange(k.shape[-2], device=k.device) // {n.merged} % 2 == 1",
            "parts = [p * ~odd, p * odd]  # P of the keys of each call",
            f"parted = [r({_at('part', n.probs)} @ v) for part in parts]  # O of each, times its share of the row",
            "o = r(sum(parted))",
        ]
    else:
        lines.append(f"o = {_last(_at('p', n.probs) + ' @ v', _long(p, p.len_k))}")
    found = ['"o": o', '"lse": lse.squeeze(-1)']
    if p.backward:
        lines += _backward(p, n)
        found += ['"dq": dq', '"dk": dk', '"dv": dv'] + ['"dbias": dbias'] * (bias and bool(p.bias and p.bias.grad))
    note = '"""Formulas of attention and of its gradients (FlashAttention-2)."""'
    body = "\n".join("    " + line for line in [note, *lines, f"return {{{', '.join(found)}}}"])
    return f"def formulas({', '.join(arguments)}):\n{body}"


def _backward(p: AnyProblem, n: Numerics) -> list[str]:
    stored = _at("o", n.delta)
    folded = _at("k", n.folded) if n.folds_k else "k"
    again = f"r(s, {FP32})"
    if n.rescored == "k" and n.scaled != "k":
        again += f" + q @ ({folded} - k).mT * SCALE" + (" * (1 - bend**2)" if p.softcap else "")
    lines = [f"p = torch.exp({again} - lse.nan_to_num(neginf=0.0))  # kernels compute it again"]
    if n.merged:
        lines += _two_calls()
    else:
        lines += [f"ds = p * (do @ v.mT - ({stored} * do).sum(-1, keepdim=True))"]
    if p.bias is not None and p.bias.grad:
        flags = (p.bias.batch, p.bias.heads or p.bias.kv_heads, p.bias.rows, p.bias.cols)
        axes = [axis for axis, there in enumerate(flags) if not there]
        # in a packed problem every sequence is on its own here, and what is shared is summed afterwards
        summed = f".sum({axes}, keepdim=True)" if axes else ""
        if p.bias.kv_heads and p.group > 1:
            summed = f".unflatten(1, (-1, {p.group})).sum(2)" + summed
        lines.append(f"dbias = r({_at('ds', n.dscores)}{summed})")
    if p.softcap:
        lines.append("ds = ds * (1 - bend**2)")
    lines.append(f"ds = {_at('ds', n.dscores)}")
    dk, dv = "ds.mT @ q * SCALE", f"{_at('p', n.probs)}.mT @ do"
    if n.merged:
        dv = f"sum({_at('part', n.probs)}.mT @ d for part, d in zip(parts, dos))"
    if p.group > 1:
        dk, dv = (f"({x})" if n.heads != "input" else f"r({x})" for x in (dk, dv))
        dk, dv = (f"{x}.unflatten(1, (-1, {p.group})).sum(2)" for x in (dk, dv))
    dq = f"ds @ {folded} * SCALE" if not n.merged else f"sum(r(ds * x @ {folded} * SCALE) for x in (~odd, odd))"
    often_q, often_k = (max(_tiles(n_, n), _long(p, n_)) for n_ in (p.len_k, p.len_q * p.group))
    return [
        *lines,
        f"dq = {_last(dq, often_q)}",
        f"dk = {_last(dk, often_k)}",
        f"dv = {_last(dv, often_k)}",
    ]


def _two_calls() -> list[str]:
    """dS where keys are in two calls: each has a dO of its own, which is rounded, and its LSE has a gradient."""
    return [
        "parts, dos = [p * ~odd, p * odd], [r(do), r(do)]",
        "ds = 0",
        "for part, d, x in zip(parts, dos, parted):",
        "    x = x / part.sum(-1, keepdim=True).clamp_min(1e-300)  # O of the call",
        "    ds = ds + part * (d @ v.mT - ((d - do) * x + o * do).sum(-1, keepdim=True))",
    ]


def _at(text: str, kept: str) -> str:
    """Rounded to the input dtype, or as fp32 arithmetic rounds."""
    return f"r({text})" if kept == "input" else f"r({text}, {FP32})"


def _last(text: str, times: float) -> str:
    """The rounding of a result; a sum that is rounded after each tile errs more."""
    return f"r({text})" if times <= 1 else f"r({text}, {times:.3g} * EPS)"


def _tiles(length: int, n: Numerics) -> float:
    return (1 + length / n.tile) ** 0.5 if n.sums == "input" else 1.0


_ONE = '''\
def one(x, start, stop):
    """One sequence as (1, heads, length, dim)."""
    return x[start:stop].transpose(0, 1)[None]'''


def _long(p: AnyProblem, terms: int) -> float:
    """A long fp32 sum of terms that are alike errs in one direction; beside 16-bit roundings that is nothing."""
    return 1 + terms / 128 if p.dtype == "float32" else 1.0


def packed(problem: AnyProblem, masked: bool) -> str:
    """Text of `packed_formulas`, which calls `formulas` for each sequence, and puts the answers back together."""
    p = problem
    bias, backward = p.bias, p.backward
    arguments = ["q", "k", "v"] + ["do"] * backward + ["bias"] * (bias is not None) + ["keep"] * masked + ["r"]
    spans, at_q, at_k = [], 0, 0
    for n_q, n_k in zip(p.lengths_q, p.lengths_k, strict=True):
        spans.append((at_q, at_q + n_q, at_k, at_k + n_k))
        at_q, at_k = at_q + n_q, at_k + n_k
    parts = ["one(q, q0, q1)", "one(k, k0, k1)", "one(v, k0, k1)"] + ["one(do, q0, q1)"] * backward
    lines = ['"""`formulas` on each sequence."""', "found = []"]
    lines += [f"for b, (q0, q1, k0, k1) in enumerate({spans}):"]
    if bias is not None:
        rows, cols = ": q1 - q0" if bias.rows else ":", ": k1 - k0" if bias.cols else ":"
        lines.append(f"    here = bias[{'b : b + 1' if bias.batch else ':'}, :, {rows}, {cols}]")
        parts.append("here")
    if masked:
        lines.append("    seen = keep[min(b, len(keep) - 1), :, : q1 - q0, : k1 - k0][None]")
        parts.append("seen")
    lines.append(f"    found.append(formulas({', '.join([*parts, 'r'])}))")
    names = ["o"] + ["dq", "dk", "dv"] * backward
    lines.append(f"whole = {{name: torch.cat([x[name][0].transpose(0, 1) for x in found]) for name in {names}}}")
    lines.append('whole["lse"] = torch.cat([x["lse"][0] for x in found], -1)')
    if backward and bias is not None and bias.grad:
        lines += ['whole["dbias"] = torch.zeros_like(bias, dtype=torch.float64)', "for b, x in enumerate(found):"]
        lines.append('    grad = x["dbias"]')
        at = "b : b + 1" if bias.batch else ":"
        lines.append(f'    whole["dbias"][{at}, :, : grad.shape[2], : grad.shape[3]] += grad')
    lines.append("return whole")
    body = "\n".join("    " + line for line in lines)
    return f"{_ONE}\n\n\ndef packed_formulas({', '.join(arguments)}):\n{body}"
