"""The grid of a launch: its clusters, and the order in which they become resident."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.ptx import Kernel
from fuzz.devices.emulator.state.tables import MOST_CTAS

Sizes = tuple[int, int, int]


def cluster_of(kernel: Kernel, launch: Launch) -> tuple[Sizes, bool]:
    """(CTAs of a cluster, is that said by the launch or the kernel). Raises ValueError for a cluster that the kernel or
    the grid does not allow."""
    if kernel.grid_of_clusters:
        raise Unimplemented(f"kernel {kernel.name} counts its grid in clusters (.blocksareclusters)")
    given, wanted = launch.cluster, kernel.cluster
    if given is not None and wanted is not None and given != wanted:
        raise ValueError(f"cluster: kernel {kernel.name} is compiled for clusters of {wanted} CTAs, not {given}")
    if given is None and wanted is None and kernel.explicit_cluster:
        raise ValueError(f"cluster: kernel {kernel.name} has to be launched with the size of a cluster")
    cluster = given or wanted or (1, 1, 1)
    ctas = math.prod(cluster)
    most = min(kernel.max_cluster or MOST_CTAS, MOST_CTAS)
    if not 1 <= ctas <= most or min(cluster) < 1:
        raise ValueError(f"cluster: {cluster} is {ctas} CTAs; it has 1 to {most}")
    if any(size % by for size, by in zip(launch.grid, cluster, strict=True)):
        raise ValueError(f"grid: {launch.grid} is no multiple of the cluster of {cluster} CTAs")
    return cluster, given is not None or wanted is not None


def dispatch_order(
    config: LaunchConfig, grid: Sizes, only: Sequence[int] | None, cluster: Sizes = (1, 1, 1)
) -> np.ndarray:
    """Linear indices of the CTAs in the order in which they become resident, those of a cluster together and by rank.
    only: the CTAs to run, and those of their clusters. Raises ValueError where one is not in the grid."""
    total = math.prod(grid)
    if only is not None:
        for i in only:
            if not 0 <= i < total:
                raise ValueError(f"only: CTA {i} is not in the grid of {total}")
    clusters: Sequence[int]
    if only is None:
        clusters = range(total // math.prod(cluster))
    else:
        clusters = list(dict.fromkeys(_cluster_with(i, grid, cluster) for i in only))
    if config.dispatch == "reversed":
        clusters = list(reversed(clusters))
    elif config.dispatch == "permuted":
        clusters = list(clusters)
        random.Random(config.seed).shuffle(clusters)
    if cluster == (1, 1, 1):
        return np.array(clusters, dtype=np.int64)
    return _ctas(np.array(clusters, dtype=np.int64), grid, cluster).reshape(-1)


def _cluster_with(cta: int, grid: Sizes, cluster: Sizes) -> int:
    """Linear index of the cluster that a CTA belongs to."""
    x, y, z = cta % grid[0], cta // grid[0] % grid[1], cta // (grid[0] * grid[1])
    wide, high = grid[0] // cluster[0], grid[1] // cluster[1]
    return x // cluster[0] + wide * (y // cluster[1] + high * (z // cluster[2]))


def _ctas(clusters: np.ndarray, grid: Sizes, cluster: Sizes) -> np.ndarray:
    """Linear indices (clusters, ranks) of the CTAs of clusters."""
    wide, high = grid[0] // cluster[0], grid[1] // cluster[1]
    at = clusters[:, None]
    rank = np.arange(math.prod(cluster))[None, :]
    x = at % wide * cluster[0] + rank % cluster[0]
    y = at // wide % high * cluster[1] + rank // cluster[0] % cluster[1]
    z = at // (wide * high) * cluster[2] + rank // (cluster[0] * cluster[1])
    return x + grid[0] * (y + grid[1] * z)
