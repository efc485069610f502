"""The call of kernels.dynamic_mask as lines of a script that needs only `kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.targets.dynamic_mask.call import BY_BIAS, OPTIONS, by_a_flag, direction, tail_bits, way_of
from oracles.problem import AnyProblem, Bias, cumulative


def call_text(case: Case, kernel: str, imports: Sequence[str], setup: str) -> Text:
    """Lines that make mask and bias of `keep`, and the call. Raises ScriptError for tensors in another shape than the
    plain one, for a mask that the kernel's own selection makes, for keys in two calls, and for sequences in calls of
    their own."""
    p, given = case.problem, OPTIONS.of(case)
    if given["mask"] == "selected":
        raise ScriptError(f"{case.target}: no script for a mask that `top_mask` makes")
    if given["keys"] == "split":
        raise ScriptError(f"{case.target}: no script for keys in two calls")
    if given["sequences"] == "alone":
        raise ScriptError(f"{case.target}: no script for sequences in calls of their own")
    if given["shape"] != "plain":
        raise ScriptError(f"{case.target}: no script for a mask in the shape {given['shape']!r}")
    lines, named = _planes(p, given)
    for name, lengths in (("q", p.lengths_q), ("k", p.lengths_k)) if p.layout == "packed" else ():
        numbers = list(cumulative(lengths))
        lines.append(f"cu_{name} = torch.tensor({numbers}, dtype=torch.int32, device=DEVICE)")
        named += [f"cu_seqlens_{name}=cu_{name}", f"max_seqlen_{name}={max(lengths)}"]
    named += [f"scale={p.scale!r}"] * (p.scale is not None) + [f"softcap={p.softcap!r}"] * (p.softcap > 0)
    named += [f"num_splits={given['splits']}"] * bool(given["splits"])
    named += ["deterministic=False"] * (not given["deterministic"])
    call = f"answer = {kernel}({', '.join(['q', 'k', 'v', *named])})"
    packs = ["from kernels.dynamic_mask import pack_mask  # noqa: E402"] * (given["mask"] == "bits")
    reads = any("keep" in line for line in lines + named)
    modules = (*["import os"] * ("os." in setup), "import sys")
    whole = setup + "\n".join([*imports, *packs])
    return Text((*lines, call, "o, lse = answer.out, answer.lse"), modules, whole, reads, lse=True)


def _planes(p: AnyProblem, given: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Lines that make `bias`, and the arguments that say the mask."""
    how = way_of(p, given)
    flag = how == "columns" or (how == "auto" and by_a_flag(p))
    lines, named, words, tail = list[str](), list[str](), list[str](), tail_bits(p)
    keys = p.bias if given["hidden"] == "keys" or how == "columns" else None
    if not flag and how != "bias":
        kept = "keep | ~by_bools" if how == "alternating" else "keep"
        if keys is not None:
            by_group = keys.kv_heads and p.group > 1
            kept = f"keep | unseen{f'.repeat_interleave({p.group}, 1)' * by_group}"
        if how == "bits":
            words += [f"words = pack_mask(({kept}).expand(-1, -1, -1, {p.len_k}))"]
            words += [f"words[..., -1] |= torch.where(words[..., -1] != 0, {tail}, 0)"] * bool(tail)
        named.append(f"mask={'words' if how == 'bits' else kept}")
    if (flag or how == "both") and direction(p.mask) is not None:
        named.append(f"causal={direction(p.mask)!r}")
    if keys is not None:
        lines += [f"unseen = {_unseen(p, keys)}", 'hidden = bias.masked_fill(unseen, float("-inf"))']
        named.append("bias=hidden")
    elif p.bias is not None:
        hidden = "-inf" if how in BY_BIAS else "nan" if given["hidden"] == "nan" else ""
        seen = "keep"
        if p.bias.kv_heads and p.group > 1:
            seen = f"keep.expand(-1, {p.heads_q}, -1, -1).unflatten(1, ({p.heads_kv}, {p.group})).any(2)"
        if how == "alternating":
            lines.append(f"by_bools = torch.arange({p.len_q}, device=DEVICE)[:, None] % 2 == 1")
            seen = f"{seen} | by_bools"
        if hidden and not flag:
            lines.append(f'hidden = torch.where({seen}, bias, float("{hidden}"))')
        named.append("bias=hidden" if lines else "bias=bias")
    return lines + words, named


def _unseen(p: AnyProblem, bias: Bias) -> str:
    """The keys that the mask hides from every query which adds this bias: `unseen_keys` of call.py, as text."""
    text = "(~keep.any(2, keepdim=True))" + ".all(0, keepdim=True)" * (not bias.batch)
    if bias.kv_heads and p.group > 1:
        return f"{text}.expand(-1, {p.heads_q}, -1, -1).unflatten(1, ({p.heads_kv}, {p.group})).all(2)"
    return text if bias.heads or bias.kv_heads else f"{text}.all(1, keepdim=True)"
