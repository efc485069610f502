"""Grid: heads and lengths that belong together, because a kernel's CTAs meet only in such a case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """heads_q and heads_kv; a length of queries and of keys for each sequence."""

    heads_q: int
    heads_kv: int
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
