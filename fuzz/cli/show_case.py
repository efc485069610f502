"""What `repro` shows: the case in words, a picture of the mask, the findings, the worst place of each tensor,
evidence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fuzz.core.case import Case
from fuzz.core.case_words import describe
from fuzz.core.mask_tiles import SAMPLE, mask_tiles
from fuzz.core.sparse_picture import sparse_picture
from fuzz.core.verdict import Verdict, summary
from fuzz.tensors.arena import build
from oracles.masks import varies_by_batch, varies_by_head
from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.selection import true_selection
from oracles.problem import AnyProblem

WIDTH = 64
HEIGHT = 24
FULL, PARTIAL, EMPTY = "█", "▒", "·"
_COLOUR = {"pass": "bold green", "reject": "bold yellow"}


def picture(problem: AnyProblem, batch: int = 0, head: int = 0, bad_rows: tuple[int, int] | None = None) -> str:
    """The mask of one sequence and head as characters, each a tile of tokens: full, partial or empty.

    bad_rows  query rows to mark with '◀' at the right edge
    """
    tiles = mask_tiles(problem, batch, head, HEIGHT, WIDTH)
    if tiles is None:
        return f"(no pairs: {problem.lengths_q[batch]} queries, {problem.lengths_k[batch]} keys)"
    lines = [
        f"rows: {tiles.rows} queries, columns: {tiles.cols} keys; "
        f"one character is {tiles.step_q} x {tiles.step_k} tokens"
    ]
    if tiles.sampled:
        lines[0] += f" (looked at in {SAMPLE} x {SAMPLE} places)"
    for number, shares in enumerate(tiles.shares):
        row = "".join(EMPTY if share == 0 else FULL if share == 1 else PARTIAL for share in shares)
        start = number * tiles.step_q
        marked = bad_rows is not None and start < bad_rows[1] and bad_rows[0] < start + tiles.step_q
        lines.append(f"{start:>6} {row}{' ◀ wrong' if marked else ''}")
    return "\n".join(lines)


def show(case: Case, verdict: Verdict, console: Console) -> None:
    """Everything about one run of a case."""
    out = console.print
    out(Text(f"case {case.id}", style="bold"))
    for line in describe(case):
        out(line, highlight=False, markup=False, soft_wrap=True)
    PICTURES[case.problem.op](case, verdict, console)
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


def _place(problem: AnyProblem, verdict: Verdict) -> tuple[int, int, tuple[int, int] | None]:
    """Sequence, head and the query rows to mark: where the first finding is."""
    place = verdict.findings[0].place if verdict.findings else None
    batch = place.batch if place and place.batch is not None else 0
    head = place.head if place and place.head is not None else 0
    rows_of_q = verdict.findings and verdict.findings[0].tensor in ("o", "lse", "dq", "blocks", "groups")
    marked = place.rows if place and rows_of_q else None
    return batch if batch < problem.batch else 0, head if head < problem.heads_q else 0, marked


def _show_selection(case: Case, verdict: Verdict, console: Console) -> None:
    problem = case.problem
    assert isinstance(problem, NativeSparse)
    batch, head, marked = _place(problem, verdict)
    choices = true_selection(problem, build(case, "cpu").tensors().by_name())
    console.print(f"right selection of sequence {batch}, query head {head}", style="bold")
    text = "\n".join(sparse_picture(problem, choices, batch, head, marked, WIDTH))
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show_masks(case: Case, verdict: Verdict, console: Console) -> None:
    problem = case.problem
    batch, head, marked = _place(problem, verdict)
    which = []
    if problem.batch > 1 and (varies_by_batch(problem.mask) or problem.ragged):
        which.append(f"sequence {batch}")
    if varies_by_head(problem.mask):
        which.append(f"query head {head}")
    console.print(f"mask{' of ' + ', '.join(which) if which else ''}", style="bold")
    console.print(picture(problem, batch, head, marked), highlight=False, markup=False, soft_wrap=True)


PICTURES = {"attention": _show_masks, "native_sparse_attention": _show_selection}  # a new operation: a row


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
