"""The order of pairs of query tiles whose rows get longer, so that clusters without a counter have equally much to do.

Clusters take every C-th pair (NOTE [tiles of a cluster] of forward/tile_scheduler.py). Under a causal mask the pairs of
a head have 2, 4, 6, … blocks of keys: launched from the longest to the shortest, at 8,192 tokens one of 66 clusters
has 1.06 of the mean, and at 16,384 with 16 heads 1.55. Positions laid out as here have 1.0066 and 1.0049, at 32,768
tokens 1.0027.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

OVERHEAD = 1.0  # what a pair costs beside its blocks, in blocks


def pair_positions(pairs: int, heads: int, clusters: int, section: int, device: torch.device) -> Tensor:
    """The pair at each launch position of each head, int32 (heads, pairs) on `device`. heads: of all sequences;
    section: heads whose pairs are launched together, in turn (`Order` of forward/tile_order.py)."""
    laid = _laid_out(pairs, heads, clusters, section, device.type == "cuda")
    return laid.to(device, non_blocking=True)


@cache
def _laid_out(pairs: int, heads: int, clusters: int, section: int, pinned: bool) -> Tensor:
    """The positions on the host. A cached tensor on a device would not be safe to read on another stream, nor in a
    captured graph.

    Launch numbers are laid out in rounds of one for each cluster. A round has the longest pairs that are left of its
    heads, and of these the cluster with the least to do so far has the longest.
    """
    rows, load = np.empty((heads, pairs), np.int32), np.zeros(clusters)
    cost, before = 2.0 * np.arange(pairs) + 2 + OVERHEAD, 0
    for first in range(0, heads, section):
        here = min(section, heads - first)
        left = np.full(here, pairs)
        for begin in range(0, pairs * here, clusters):
            numbers = np.arange(begin, min(begin + clusters, pairs * here))
            for head in range(here):
                own = numbers[numbers % here == head]
                own = own[load[(before + own) % clusters].argsort(kind="stable")]
                taken = left[head] - 1 - np.arange(len(own))
                rows[first + head, own // here] = taken
                load[(before + own) % clusters] += cost[taken]
                left[head] -= len(own)
        before += pairs * here
    laid = torch.from_numpy(rows)
    return laid.pin_memory() if pinned else laid
