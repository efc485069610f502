"""The finding of an answer that is not exact: its first place, and the one key or query that explains it."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.finding import Finding
from oracles.location import locate
from oracles.outputs import TITLES
from oracles.problem import Problem, mask_tile, sequence_view

ALIKE = 0.995  # cosine from which on a difference is that of one key


def finding_of(
    p: Problem, given: dict[str, Tensor | None], name: str, got: Tensor, expected: Tensor, bad: Tensor
) -> Finding:
    """The finding of tensor `name`: `got`, as the kernel gave it, differs from `expected` (fp64) where `bad` (bool) is
    set, all in the problem's layout; `given` are the inputs by name."""
    lengths = p.lengths_k if name in ("dk", "dv") else p.lengths_q
    heads = got.shape[1]
    rows = torch.zeros((p.batch, heads, max(lengths)), dtype=torch.bool, device=got.device)
    there = torch.zeros_like(rows)
    for b, length in enumerate(lengths):
        rows[b, :, :length] = sequence_view(p, name, bad, b).any(-1)
        there[b, :, :length] = True
    b, h, r = (int(x) for x in rows.nonzero()[0])
    one, want, wrong = (
        sequence_view(p, name, x, b)[h, r].double().nan_to_num(nan=1e30, posinf=1e30, neginf=-1e30)
        for x in (got, expected, bad)
    )
    column = int(wrong.argmax())
    share, largest = (
        float(bad.sum()),
        float((got.double() - expected).abs()[bad].nan_to_num(nan=1e30).max()),
    )
    value = float(sequence_view(p, name, got, b)[h, r, column])
    message = (
        f"{TITLES[name]} is wrong: {int(share)} elements differ from a value that is exact in any order of summation; "
        f"first at batch {b}, head {h}, row {r}, column {column}: it is {value:.9g}, expected {float(want[column]):.9g}"
    )
    message += _explained(p, given, name, b, h, r, one, want)
    numbers = {"elements": share, "total": float(got.numel()), "largest": largest}
    return Finding("exact", "wrong", message, name, locate(rows, there, (b, h, r)), numbers)


def _explained(
    p: Problem, given: dict[str, Tensor | None], name: str, b: int, h: int, r: int, got: Tensor, want: Tensor
) -> str:
    """The one key (for dK and dV: query) that accounts for the difference in a row; '' where none does."""
    of = {"o": "v", "dq": "k", "dk": "q", "dv": "do"}[name]
    source = given[of]
    assert source is not None
    if name in ("o", "dq"):
        key_head, others = h // p.group, [(h // p.group, "key")]
    else:
        key_head, others = h, [(head, f"query of head {head}, row") for head in range(h * p.group, (h + 1) * p.group)]
    gap = got - want
    best = (0.0, -1, "")
    for head, what in others:
        rows = sequence_view(p, of, source, b)[head].double() - (want if name == "o" else 0)
        if not len(rows):  # a sequence without keys: none accounts for anything
            continue
        cosines = (rows @ gap) / (rows.norm(dim=-1) * gap.norm()).clamp_min(1e-300)
        at = int(cosines.abs().argmax())
        if abs(float(cosines[at])) > abs(best[0]):
            best = (float(cosines[at]), at, what)
    cosine, at, what = best
    if name == "o" and _ends_beyond(got, want) and abs(cosine) < 1:
        return "; the row is too small by one factor, as if a key with V = 0, such as one past the end, had a share"
    if abs(cosine) < ALIKE:
        return ""
    query, key = (r, at) if name in ("o", "dq") else (at, r)
    head = h if name in ("o", "dq") else int(what.split()[3].rstrip(","))
    kept = bool(mask_tile(p, b, head, (query, query + 1), (key, key + 1), got.device).all())
    if not kept:
        return f"; {what} {at} accounts for the difference, although it is masked: a leak"
    if name == "o" and cosine > 0:
        return f"; {what} {at} is used in place of a key that the row should see, which is missing"
    verb = "is missing" if (cosine < 0) == (name in ("o", "dv")) else "counts too much or with a wrong weight"
    return f"; {what} {at} accounts for the difference: it {verb}" + (
        f" (KV head {key_head})" if p.heads_kv > 1 else ""
    )


def _ends_beyond(got: Tensor, want: Tensor) -> bool:
    """True if `got` is `want` times a factor below 1: a share went to zeros."""
    size = float((want * want).sum())
    times = float((got * want).sum()) / size if size else 1.0
    return 0 < times < 1 and bool(((got - times * want).abs() <= 0.01 * (1 - times) * want.abs().max()).all())
