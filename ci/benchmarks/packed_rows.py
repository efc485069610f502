"""Packed sequences of unequal lengths on a Hopper GPU: the block-sparse kernels beside FlashAttention-4's.

    python ci/benchmarks/packed_rows.py [--out FILE.json] [--seconds 150] [--only "mixed causal"]
    python ci/benchmarks/packed_rows.py --dry        tiny problems on the emulated GPU, without FlashAttention-4

Batches have 32,768 tokens, 16 query heads, bfloat16: "equal" 16 sequences of 2,048, "mixed" lengths from 64 to 8,192
whose logarithms are uniform, "one long" one of 16,384 and 128 of 128. Masks are causal, full, windows of 1,024 keys
and blocks at random. Ways are forward, and backward with atomic and with ordered adds ("deterministic"); "by length"
launches the tiles that the sequences have, from the longest sequence, "all tiles" as many for each sequence as the
longest one has; "planned" are blocks at random under the order of `least_blocking`. All ways of a row are measured in
turn, the least of three medians or more of device times of whole calls (blocksparse_entry.py). TFLOP/s count 4 · dim
operations of a kept pair forward, and 10 backward. Exits with 1 where gradients of two ways differ.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import compared, connected, difference  # noqa: E402
from blocksparse_others import imports  # noqa: E402
from compiled_rows import Benchmark, device_entry, run  # noqa: E402
from torch import Tensor  # noqa: E402

from kernels.blocksparse.api import block_sparse_attention  # noqa: E402
from kernels.blocksparse.lists.bands import band  # noqa: E402
from kernels.blocksparse.lists.builder import dense  # noqa: E402
from kernels.blocksparse.lists.from_mask import from_grid  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.planner.planner import least_blocking  # noqa: E402

TOKENS, HEADS = 32768, 16


@dataclass(frozen=True)
class Row:
    """A problem: how lengths are distributed, the mask, head dim, KV heads; and tokens in all, few on the emulated
    GPU."""

    batch: str
    mask: str
    dim: int = 128
    heads_kv: int = HEADS
    tokens: int = TOKENS

    @property
    def name(self) -> str:
        """For the table."""
        heads = "" if self.heads_kv == HEADS else f", {self.heads_kv} KV heads"
        return f"{self.batch} {self.mask} {self.dim}{heads}"


ROWS = [
    Row("mixed", "causal"),
    Row("one long", "causal"),
    Row("equal", "causal"),
    Row("mixed", "full"),
    Row("mixed", "window"),
    Row("mixed", "causal", 64),
    Row("mixed", "causal", heads_kv=2),
    Row("equal", "causal", heads_kv=2),
    Row("mixed", "causal", 256),
    Row("mixed", "25%"),
    Row("mixed", "10%"),
    Row("mixed", "25%", 64),
    Row("mixed", "25%", heads_kv=2),
    Row("mixed", "25%", 256),
]
DRY = [replace(row, dim=64, heads_kv=HEADS, tokens=1024) for row in ROWS[:2]]


def lengths_of(batch: str, tokens: int = TOKENS) -> list[int]:
    """Lengths of the sequences, of so many tokens in all."""
    if batch == "equal":
        return [tokens // 16] * 16
    if batch == "one long":
        return [128] * (tokens // 512) + [tokens // 2] + [128] * (tokens // 512)  # half of the short ones before it
    draw, lengths = Random(1), list[int]()
    while sum(lengths) < tokens:
        lengths.append(round(math.exp(draw.uniform(math.log(64), math.log(tokens // 4)))))
    lengths[-1] -= sum(lengths) - tokens
    return lengths


def blocks_of(row: Row, lengths: list[int], device: str) -> BlockSparse:
    """The row's block lists; of 64 keys where gradients at head dim 256 need them."""
    options: dict[str, Any] = {"device": device, "tile_n": 64 if row.dim > 128 else 128, "wide": row.dim == 64}
    if row.mask == "full":
        return dense(lengths, lengths, **options)
    if row.mask.endswith("%"):
        return from_grid(random_grid(row.mask, lengths).to(device), lengths, lengths)
    return band(lengths, lengths, left=None if row.mask == "causal" else 1023, right=0, **options)


