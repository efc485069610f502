"""Block lists the slow way: Python loops over a dense token mask, sharing nothing with the kernels' metadata."""

from itertools import product

import torch


def classified(mask, lengths_q, lengths_k, tile_m, tile_n):
    """{(b, h, m, n): 'F' or 'M'} of a bool mask (batch, heads, len_q, len_k), from its tokens."""
    kinds = {}
    batch, heads, longest_q, longest_k = mask.shape
    for b, h in product(range(batch), range(heads)):
        len_q, len_k = lengths_q[b % len(lengths_q)], lengths_k[b % len(lengths_k)]
        for m, n in product(range(-(-longest_q // tile_m)), range(-(-longest_k // tile_n))):
            rows = slice(m * tile_m, min((m + 1) * tile_m, len_q))
            cols = slice(n * tile_n, min((n + 1) * tile_n, len_k))
            tile = mask[b, h, rows, cols]
            if tile.numel() and tile.any():
                kinds[b, h, m, n] = "F" if tile.all() else "M"
    return kinds


def listed(lists, backward=False):
    """The same from BlockLists, duplicates refused."""
    kinds = {}
    for kind, blocks in (("M", lists.partial), ("F", lists.full)):
        for b, h, row in product(*(range(size) for size in blocks.count.shape)):
            begin, count = int(blocks.begin[b, h, row]), int(blocks.count[b, h, row])
            for col in blocks.index[begin : begin + count].tolist():
                at = (b, h, col, row) if backward else (b, h, row, col)
                assert at not in kinds, f"twice: {at}"
                kinds[at] = kind
    return kinds


def masks_of(blocks, which="forward"):
    """{(b, h, m, n): packed mask} of the partial blocks, read through the slots of one direction."""
    lists = getattr(blocks, which)
    slot = blocks.mask.slot if which == "forward" else blocks.mask.slot_backward
    found = {}
    for b, h, row in product(*(range(size) for size in lists.partial.count.shape)):
        begin, count = int(lists.partial.begin[b, h, row]), int(lists.partial.count[b, h, row])
        for place in range(begin, begin + count):
            col = int(lists.partial.index[place])
            at = (b, h, row, col) if which == "forward" else (b, h, col, row)
            found[at] = blocks.mask.words[int(slot[place])]
    return found


def contributors(kinds, order):
    """{(b, h, m, n): rank} where order[p] is the n block launched at position p (of every sequence and head)."""
    position = {n: p for p, n in enumerate(order)}
    ranks = {}
    tiles = {}
    for b, h, m, n in kinds:
        tiles.setdefault((b, h, m), []).append(n)
    for (b, h, m), blocks in tiles.items():
        for rank, n in enumerate(sorted(blocks, key=position.__getitem__)):
            ranks[b, h, m, n] = rank
    return ranks


def ranks_of(blocks):
    """{(b, h, m, n): rank} as stored beside the backward lists."""
    found = {}
    for lists, order in ((blocks.backward.partial, blocks.order.partial), (blocks.backward.full, blocks.order.full)):
        assert order.shape == lists.index.shape and order.dtype == torch.int32
        for b, h, n in product(*(range(size) for size in lists.count.shape)):
            begin, count = int(lists.begin[b, h, n]), int(lists.count[b, h, n])
            for place in range(begin, begin + count):
                found[b, h, int(lists.index[place]), n] = int(order[place])
    return found
