"""What `repro` shows: the case in words, a picture of the mask, the findings, the worst place of each tensor,
evidence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fuzz.core.case import Case, Storage
from fuzz.core.features import features, ordered
from fuzz.core.verdict import Verdict, summary
from oracles.masks import keep, varies_by_batch, varies_by_head
from oracles.metamorphic.relations import RELATIONS
from oracles.problem import Problem

WIDTH = 64
HEIGHT = 24
SAMPLE = 32
FULL, PARTIAL, EMPTY = "█", "▒", "·"
_COLOUR = {"pass": "bold green", "reject": "bold yellow"}


def picture(problem: Problem, batch: int = 0, head: int = 0, bad_rows: tuple[int, int] | None = None) -> str:
    """The mask of one sequence and head as characters, each a tile of tokens: full, partial or empty.

    bad_rows  query rows to mark with '◀' at the right edge
    """
    n_q, n_k = problem.lengths_q[batch], problem.lengths_k[batch]
    if not (n_q and n_k):
        return f"(no pairs: {n_q} queries, {n_k} keys)"
    step_q, step_k = _step(n_q, HEIGHT), _step(n_k, WIDTH)
    lines = [f"rows: {n_q} queries, columns: {n_k} keys; one character is {step_q} x {step_k} tokens"]
    if step_q * step_k > SAMPLE**2:
        lines[0] += f" (looked at in {SAMPLE} x {SAMPLE} places)"
    cols = torch.arange(n_k)[_places(n_k, step_k)][None, :]
    looked = torch.bincount(cols[0] // step_k).tolist()  # places of each column of characters
    for start in range(0, n_q, step_q):
        stop = min(start + step_q, n_q)
        rows = torch.arange(start, stop)[_places(stop - start, stop - start)][:, None]
        kept = keep(problem.mask, rows, cols, batch=batch, head=head, len_q=n_q, len_k=n_k)
        seen = torch.zeros(len(looked), dtype=torch.int64).index_add_(0, cols[0] // step_k, kept.sum(0))
        row = "".join(
            EMPTY if count == 0 else FULL if count == places * len(rows) else PARTIAL
            for count, places in zip(seen.tolist(), looked, strict=True)
        )
        marked = bad_rows is not None and start < bad_rows[1] and bad_rows[0] < stop
        lines.append(f"{start:>6} {row}{' ◀ wrong' if marked else ''}")
    return "\n".join(lines)


def describe(case: Case) -> list[str]:
    """The case in a few lines."""
    p, i = case.problem, case.inputs
    lines = [
        f"target     {case.target}" + (f"  variant {case.variant}" if case.variant else ""),
        f"lengths    q {_list(p.lengths_q)}   k {_list(p.lengths_k)}   ({p.layout})",
        f"heads      {p.heads_q} query, {p.heads_kv} key/value;  dim {p.dim}"
        + (f", dim_v {p.dim_v}" if p.dim_v != p.dim else "")
        + f";  {p.dtype}",
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


def show(case: Case, verdict: Verdict, console: Console) -> None:
    """Everything about one run of a case."""
    out = console.print
    out(Text(f"case {case.id}", style="bold"))
    for line in describe(case):
        out(line, highlight=False, markup=False, soft_wrap=True)
    _show_masks(case.problem, verdict, console)
    out(Text(summary(verdict), style=_COLOUR.get(verdict.outcome, "bold red")), soft_wrap=True)
    if verdict.worst:
        out(_worst_table(verdict))
    for finding in verdict.findings[1:]:
        out(f"  also: {finding.message}", highlight=False, markup=False, soft_wrap=True)
    if verdict.kernel:
        out(f"ran        {verdict.kernel}", highlight=False, markup=False)
    for name, value in verdict.evidence.items():
        out(f"{name}:", style="bold")
        out(str(value), highlight=False, markup=False, soft_wrap=True)
    spent = ", ".join(f"{phase} {seconds * 1e3:.1f}" for phase, seconds in verdict.seconds.items())
    if spent:
        out(f"ms         {spent}", highlight=False, markup=False)


def rate(verdicts: Sequence[Verdict]) -> str:
    """k of n failed."""
    failed = sum(verdict.bad for verdict in verdicts)
    return f"failed {failed} of {len(verdicts)} times"


def _show_masks(problem: Problem, verdict: Verdict, console: Console) -> None:
    place = verdict.findings[0].place if verdict.findings else None
    batch = place.batch if place and place.batch is not None else 0
    head = place.head if place and place.head is not None else 0
    rows_of_q = verdict.findings and verdict.findings[0].tensor in ("o", "lse", "dq")
    marked = place.rows if place and rows_of_q else None
    if batch >= problem.batch:
        batch = 0
    if head >= problem.heads_q:
        head = 0
    which = []
    if problem.batch > 1 and (varies_by_batch(problem.mask) or problem.ragged):
        which.append(f"sequence {batch}")
    if varies_by_head(problem.mask):
        which.append(f"query head {head}")
    console.print(f"mask{' of ' + ', '.join(which) if which else ''}", style="bold")
    console.print(picture(problem, batch, head, marked), highlight=False, markup=False, soft_wrap=True)


def _worst_table(verdict: Verdict) -> Table:
    made = Table(title="Worst place of each tensor (1 is the budget)", title_justify="left")
    for name in ("tensor", "error / budget", "over one", "sequence", "head", "row"):
        made.add_column(name, justify="left" if name in ("tensor", "over one") else "right")
    not_finite = {finding.tensor for finding in verdict.findings if finding.kind == "nan"}
    for w in verdict.worst:
        bad = not w.ratio <= 1
        ratio = "not finite" if w.tensor in not_finite else f"{w.ratio:.3g}"
        made.add_row(w.tensor, ratio, w.grain, str(w.batch), str(w.head), str(w.row), style="bold red" if bad else "")
    return made


def _places(length: int, step: int) -> torch.Tensor:
    """At most SAMPLE positions of every run of `step`, its first and last among them."""
    inside = torch.linspace(0, step - 1, min(step, SAMPLE)).round().long()
    every = (torch.arange(0, length, step)[:, None] + inside).flatten()
    return every[every < length]


def _step(length: int, most: int) -> int:
    """The least power of two, from 1, with at most `most` tiles."""
    step = 1
    while -(-length // step) > most:
        step *= 2
    return step


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
