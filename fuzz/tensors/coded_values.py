"""Inputs with exact answers (oracles/exact.py): keys that spell their index, queries that ask for one or for a block.

Key i holds the bits of its index as ±1, ±2, ±4 …; a query holds the signs of the bits of a centre c. Their product says
by how much i xor c differs, so each query ranks all keys by that distance: the nearest that it sees has score 0, any
other is at least GAP below, and a nearer one that the mask hides would outweigh them all. So centres are chosen beside
the mask's edges. With the lowest bits left out, a whole aligned block of keys is equally near.

    one_hot        one key per query, at an edge of the mask; values are digits of the index
    uniform_pow2   a block of which the query sees a power of two; values are small integers
    index_values   the largest such block; values are ±1, and those of a whole block sum to 0
In half of the bfloat16 cases, and in all where query heads share KV heads, some of dO's numbers are so large that the
dtype cannot hold one of them and a small one in a sum, while fp32 can: sums that are rounded on the way lose the small
ones, and large ones that cancel show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from oracles.masks import varies_by_head
from oracles.problem import Problem, mask_tile, sequence_view, shapes
from oracles.reference.backend import uses_numba

MOST_BITS = 15
GAIN = 64.0  # times 2 is the distance of two scores, more than exact.GAP
LARGE = {"bfloat16": 256.0, "float16": 1.0, "float32": 1.0}  # + 1 is not in the dtype; float16: dS would overflow
DIGITS = 251  # a prime; half of it fits every format
COARSE = 64.0  # so that a query's last two numbers stay in float16's range
_ROWS = 1 << 21  # pairs compared at once
ACTIVE = 48  # rows per sequence and head whose gradients are not zero
Bits = Callable[[int, str, int, torch.device | str], Tensor]


def fits(p: Problem) -> bool:
    """True if keys can spell their index in `p`, and scores are what the products make them."""
    bits = _bits(p)
    if p.softcap or not p.scale_value or bits > MOST_BITS or p.dim < bits + 2:
        return False
    return _gain(p) * 4 <= 32768


def coded(p: Problem, seed: int, style: str, device: torch.device | str, random_bits: Bits) -> dict[str, Tensor]:
    """float32 q, k, v, do, bias in the problem's layout, padding zero. Needs `fits(p)`.

    random_bits  (seed, stream, count, device) -> int64 (count,)
    """
    sizes = shapes(p)
    names = ["q", "k", "v"] + ["do"] * p.backward + ["bias"] * (p.bias is not None)
    made = {name: torch.zeros(sizes[name], device=device) for name in names}
    for b in range(p.batch):
        n_q, n_k = p.lengths_q[b], p.lengths_k[b]
        view = {n: sequence_view(p, n, made[n], b) for n in names if n != "bias"}
        noise = {n: random_bits(seed + 7919 * b, n, view[n].numel(), device).view(view[n].shape) for n in view}
        twist = random_bits(seed + b, "needle", p.heads_kv, device) % (1 << _bits(p))  # each head has its own spelling
        index = torch.arange(n_k, device=device)[None, :] ^ twist[:, None]
        view["k"].copy_(_keys(p, index, noise["k"]))
        view["v"].copy_(_values(p, style, index, noise["v"]))
        if p.backward:
            view["do"].copy_(_gradients(style, noise["do"], n_q, LARGE[p.dtype] if seed % 2 or p.group > 1 else 1.0))
        if not n_k:
            continue
        for heads, rows in _pieces(p, b):
            kept, pick = _kept(p, b, heads, rows, device), noise["q"][heads, rows, 0]
            centre, level, off = _asked(kept.flatten(0, 1), pick.flatten(), style)
            spelling = twist.repeat_interleave(p.group)[heads].repeat_interleave(pick.shape[1])
            view["q"][heads, rows] = _queries(p, centre ^ spelling, level, off).view(*pick.shape, p.dim)
    return made


def _kept(p: Problem, b: int, heads: slice, rows: slice, device: torch.device | str) -> Tensor:
    """bool (heads, rows, len_k): what those query heads and rows see."""
    cols, several = (0, p.lengths_k[b]), varies_by_head(p.mask)
    seen = range(heads.start, heads.stop if several else heads.start + 1)
    tiles = [mask_tile(p, b, head, (rows.start, rows.stop), cols, device) for head in seen]
    return torch.stack(tiles).expand(heads.stop - heads.start, rows.stop - rows.start, cols[1])


def _bits(p: Problem) -> int:
    return max(p.len_k - 1, 1).bit_length()


def _gain(p: Problem) -> float:
    return 2.0 ** math.ceil(math.log2(GAIN / abs(p.scale_value)))


def _keys(p: Problem, index: Tensor, noise: Tensor) -> Tensor:
    """(heads, len_k, dim): the bits of each index, two constants, and numbers that no query looks at."""
    bits = _bits(p)
    found = fives(noise)
    place = torch.arange(bits, device=index.device)
    found[..., :bits] = _signs(index, place) * 2.0**place
    found[..., bits], found[..., bits + 1] = 256 * COARSE, COARSE
    return found


def _queries(p: Problem, centre: Tensor, level: Tensor, off: Tensor) -> Tensor:
    """(rows, dim): score 0 for the keys at distance `off` from the centre, the lowest `level` bits left out."""
    bits = _bits(p)
    found = torch.zeros((len(centre), p.dim), device=centre.device)
    place = torch.arange(bits, device=centre.device)
    found[:, :bits] = torch.where(place >= level[:, None], _signs(centre, place), 0.0)
    constant = 2 * off - (1 << bits) + (1 << level)
    coarse = torch.div(constant + 128, 256, rounding_mode="floor")
    found[:, bits] = coarse / COARSE
    found[:, bits + 1] = (constant - 256 * coarse) / COARSE
    return found * math.copysign(_gain(p), p.scale_value)


def _values(p: Problem, style: str, index: Tensor, noise: Tensor) -> Tensor:
    """(heads, len_k, dim_v): the heads differ even where their spelling happens not to."""
    dims, head = torch.arange(noise.shape[-1], device=index.device), torch.arange(len(index), device=index.device)
    head = head[:, None, None]
    if style == "one_hot":
        low, high = index[..., None] * (2 * dims + 1), (index // DIGITS)[..., None] * (dims * dims)
        return ((low + high + 17 * dims + 29 * head) % DIGITS - DIGITS // 2).float()
    if style == "uniform_pow2":
        return fives(noise)
    bits = _bits(p)
    spread = (dims * 0x9E3779B1 >> 7) % ((1 << bits) - 1) + 1
    chosen = torch.where(dims < bits, 1 << dims.clamp(max=bits), spread)
    found = index[..., None] & chosen
    for shift in (8, 4, 2, 1):
        found = found ^ (found >> shift)
    return (1.0 - 2.0 * (found & 1)) * (1 + head % 3)


def _gradients(style: str, noise: Tensor, n_q: int, large: float) -> Tensor:
    """-1, 0 and 1, a third of them `large` times that; but for one_hot in two places of a few rows only, so that sums
    stay exact."""
    found = _threes(noise)
    if large > 1:
        found = torch.where(_threes(noise >> 8) < 0, found * large, found)
    if style == "one_hot" or not noise.numel():
        return found
    here = torch.arange(noise.shape[-1], device=noise.device)
    first = noise[..., :1]
    near = (here == first % noise.shape[-1]) | (here == (first >> 20) % noise.shape[-1])
    active = (first >> 40) % max(n_q, 1) < ACTIVE
    return torch.where(near & active, torch.where(found == 0, 1.0, found), 0.0)


def _asked(kept: Tensor, pick: Tensor, style: str) -> tuple[Tensor, Tensor, Tensor]:
    """Centre, level and distance of each row: int64 (rows,) each; zeros where a row sees no key.

    kept  bool (rows, len_k);  pick  random int64 (rows,)
    """
    if style == "one_hot":
        centre = _edge(kept, pick)
        index = torch.arange(kept.shape[1], device=kept.device)
        away = torch.where(kept, index[None, :] ^ centre[:, None], 1 << 40).amin(1)
        seen = kept.any(1)
        return torch.where(seen, centre, 0), torch.zeros_like(centre), torch.where(seen, away, 0)
    return _block(kept, pick, largest=style == "index_values")


def _edge(kept: Tensor, pick: Tensor) -> Tensor:
    """A key at an edge of what the row sees: the last one on this side or the first on the other; the ends count."""
    edge = torch.zeros_like(kept)
    change = kept[:, 1:] != kept[:, :-1]
    edge[:, 1:] |= change
    edge[:, :-1] |= change
    edge[:, 0] = True
    edge[:, -1] = True
    chosen = pick % edge.sum(1)
    return (edge.cumsum(1) > chosen[:, None]).int().argmax(1)


def _block(kept: Tensor, pick: Tensor, *, largest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """An aligned block of 2 ** level keys of which the row sees a power of two: the largest, or any level's."""
    if uses_numba(kept):
        from oracles.reference import numba_loops

        centre, level = torch.empty_like(pick), torch.empty_like(pick)
        given = kept.contiguous().numpy(), pick.contiguous().numpy()
        numba_loops.blocks(*given, largest, centre.numpy(), level.numpy())
        return centre, level, torch.zeros_like(pick)
    rows, n_k = kept.shape
    bits = max(n_k - 1, 1).bit_length()
    centre, level = torch.zeros_like(pick), torch.zeros_like(pick)
    count = torch.nn.functional.pad(kept, (0, (1 << bits) - n_k)).long()
    for at in range(bits + 1):
        if at:
            count = count.view(rows, -1, 2).sum(-1)
        good = (count > 0) & (count & (count - 1) == 0)
        chosen = pick % good.sum(1).clamp(min=1)
        block = (good.cumsum(1) > chosen[:, None]).int().argmax(1)
        take = good.any(1) & (torch.ones_like(pick, dtype=torch.bool) if largest or not at else (pick >> at) % 3 > 0)
        centre, level = torch.where(take, block << at, centre), torch.where(take, at, level)
    return centre, level, torch.zeros_like(pick)


