"""Native sparse attention in plain PyTorch: boolean matrices and float64, for comparison with kernels.nsa."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 128


@dataclass(frozen=True)
class Setting:
    """The settings of a call, by the names of its arguments."""

    compress_block_size: int = 16
    num_selected_blocks: int = 2
    window_size: int = 40
    causal: bool | str = True
    q_tile_size: int = 64
    num_cmp_selected_blocks: int | None = None
    softmax_scale: float | None = None


def blocks_of(length, size):
    """Which of `length` tokens are in each block: float64 (blocks, length)."""
    token = torch.arange(length)
    return (token[None] // size == torch.arange(-(-length // size))[:, None]).double()


def compress(x, size, weight):
    """x (length, heads, dim) float64 to (blocks, heads, dim)."""
    inside = blocks_of(x.shape[0], size)
    mean = torch.einsum("bl,lhd->bhd", inside / inside.sum(1, keepdim=True), x)
    return mean if weight is None else torch.einsum("bhd,hde->bhe", mean, weight)


def allowed(block, tile, size, s):
    """Whether a tile may choose a block."""
    if s.causal is False:
        return True
    if s.causal == "strict":
        return (block + 1) * size <= tile * s.q_tile_size + 1
    return block * size < (tile + 1) * s.q_tile_size


def mean_query(q, tile, s):
    """The query by which a tile chooses, (heads, dim)."""
    start = tile * s.q_tile_size
    rows = (max(start - s.q_tile_size + 1, 0), start + 1) if s.causal == "strict" else (start, start + s.q_tile_size)
    return q[slice(*rows)].mean(0)


def largest(scores, number):
    """The columns of the largest scores, of equal ones the first, ascending; scores: pairs of (column, score)."""
    return sorted(column for column, _ in sorted(scores, key=lambda pair: (-pair[1], pair[0]))[:number])


def select(q, k_small, s):
    """([head][tile] → blocks, the same of groups or None) of one sequence."""
    length, heads, dim = q.shape
    scale = dim**-0.5 if s.softmax_scale is None else s.softmax_scale
    size, share = s.compress_block_size, heads // k_small.shape[1]
    groups = -(-len(k_small) // GROUP)
    grouped = s.num_cmp_selected_blocks is not None and groups > s.num_cmp_selected_blocks
    chosen, chosen_groups = [], []
    for head in range(heads):
        chosen.append([])
        chosen_groups.append([])
        for tile in range(-(-length // s.q_tile_size)):
            scores = (scale * k_small[:, head // share] @ mean_query(q, tile, s)[head]).tolist()
            may = [j for j in range(len(scores)) if allowed(j, tile, size, s)]
            chosen[-1].append(largest([(j, scores[j]) for j in may], s.num_selected_blocks))
            pairs = []
            for group in range(groups if grouped else 0):
                inside = range(group * GROUP, min((group + 1) * GROUP, len(scores)))
                inside = [j for j in inside if s.causal != "strict" or j in may]
                if inside and (s.causal == "strict" or allowed(group, tile, GROUP * size, s)):
                    pairs.append((group, sum(scores[j] for j in inside) / len(inside)))
            if grouped:
                chosen_groups[-1].append(largest(pairs, s.num_cmp_selected_blocks))
    return chosen, chosen_groups if grouped else None


def masks(length, heads, chosen, groups, s):
    """(compressed, selected, window): bool (heads, length, keys)."""
    size = s.compress_block_size
    row, token = torch.arange(length)[:, None], torch.arange(length)[None]
    block = torch.arange(-(-length // size))[None]
    if s.causal is False:
        small, window = torch.ones(length, block.shape[1], dtype=torch.bool), (token - row).abs() <= s.window_size // 2
    else:
        small = (block + 1) * size <= row + 1 if s.causal == "strict" else block * size <= row
        window = (token <= row) & (token > row - s.window_size)
    small = small.expand(heads, -1, -1).clone()
    picked = torch.zeros(heads, length, length, dtype=torch.bool)
    for head in range(heads):
        for tile, blocks in enumerate(chosen[head]):
            rows = slice(tile * s.q_tile_size, (tile + 1) * s.q_tile_size)
            for j in blocks:
                picked[head, rows, j * size : (j + 1) * size] = True
            if groups is not None:
                small[head, rows] &= torch.isin(block // GROUP, torch.tensor(groups[head][tile]))
    if s.causal is not False:
        picked &= token <= row
    return small, picked, window.expand(heads, -1, -1)


def attend(q, k, v, mask, scale):
    """Softmax attention of (length, heads, dim) where mask (heads, rows, keys) allows; 0 where it allows nothing."""
    share = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(share, 1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    weights = scores.masked_fill(~mask, -1e300).softmax(-1) * mask
    return torch.einsum("hij,jhd->ihd", weights, v)


def sequence(q, k, v, w_k, w_v, w_gate, s, chosen=None, groups=None):
    """(out, blocks, groups) of one sequence, (length, heads, dim) float64; chosen, groups: a frozen selection."""
    length, heads, dim = q.shape
    scale = dim**-0.5 if s.softmax_scale is None else s.softmax_scale
    if not length:
        return q * 0, [[] for _ in range(heads)], None
    k_small, v_small = compress(k, s.compress_block_size, w_k), compress(v, s.compress_block_size, w_v)
    if chosen is None:
        chosen, groups = select(q.detach(), k_small.detach(), s)
    small, picked, window = masks(length, heads, chosen, groups, s)
    parts = [attend(q, k_small, v_small, small, scale), attend(q, k, v, picked, scale), attend(q, k, v, window, scale)]
    if w_gate is None:
        return sum(parts) / 3, chosen, groups
    gates = torch.einsum("ihd,hbd->bih", q, w_gate).sigmoid()
    return sum(gate[..., None] * part for gate, part in zip(gates, parts, strict=True)), chosen, groups
