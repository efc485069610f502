"""The problems of ci/benchmarks/blocksparse_speed.py: masks as block lists, as FlexAttention's BlockMask, and the
operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flex_block_mask import listed_first
from torch import Tensor

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_grid
from kernels.blocksparse.lists.intervals import document_bounds, documents
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.variant import WIDE

TILE = 128
WINDOW = 2048
DOCUMENTS = 12


@dataclass(frozen=True)
class Entry:
    """One measurement. kind: "pair" (forward and backward beside FlexAttention), "forward" (beside it as well), "tune",
    "memory", "once", or "beside" (blocksparse_beside.py). packed: the batch's sequences one after another."""

    kind: str
    mask: str
    tokens: int
    dim: int
    heads_q: int
    heads_kv: int
    device: str = "cuda"
    tile: int = TILE
    batch: int = 1
    packed: bool = False

    @property
    def name(self) -> str:
        """Name for the table and the logs."""
        heads = f"{self.heads_q}/{self.heads_kv} heads"
        several = (f", batch {self.batch}" if self.batch > 1 else "") + (" packed" if self.packed else "")
        return f"{self.kind} {self.mask} {self.tokens} tokens, dim {self.dim}, {heads}{several}"


def row_bounds(entry: Entry) -> tuple[Tensor, Tensor]:
    """First key and end of keys of each query, int64 (tokens,), for masks that are one interval of keys a row."""
    query = torch.arange(entry.tokens, device=place(entry))
    if entry.mask == "documents":
        _, start, stop = document_bounds(cuts(entry), entry.tokens, entry.tokens, device=place(entry))[0, 0].long()
        return start, stop
    start = torch.zeros_like(query)
    if entry.mask == "full":
        return start, start + entry.tokens
    return (start if entry.mask == "causal" else (query - (WINDOW - 1)).clamp(min=0)), query + 1


def cuts(entry: Entry) -> list[int]:
    """Starts of documents: twelve of random lengths."""
    draw = torch.Generator().manual_seed(0)
    return sorted(set(torch.randint(1, entry.tokens, (DOCUMENTS - 1,), generator=draw).tolist()))


def random_grid(entry: Entry) -> Tensor:
    """Blocks at random: a share of all and the diagonal ones, so that every row has a key; "top 64": 64 a row."""
    n = -(-entry.tokens // entry.tile)
    if entry.mask.startswith("top"):
        listed = torch.rand(n, n, generator=torch.Generator().manual_seed(3)).topk(int(entry.mask.split()[1])).indices
        return torch.zeros(n, n, dtype=torch.bool).scatter_(1, listed, True).to(place(entry))
    share = float(entry.mask.removesuffix("%")) / 100
    grid = torch.rand(n, n, generator=torch.Generator().manual_seed(3)) < share
    return (grid | torch.eye(n, dtype=torch.bool)).to(place(entry))


def blocks_of(entry: Entry, tile_m: int | None = None, tile_n: int | None = None, wide: bool = False) -> BlockSparse:
    """The block lists, with backward lists under the default schedule; tiles of 192 queries have none. wide: those
    beside the others, for masks whose builder makes them."""
    where = place(entry)
    size: Any = [entry.tokens] * entry.batch if entry.batch > 1 else entry.tokens
    tiles: dict[str, Any] = {"tile_m": tile_m or entry.tile, "tile_n": tile_n or entry.tile}
    tiles["backward"] = tiles["tile_m"] != WIDE
    if entry.mask == "full":
        return dense(size, size, device=where, wide=wide, **tiles)
    if entry.mask in ("causal", "window"):
        left = None if entry.mask == "causal" else WINDOW - 1
        return band(size, size, left=left, right=0, device=where, wide=wide, **tiles)
    if entry.mask == "documents":
        return documents(cuts(entry), size, size, device=where, **tiles)
    return from_grid(random_grid(entry).expand(entry.batch, 1, -1, -1), size, size, **tiles)


def pairs_of(entry: Entry) -> int:
    """(query, key) pairs that the mask keeps, of one head."""
    if entry.mask[-1] == "%" or entry.mask.startswith("top"):
        return int(random_grid(entry).sum()) * entry.tile**2
    start, stop = row_bounds(entry)
    return int((stop - start).sum())


def flex_mask(entry: Entry) -> Any:
    """FlexAttention's BlockMask of the same mask: the same full and partial blocks, the mask as one would write it."""
    from torch.nn.attention.flex_attention import BlockMask

    n, where = -(-entry.tokens // entry.tile), place(entry)
    if entry.mask.endswith("%"):
        full, cut = random_grid(entry), torch.zeros(n, n, dtype=torch.bool, device=where)
    else:
        start, stop = row_bounds(entry)
        first = torch.arange(n, device=where)[None, :] * entry.tile
        last = (first + entry.tile).clamp(max=entry.tokens)
        some = (start[:, None] < last) & (stop[:, None] > first)
        whole = (start[:, None] <= first) & (stop[:, None] >= last)
        shape = (n, entry.tile, n)
        full = whole.view(shape).all(1)
        cut = some.view(shape).any(1) & ~full
    counts = [grid.sum(-1).to(torch.int32)[None, None] for grid in (cut, full)]
    indices = [listed_first(grid)[None, None] for grid in (cut, full)]
    lengths = entry.tokens, entry.tokens
    options: dict[str, Any] = {"BLOCK_SIZE": entry.tile, "mask_mod": mask_mod(entry), "seq_lengths": lengths}
    return BlockMask.from_kv_blocks(counts[0], indices[0], counts[1], indices[1], **options)


def mask_mod(entry: Entry) -> Callable[..., Tensor]:
    """The mask as FlexAttention's users write it."""
    if entry.mask == "causal":
        return lambda b, h, q, k: q >= k
    if entry.mask == "window":
        return lambda b, h, q, k: (q >= k) & (q - k < WINDOW)
    if entry.mask == "documents":
        edges = torch.tensor(cuts(entry), device=place(entry))
        document = torch.searchsorted(edges, torch.arange(entry.tokens, device=place(entry)), right=True)
        return lambda b, h, q, k: document[q] == document[k]
    return lambda b, h, q, k: q >= 0


def place(entry: Entry) -> str:
    """The device of tensors."""
    return "cuda" if entry.device == "cuda" else "cpu"


def operands(entry: Entry) -> list[Tensor]:
    """q, k, v and the gradient of out: (batch, heads, tokens, dim), bfloat16."""
    draw = torch.Generator(device=place(entry)).manual_seed(0)
    heads = (entry.heads_q, entry.heads_kv, entry.heads_kv, entry.heads_q)
    made = [
        torch.randn(entry.batch, h, entry.tokens, entry.dim, generator=draw, device=place(entry), dtype=torch.bfloat16)
        for h in heads
    ]
    return [x.requires_grad_(i < 3) for i, x in enumerate(made)]
