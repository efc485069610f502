"""A case in words, for people who read about its failure."""

from __future__ import annotations

from fuzz.core.case import Case, Storage
from fuzz.core.features import features, ordered
from oracles.metamorphic.relations import RELATIONS
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import AnyProblem


def describe(case: Case) -> list[str]:
    """The case in a few lines."""
    p, i = case.problem, case.inputs
    lines = [
        f"target     {case.target}" + (f"  variant {case.variant}" if case.variant else ""),
        f"lengths    q {_list(p.lengths_q)}   k {_list(p.lengths_k)}   ({p.layout})",
        f"heads      {p.heads_q} query, {p.heads_kv} key/value;  dim {p.dim}"
        + (f", dim_v {p.dim_v}" if p.dim_v != p.dim else "")
        + f";  {p.dtype}",
        *(f"sparse     {', '.join(words)}" for words in [sparse_words(p)] if words),
        f"inputs     {i.distribution}, seed {i.seed}" + _stores(case),
    ]
    options = []
    if p.scale is not None:
        options.append(f"scale {p.scale}")
    if p.softcap:
        options.append(f"softcap {p.softcap}")
    if p.bias is not None:
        flags = "".join(
            name if there else "1"
            for name, there in zip("BHQK", (p.bias.batch, p.bias.heads, p.bias.rows, p.bias.cols), strict=True)
        )
        flags += " per KV head" * p.bias.kv_heads
        options.append(
            f"bias [{flags}]{' float32' if p.bias.dtype == 'float32' else ''}{' with gradient' if p.bias.grad else ''}"
        )
    options.append("forward and backward" if p.backward else "forward only")
    if p.backward and i.detached:
        options.append(f"no gradient of {', '.join(i.detached)}")
    lines.append(f"options    {', '.join(options)}; {case.repeats} runs")
    if case.relations:
        lines.append(f"and with   {', '.join(RELATIONS[name].meaning for name in case.relations)}")
    lines.append(f"features   {', '.join(ordered(features(case)))}")
    return lines


def sparse_words(p: AnyProblem) -> list[str]:
    """The parameters of native sparse attention, of a problem of it."""
    if not isinstance(p, NativeSparse):
        return []
    causal = {True: "causal", False: "not causal"}.get(p.causal, f"causal {p.causal}")  # type: ignore[arg-type]
    given = [f"blocks of {p.compress_block_size}", f"{p.num_selected_blocks} selected by each tile of {p.q_tile}"]
    given += [f"window {p.window_size}", causal]
    given += [f"at most {p.num_cmp_selected_blocks} groups"] * (p.num_cmp_selected_blocks is not None)
    return [*given, *p.weights]


def _list(lengths: tuple[int, ...]) -> str:
    return str(lengths[0]) if len(lengths) == 1 else str(list(lengths))


def _stores(case: Case) -> str:
    odd = [
        f"{name} {store.order}"
        + (f" pad {store.pad}" * bool(store.pad))
        + (f" offset {store.offset}" * bool(store.offset))
        + (f" shared along {store.shared}" * bool(store.shared))
        for name, store in ((n, getattr(case.inputs, n)) for n in ("q", "k", "v", "do"))
        if store != Storage()
    ]
    return f"; strides: {', '.join(odd)}" if odd else ""
