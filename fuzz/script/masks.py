"""A mask as a few readable lines of PyTorch: the expression of the predicate, and the dense tensor made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pprint import pformat
from typing import Any

from oracles import masks as m
from oracles.masks import Mask, varies_by_batch, varies_by_head
from oracles.problem import AnyProblem

_LISTED = '''\
def listed(rows, len_q, len_k):
    """bool (len_q, len_k): row i sees the keys that rows[i] lists as [start, stop)."""
    seen = torch.zeros(len_q, len_k, dtype=torch.bool)
    for i, intervals in enumerate(rows[:len_q]):
        for start, stop in intervals:
            seen[i, max(start, 0) : max(stop, 0)] = True
    return seen'''

_DRAWN = '''\
def drawn(rows, len_q, len_k):
    """bool (len_q, len_k): rows[i][j] is '1' where query i sees key j."""
    seen = torch.zeros(len_q, len_k, dtype=torch.bool)
    for i, row in enumerate(rows[:len_q]):
        for j, mark in enumerate(row[:len_k]):
            seen[i, j] = mark == "1"
    return seen'''

_TILED = '''\
def tiled(rows, tile_m, tile_n, len_q, len_k{seed}):
    """bool (len_q, len_k): a tile is seen where rows[m][n] is 'F'{partial}."""
    seen = torch.zeros(len_q, len_k, dtype=torch.bool)
    for i in range(min(len_q, len(rows) * tile_m)):
        row = rows[i // tile_m]
        for j in range(min(len_k, len(row) * tile_n)):
            seen[i, j] = row[j // tile_n] == "F"{half}
    return seen'''

_TOP_K = '''\
def top_k(seen, width, seed, b, head, len_k):
    """bool, as `seen`: of the keys that a row sees, the `width` with the largest scores; a key has one score."""
    low, key = 0xFFFFFFFF, torch.arange(len_k)
    x = (((b * 0x10001 + head) & 0xFFFFFFF) * 0x9E3779B1 + key * 0x85EBCA77 + (seed & 0xFFFF) * 0x27D4EB2F) & low
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & low
    x = ((x ^ (x >> 12)) * 0x297A2D39) & low
    score = (((x ^ (x >> 15)) & 0x7FFFFFFF) << 31) + 2**31 - 1 - key  # of equal ones the lower index is larger
    seen = torch.where(seen, score, -1)
    best = seen.topk(min(width, len_k), dim=-1).indices
    return torch.zeros_like(seen, dtype=torch.bool).scatter_(-1, best, True) & (seen >= 0)'''

_PAIR_HASH = '''\
def half(q, k, seed):
    """A fixed half of the (query, key) pairs."""
    low = 0xFFFFFFFF
    x = (q * 0x9E3779B1 + k * 0x85EBCA77 + (seed & 0xFFFF) * 0x27D4EB2F) & low
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & low
    x = ((x ^ (x >> 12)) * 0x297A2D39) & low
    return ((x ^ (x >> 15)) & 0x7FFFFFFF) % 100 < 50'''


@dataclass
class Written:
    """An expression over q (len_q, 1) and k (len_k,), and the functions and tables that it needs."""

    group: int = 1
    sequence: str = "b"
    head: str = "h"
    helpers: dict[str, str] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)

    def table(self, rows: Any) -> str:
        """Names a literal; returns the name."""
        name = f"ROWS_{len(self.tables) + 1}"
        self.tables.append(f"{name} = {pformat(list(rows), width=110, compact=True)}")
        return name


def dense(problem: AnyProblem, indent: str = "") -> tuple[list[str], list[str]]:
    """Lines of helpers, and lines that make `keep`, bool (batch or 1, heads_q or 1, len_q, len_k), True = keep."""
    p = problem
    heads = p.heads_q if varies_by_head(p.mask) else 1
    batch = p.batch if varies_by_batch(p.mask) or p.ragged else 1
    alone = batch == heads == 1
    written = Written(p.group, "0" if alone else "b", "h" if heads > 1 else "0")
    positions = ["q = torch.arange(len_q)[:, None]", "k = torch.arange(len_k)"]
    if alone:
        text = expression(p.mask, written)
        lines = [f"len_q, len_k = {p.len_q}, {p.len_k}", *positions]
        lines.append(f"keep = ({text}).expand(len_q, len_k)[None, None]")
    else:
        text = expression(p.mask, written)
        lines = [f"keep = torch.zeros({batch}, {heads}, {p.len_q}, {p.len_k}, dtype=torch.bool)"]
        lines.append(f"for b, (len_q, len_k) in enumerate({_length_pairs(p, batch)}):")
        inner = [*positions]
        if heads > 1:
            inner.append(f"for h in range({heads}):")
            inner.append(f"    keep[b, h, :len_q, :len_k] = {text}")
        else:
            inner.append(f"keep[b, 0, :len_q, :len_k] = {text}")
        lines += ["    " + line for line in inner]
    helpers = list(written.helpers.values())
    return helpers, [indent + line for line in [*written.tables, *lines]]


def expression(mask: Mask, written: Written) -> str:
    """`mask` as an expression over the tensors q, k and the numbers b, h, len_q, len_k."""
    match mask:
        case m.Full():
            return "(q >= 0) & (k >= 0)"
        case m.Causal(align):
            return f"k <= {_query(align)}"
        case m.Window(left, right, align):
            sides = [] if left is None else [f"(k >= {_query(align)} - {left})"]
            sides += [] if right is None else [f"(k <= {_query(align)} + {right})"]
            return " & ".join(sides) or expression(m.Full(), written)
        case m.Prefix(length):
            return f"(k < {length}) & (q >= 0)"
        case m.Documents(q_bounds, k_bounds):
            return f"{_document('q', q_bounds)} == {_document('k', q_bounds if k_bounds is None else k_bounds)}"
        case m.Intervals(rows):
            written.helpers["listed"] = _LISTED
            return f"listed({written.table(rows)}, len_q, len_k)"
        case m.Tokens(rows):
            written.helpers["drawn"] = _DRAWN
            return f"drawn({written.table(rows)}, len_q, len_k)"
        case m.Blocks():
            return _blocks(mask, written)
        case m.And(of):
            return " & ".join(f"({expression(part, written)})" for part in of)
        case m.Or(of):
            return " | ".join(f"({expression(part, written)})" for part in of)
        case m.Not(of):
            return f"~({expression(of, written)})"
        case m.TopK(width, of, seed, sequence, head):
            written.helpers["top_k"] = _TOP_K
            group = f" // {written.group}" if written.group > 1 and written.head != "0" else ""
            where = f"{written.sequence if sequence is None else sequence}, "
            where += written.head + group if head is None else str(head)
            return f"top_k(({expression(of, written)}).expand(len_q, len_k), {width}, {seed}, {where}, len_k)"
        case m.PerHead(of):
            return f"[{', '.join(expression(part, written) for part in of)}][h % {len(of)}]"
        case m.PerBatch(of):
            return f"[{', '.join(expression(part, written) for part in of)}][b % {len(of)}]"
    raise AssertionError(f"no text for {type(mask).__name__}")


def _query(align: str) -> str:
    return "q + (len_k - len_q)" if align == "bottom_right" else "q"


def _document(name: str, bounds: tuple[int, ...]) -> str:
    return f"torch.bucketize({name}, torch.tensor({list(bounds)}), right=True)"


def _blocks(mask: m.Blocks, written: Written) -> str:
    partial = any("M" in row for row in mask.rows)
    if partial:
        written.helpers["half"] = _PAIR_HASH
    if partial or "tiled" not in written.helpers:
        written.helpers["tiled"] = _TILED.format(
            seed=", seed=0" if partial else "",
            partial=", and half seen where it is 'M'" if partial else "",
            half=' or (row[j // tile_n] == "M" and half(i, j, seed))' if partial else "",
        )
    seed = f", {mask.seed}" if partial else ""
    return f"tiled({written.table(mask.rows)}, {mask.tile_m}, {mask.tile_n}, len_q, len_k{seed})"


def _length_pairs(p: AnyProblem, batch: int) -> str:
    return str(list(zip(p.lengths_q, p.lengths_k, strict=True))[:batch])