def random_grid(mask: str, lengths: list[int]) -> Tensor:
    """Blocks of 128 x 128 at random, a share of all and the diagonal ones, of each sequence others: bool (sequences, 1,
    m_blocks, n_blocks)."""
    size = -(-max(lengths) // 128)
    kept = torch.rand(len(lengths), 1, size, size, generator=torch.Generator().manual_seed(3))
    return (kept < float(mask.removesuffix("%")) / 100) | torch.eye(size, dtype=torch.bool)


def pairs_of(mask: str, lengths: list[int]) -> int:
    """(query, key) pairs that the mask keeps, of one head."""
    if mask.endswith("%"):
        first = torch.arange(-(-max(lengths) // 128)) * 128
        rows = (torch.tensor(lengths)[:, None] - first).clamp(0, 128)  # of each tile of each sequence
        return int(torch.einsum("bm,bmn,bn->", rows.double(), random_grid(mask, lengths)[:, 0].double(), rows.double()))
    if mask == "full":
        return sum(n * n for n in lengths)
    left = TOKENS if mask == "causal" else 1024
    return sum(n * (n + 1) // 2 - max(n - left, 0) * max(n - left + 1, 0) // 2 for n in lengths)


def ways_of(row: Row, lengths: list[int], device: str) -> dict[str, tuple[Callable[[], Tensor], tuple[Tensor, ...]]]:
    """name -> (forward call, leaves)."""
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    draw = torch.Generator(device=device).manual_seed(0)
    tokens = sum(lengths)

    def leaf(heads: int) -> Tensor:
        return torch.randn(
            tokens, heads, row.dim, generator=draw, device=device, dtype=torch.bfloat16, requires_grad=True
        )

    leaves = leaf(HEADS), leaf(row.heads_kv), leaf(row.heads_kv)
    blocks = blocks_of(row, lengths, device)

    def call(lists: BlockSparse, deterministic: bool) -> Tensor:
        return block_sparse_attention(
            *leaves, lists, deterministic=deterministic, cu_seqlens_q=starts, cu_seqlens_k=starts
        )[0]

    found = {}
    for name, lists in orders_of(blocks).items():
        found[name] = (partial(call, lists, False), leaves)
        found[f"{name}, deterministic"] = (partial(call, lists, True), leaves)
    if row.mask.endswith("%"):
        sizes = {"heads_q": HEADS, "heads_kv": row.heads_kv, "batch": len(lengths), "dim": row.dim}
        for name, lists in orders_of(blocks).items():
            plan = least_blocking(lists, **sizes).blocks
            found[f"{name}, planned, deterministic"] = (partial(call, plan, True), leaves)
    if device == "cuda" and row.dim <= 128 and not row.mask.endswith("%") and imports("flash_attn.cute"):
        for name, deterministic in (("FlashAttention-4", False), ("FlashAttention-4, deterministic", True)):
            found[name] = (partial(flash_4, row, leaves, starts, max(lengths), deterministic), leaves)
    return found


def orders_of(blocks: BlockSparse) -> dict[str, BlockSparse]:
    """name -> the lists, whose sequences are launched by length, or with all tiles."""
    return {"by length": blocks, "all tiles": without_order(blocks)}


def without_order(blocks: BlockSparse) -> BlockSparse:
    """The lists without an order of the sequences."""
    assert blocks.lpt is not None
    wide = None if blocks.wide is None else without_order(blocks.wide)
    return replace(blocks, lpt=replace(blocks.lpt, queries=None, keys=None), wide=wide)


def flash_4(row: Row, leaves: tuple[Tensor, ...], starts: Tensor, longest: int, deterministic: bool) -> Tensor:
    """FlashAttention-4's result, packed as ours."""
    from flash_attn.cute import flash_attn_varlen_func

    window = {"full": {}, "causal": {"causal": True}, "window": {"window_size": (1023, 0)}}[row.mask]
    result = flash_attn_varlen_func(
        *leaves,
        cu_seqlens_q=starts,
        cu_seqlens_k=starts,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        deterministic=deterministic,
        **window,
    )
    return result[0] if isinstance(result, tuple) else result


def measure(row: Row) -> dict[str, Any]:
    """One row: times, rates and differences."""
    cuda = row.tokens == TOKENS
    device = "cuda" if cuda else "cpu"
    lengths = lengths_of(row.batch, row.tokens)
    forward, backward, errors = dict[str, Callable[[], Any]](), dict[str, Callable[[], Any]](), dict[str, str]()
    results: dict[str, list[Tensor]] = {}
    for name, (call, leaves) in ways_of(row, lengths, device).items():
        try:
            out = call()
            do = torch.randn(out.shape, generator=torch.Generator(device).manual_seed(1), device=device).to(out.dtype)
            results[name] = [out.detach(), *torch.autograd.grad(out, leaves, do, retain_graph=True)]
        except Exception as error:  # what one of them refuses is a result
            errors[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        backward[name] = partial(torch.autograd.grad, out, leaves, do, retain_graph=True)
        if "deterministic" not in name:
            forward[name] = call
    first = next(iter(results))
    differences = {
        f"{name}, {which}": difference(x, y)
        for name in results
        for which, x, y in zip(("out", "dq", "dk", "dv"), results[name], results[first], strict=True)
        if name != first
    }
    results.clear()
    ms = {"forward": compared(forward, cuda), "backward": compared(backward, cuda)}
    operations = pairs_of(row.mask, lengths) * row.dim * HEADS
    return {
        "row": row.name,
        "sequences": len(lengths),
        "longest": max(lengths),
        "ms": {way: {name: round(at, 4) for name, at in found.items()} for way, found in ms.items()},
        "tflops": {
            way: {name: round((4 if way == "forward" else 10) * operations / at / 1e9, 1) for name, at in found.items()}
            for way, found in ms.items()
        },
        "difference": differences,
        "errors": errors,
    }


def warm(row: Row) -> str:
    """Compiles what a row needs, in a process of its own."""
    with connected(device_entry("cuda")):
        for call, leaves in ways_of(row, lengths_of(row.batch, 1024), "cuda").values():
            out = call()
            torch.autograd.grad(out, leaves, torch.ones_like(out))
    return row.name


def as_line(row: dict[str, Any]) -> str:
    """A row of the table: milliseconds and TFLOP/s."""
    ways = (
        f"{way}: "
        + ", ".join(f"{name} {ms:.3f} ({row['tflops'][way][name]:.0f})" for name, ms in row["ms"][way].items())
        for way in ("forward", "backward")
    )
    return (
        f"{row['row']} ({row['sequences']} sequences) | "
        + " | ".join(ways)
        + (f" | {row['errors']}" if row["errors"] else "")
    )


if __name__ == "__main__":
    sys.exit(
        run(
            Benchmark(
                __doc__,
                planned=lambda dry: DRY if dry else ROWS,
                name=lambda row: row.name,
                to_compile=list,
                warm=warm,
                measure=measure,
                as_line=as_line,
            )
        )
    )
