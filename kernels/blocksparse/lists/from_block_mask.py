"""Block lists from a BlockMask of torch.nn.attention.flex_attention.

Its mask_mod is evaluated on the partial blocks only, tile by tile, and kept as packed bits: the kernels need no
recompile for another mask_mod. Its full blocks are taken at their word, as FlexAttention does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from kernels.blocksparse.lists.bitmask import pack, shared
from kernels.blocksparse.lists.builder import Shape, finished, shape_of
from kernels.blocksparse.lists.schedule import ASCENDING, Schedule
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse, entries, spread

AT_ONCE = 64  # tiles that mask_mod is evaluated on together


def from_block_mask(
    mask: BlockMask,
    *,
    batch: int = 1,
    heads: int = 1,
    tile_m: int | None = None,
    tile_n: int | None = None,
    schedule: Schedule = ASCENDING,
    backward: bool = True,
) -> BlockSparse:
    """Lists of a BlockMask's blocks for these kernels, on the BlockMask's device.

    batch, heads    where mask_mod reads its sequence or query head although the BlockMask has one list for all: how
                    many there are, so that each gets its own
    tile_m, tile_n  64 or 128, dividing the BlockMask's block size; None: that size where it is one of them, else 128
    Partial tiles that turn out to be empty are dropped, and those that turn out to be full are listed as full. Raises
    ValueError for block sizes that the tiles do not divide. Asks the device for the numbers of blocks.
    """
    sizes = [int(size) for size in mask.BLOCK_SIZE]
    tile_m, tile_n = _tile(tile_m, sizes[0], "tile_m"), _tile(tile_n, sizes[1], "tile_n")
    len_q, len_k = mask.seq_lengths
    shape = shape_of(int(len_q), int(len_k), tile_m, tile_n, mask.kv_indices.device)
    ratio = (sizes[0] // tile_m, sizes[1] // tile_n)
    lists = [BlockList.padded(mask.kv_num_blocks, mask.kv_indices)]
    if mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None:
        lists.append(BlockList.padded(mask.full_kv_num_blocks, mask.full_kv_indices))
    groups = (max(batch, lists[0].batch), max(heads, lists[0].heads))
    kinds = [_tiles_of(spread(one, *groups), ratio, shape) for one in lists]
    partial = kinds[0]
    full = kinds[1] if len(kinds) > 1 else partial[:0]
    some, every, words = _evaluated(mask.mask_mod, partial, shape)
    full = torch.cat((full, partial[every]))
    masked = some & ~every
    partial, words = partial[masked], words[masked]
    by_row = _key(partial, shape, groups[1]).argsort()
    words, slot = shared(words[by_row])
    forward = BlockLists(_list(partial, shape, groups), _list(full, shape, groups))
    slot = slot if len(slot) else slot.new_zeros(1)
    return finished(forward, Bits(words, slot), shape, schedule, backward)


def _tile(given: int | None, size: int, name: str) -> int:
    tile = given or (size if size in (64, 128) else 128)
    if size % tile:
        raise ValueError(f"{name}: needs a divisor of the BlockMask's block size {size}, got {tile}")
    return tile


def _tiles_of(blocks: BlockList, ratio: tuple[int, int], shape: Shape) -> Tensor:
    """Tiles (b, h, m, n) of a list's blocks, int64 (tiles, 4), without those past the ends."""
    e = entries(blocks)
    row, n = e.row[e.valid], blocks.index[e.place[e.valid]].to(torch.int64)
    b, h, m = row // (blocks.heads * blocks.rows), row // blocks.rows % blocks.heads, row % blocks.rows
    inner = [torch.arange(by, device=row.device) for by in ratio]
    m = (m * ratio[0])[:, None, None] + inner[0][:, None]
    n = (n * ratio[1])[:, None, None] + inner[1]
    size = torch.broadcast_shapes(m.shape, n.shape)
    tiles = torch.stack([x.expand(size) for x in (b[:, None, None], h[:, None, None], m, n)], -1).reshape(-1, 4)
    return tiles[(tiles[:, 2] < shape.m_blocks) & (tiles[:, 3] < shape.n_blocks)]


def _evaluated(
    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], tiles: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Properties of each tile: whether mask_mod keeps some pair of it, whether every pair (inside the lengths), and its
    packed bits."""
    mod = mask_mod
    for dims in ((None, None, None, 0), (None, None, 0, None), (0, 0, 0, 0)):
        mod = torch.vmap(mod, in_dims=dims)
    device = tiles.device
    some, every = (torch.zeros(len(tiles), dtype=torch.bool, device=device) for _ in range(2))
    words = torch.zeros((len(tiles), shape.tile_m, shape.tile_n // 32), dtype=torch.int32, device=device)
    for first in range(0, len(tiles), AT_ONCE):
        here = slice(first, first + AT_ONCE)
        b, h, m, n = tiles[here].unbind(1)
        q = m[:, None] * shape.tile_m + torch.arange(shape.tile_m, device=device)
        k = n[:, None] * shape.tile_n + torch.arange(shape.tile_n, device=device)
        there = (q < shape.longest_q)[:, :, None] & (k < shape.longest_k)[:, None, :]
        # Positions past the ends may be more than what a mask_mod can look up.
        kept = mod(b, h, q.clamp(max=shape.longest_q - 1), k.clamp(max=shape.longest_k - 1)).expand(there.shape) & there
        some[here], every[here] = kept.flatten(1).any(1), (kept | ~there).flatten(1).all(1)
        words[here] = pack(kept.contiguous())
    return some, every, words


def _key(tiles: Tensor, shape: Shape, heads: int) -> Tensor:
    """A number of each tile that ascends row by row."""
    b, h, m, n = tiles.unbind(1)
    return ((b * heads + h) * shape.m_blocks + m) * shape.n_blocks + n


def _list(tiles: Tensor, shape: Shape, groups: tuple[int, int]) -> BlockList:
    key = _key(tiles, shape, groups[1]).sort().values
    width = max(shape.n_blocks, 1)
    count = torch.bincount(key // width, minlength=groups[0] * groups[1] * shape.m_blocks)
    return BlockList.csr(count.view(*groups, shape.m_blocks), key % width)
