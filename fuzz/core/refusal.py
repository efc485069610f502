"""Reason why a target does not take a case, read from what it declares: its Support, its Rules, the names of its
options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz.core.case import Case
from fuzz.core.support import Refusal, Support
from fuzz.core.target import Target
from oracles.masks import kinds
from oracles.native_sparse.problem import NativeSparse


@dataclass(frozen=True)
class _Check:
    why: Callable[[Support], str]
    bad: Callable[[Support, Case], bool]
    kind: str = field(default="cannot")


def _dims(s: Support, c: Case) -> bool:
    return not (s.takes_dim(c.problem.dim) and s.takes_dim(c.problem.dim_v))


def _dims_text(s: Support) -> str:
    if s.dims is not None:
        return f"head dims other than {', '.join(map(str, sorted(s.dims)))}"
    return "head dims outside {} … {} in steps of {}".format(*s.dim)


def _contiguous(c: Case) -> bool:
    stores = (c.inputs.q, c.inputs.k, c.inputs.v, c.inputs.do)
    return all(x.order == "bhsd" and not x.pad and not x.offset for x in stores)


def _shares(c: Case) -> bool:
    return any(x.shared for x in (c.inputs.q, c.inputs.k, c.inputs.v, c.inputs.do))


_PAIRS = _Check(lambda s: f"more than {s.max_pairs} (query, key) pairs", lambda s, c: c.problem.pairs > s.max_pairs)
_CHECKS: tuple[_Check, ...] = (
    _Check(lambda s: f"dtype is not one of {', '.join(s.dtypes)}", lambda s, c: c.problem.dtype not in s.dtypes),
    _Check(lambda s: f"layout is not {' or '.join(s.layouts)}", lambda s, c: c.problem.layout not in s.layouts),
    _Check(
        lambda s: f"masks other than {', '.join(sorted(s.masks or ()))}",
        lambda s, c: s.masks is not None and not kinds(c.problem.mask) <= s.masks,
    ),
    _Check(
        lambda s: "padded sequences of different lengths",
        lambda s, c: not s.ragged and c.problem.layout == "padded" and c.problem.ragged,
    ),
    _Check(
        lambda s: "padded sequences of different numbers of queries",
        lambda s, c: not s.ragged_q and c.problem.layout == "padded" and len(set(c.problem.lengths_q)) > 1,
    ),
    _Check(
        lambda s: "sequences of fewer or more keys than queries",
        lambda s, c: not s.cross and c.problem.lengths_q != c.problem.lengths_k,
    ),
    _Check(
        lambda s: f"a bias that is not of dtype {' or '.join(s.bias_dtypes)}",
        lambda s, c: c.problem.bias is not None and c.problem.bias.dtype not in s.bias_dtypes,
    ),
    _Check(
        lambda s: "a bias per KV head",
        lambda s, c: bool(s.bias and not s.bias_kv_heads and c.problem.bias and c.problem.bias.kv_heads),
    ),
    _Check(lambda s: "no bias", lambda s, c: not s.bias and c.problem.bias is not None),
    _Check(
        lambda s: "no gradient of the bias",
        lambda s, c: bool(not s.bias_grad and c.problem.bias and c.problem.bias.grad and c.problem.backward),
    ),
    _Check(lambda s: "no softcap", lambda s, c: not s.softcap and c.problem.softcap > 0),
    _Check(lambda s: "no scale of one's own", lambda s, c: not s.scale and c.problem.scale is not None),
    _Check(lambda s: "heads_q must equal heads_kv", lambda s, c: not s.gqa and c.problem.group > 1),
    _Check(_dims_text, _dims),
    _Check(lambda s: "dim_v must equal dim", lambda s, c: not s.dim_v_differs and c.problem.dim != c.problem.dim_v),
    _Check(
        lambda s: "sequences of length 0",
        lambda s, c: not s.zero_lengths and 0 in (*c.problem.lengths_q, *c.problem.lengths_k),
    ),
    _Check(lambda s: "contiguous, aligned tensors only", lambda s, c: not s.strides and not _contiguous(c)),
    _Check(lambda s: "tensors with an axis of stride 0", lambda s, c: not s.shared and _shares(c)),
    _Check(lambda s: "no backward", lambda s, c: not s.backward and c.problem.backward),
    _Check(
        lambda s: f"compressed blocks that are no multiple of {s.block_step}",
        lambda s, c: isinstance(c.problem, NativeSparse) and bool(c.problem.compress_block_size % s.block_step),
    ),
    _Check(
        lambda s: f"tiles of queries that are no multiple of {s.tile_step}",
        lambda s, c: isinstance(c.problem, NativeSparse) and bool(c.problem.q_tile % s.tile_step),
    ),
    _PAIRS,
)


def refusal(target: Target, case: Case) -> Refusal | None:
    """Reason why `target` does not take `case`, or None. Reads only the declared data. The number of pairs of a case of
    which a part is run, or nothing, does not matter."""
    if case.problem.op != target.operation:
        return Refusal("cannot", f"it computes {target.operation}, not {case.problem.op}")
    partly = bool(target.ctas_of(case)) or not target.runs(case)
    for check in _CHECKS:
        if check.bad(target.support, case) and not (check is _PAIRS and partly):
            return Refusal("cannot", check.why(target.support))
    for rule in target.rules:
        if rule.applies(case):
            return Refusal(rule.kind, rule.why)
    unknown = _unknown_options(target, case)
    return Refusal("cannot", f"it has no option named {', '.join(sorted(unknown))}") if unknown else None


def _unknown_options(target: Target, case: Case) -> frozenset[str]:
    """Options that would change nothing. Targets whose options depend on the problem say so by their rules."""
    if not case.variant or target.chooses_variants:
        return frozenset()
    return frozenset(case.variant) - target.parameters.union(*target.variants)


def limits(target: Target) -> list[str]:
    """Everything that `target` declares not to take, one line each: the reasons that `refusal` can give."""
    s = target.support
    lines = []
    for check, shown in zip(_CHECKS, _shown(s, Support()), strict=True):
        if shown:
            lines.append(check.why(s))
    return lines + [f"{rule.why} ({rule.kind})" for rule in target.rules]


def _shown(s: Support, default: Support) -> list[bool]:
    """The checks that say something about a target, in their order."""
    return [
        s.dtypes != default.dtypes,
        len(s.layouts) < 2,
        s.masks is not None,
        not s.ragged,
        s.ragged and not s.ragged_q,
        not s.cross,
        s.bias and len(s.bias_dtypes) < 2,
        s.bias and not s.bias_kv_heads,
        not s.bias,
        s.bias and not s.bias_grad,
        not s.softcap,
        not s.scale,
        not s.gqa,
        True,
        not s.dim_v_differs,
        not s.zero_lengths,
        not s.strides,
        not s.shared,
        not s.backward,
        s.block_step > 1,
        s.tile_step > 1,
        True,
    ]