def fives(noise: Tensor) -> Tensor:
    """float32 of random int64: -2 to 2."""
    if not uses_numba(noise):
        return (noise % 5 - 2).float()
    from oracles.reference import numba_loops

    found = torch.empty(noise.shape)
    numba_loops.fives(noise.reshape(-1).numpy(), found.view(-1).numpy())
    return found


def _threes(noise: Tensor) -> Tensor:
    """float32 of random int64: -1, 0 or 1."""
    if not uses_numba(noise):
        return (noise % 3 - 1).float()
    from oracles.reference import numba_loops

    found = torch.empty(noise.shape)
    numba_loops.threes(noise.reshape(-1).numpy(), found.view(-1).numpy())
    return found


def _signs(index: Tensor, place: Tensor) -> Tensor:
    """1 where a bit is set, else -1: (…, bits)."""
    return ((index[..., None] >> place) & 1).float() * 2 - 1


def _pieces(p: Problem, b: int) -> Iterator[tuple[slice, slice]]:
    """Query heads and rows in chunks: all heads of a small problem at once, else one head's rows."""
    length = p.lengths_q[b]
    step = max(_ROWS // max(p.lengths_k[b], 1), 1)
    heads = min(max(step // max(length, 1), 1), p.heads_q)
    for head in range(0, p.heads_q, heads):
        for start in range(0, length, step):
            yield slice(head, min(head + heads, p.heads_q)), slice(start, min(start + step, length))
