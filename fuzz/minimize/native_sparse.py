"""Smaller parameters of native sparse attention. Its options are switched off with all others, in options.OFF."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.minimize.edits import edit
from fuzz.minimize.kinds import Options
from oracles.native_sparse.problem import NativeSparse

SMALL = {
    "num_selected_blocks": (1, 2, 4),
    "window_size": (1, 16, 64, 128),
    "q_tile": (64, 128),
    "compress_block_size": (16, 64),
}


def sizes(case: Case) -> Options:
    """Fewer blocks, a narrower window, smaller tiles and blocks; each by itself, the smallest first."""
    p = case.problem
    if not isinstance(p, NativeSparse):
        return
    for name, tried in SMALL.items():
        yield from (edit(case, **{name: value}) for value in tried if value < getattr(p, name))
    if p.num_selected_blocks > p.blocks(p.len_q) > 0:
        yield edit(case, num_selected_blocks=p.blocks(p.len_q))
    if p.window_size > p.len_q > 0:
        yield edit(case, window_size=p.len_q)
