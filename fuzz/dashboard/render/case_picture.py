"""A case's picture, a table by operation: the mask, or the blocks that each tile of queries sees.

A case of native sparse attention is drawn with the selection that its own numbers lead to. A new operation is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from markupsafe import Markup, escape

from fuzz.core.case import Case
from fuzz.core.sparse_picture import MOST_TOKENS, POOLED, SELECTED, WINDOW, sparse_rows
from fuzz.dashboard.render.mask_svg import SIDE, mask_svg, runs
from fuzz.tensors.values import make_values
from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.selection import true_selection

MOST = 1 << 22  # elements of Q of a case whose numbers are made for a picture
Picture: TypeAlias = Callable[[Case, int, int], Markup]


def case_picture(case: Case, batch: int, head: int) -> Markup:
    """The picture of one sequence and query head, an SVG, or words where there is nothing to draw."""
    return PICTURES[case.problem.op](case, batch, head)


def _mask(case: Case, batch: int, head: int) -> Markup:
    return mask_svg(case.problem, batch, head)


def _sparse(case: Case, batch: int, head: int) -> Markup:
    """Rows are tiles of queries, columns blocks; selected ones darkest, then the window, then means alone."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    length, elements = p.lengths[batch], sum(p.lengths) * p.heads_q * p.dim
    name = f"{length} tokens in {p.tiles(length)} tiles of {p.q_tile} queries by {p.blocks(length)} blocks"
    if not 0 < length <= MOST_TOKENS or elements > MOST:
        return Markup('<span class="quiet">{}: not drawn</span>').format(name)
    tensors = {n: x.to(p.torch_dtype) for n, x in make_values(case, "cpu").items()}
    rows = sparse_rows(p, true_selection(p, tensors), batch, head) or []
    high, wide = len(rows), len(rows[0])
    scale = SIDE / max(high * p.q_tile, wide * p.compress_block_size)
    return Markup(
        '<svg class="mask" role="img" width="{:.0f}" height="{:.0f}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<title>{}; selected, in the window, as a mean only</title><rect class="none" width="{}" height="{}"/>'
        '<path class="few" d="{}"/><path class="most" d="{}"/><path class="full" d="{}"/></svg>'
    ).format(
        max(wide * p.compress_block_size * scale, 6),
        max(high * p.q_tile * scale, 6),
        wide,
        high,
        escape(name),
        wide,
        high,
        *(_path(rows, sign) for sign in (POOLED, WINDOW, SELECTED)),
    )


def _path(rows: Sequence[str], sign: str) -> str:
    """Runs of one character as rectangles."""
    found = []
    for y, row in enumerate(rows):
        found += [f"M{a} {y}h{b - a}v1h-{b - a}z" for a, b in runs([one == sign for one in row])]
    return "".join(found)


PICTURES: dict[str, Picture] = {"attention": _mask, "native_sparse_attention": _sparse}
