# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Clusters: CTAs that run at the same time and reach each other's shared memory."""

from typing import NamedTuple

from cutlass import Int32, cute
from cutlass._mlir.dialects import nvvm


class Cluster(NamedTuple):
    """How many CTAs a cluster has, known when the kernel is built, and the number of this one in it."""

    ctas: int
    rank: Int32 | int


ALONE = Cluster(1, 0)


def cluster_of(ctas: int) -> Cluster:
    """This CTA's cluster. Its rank in a grid of one dim: of the special register ptxas does not take a branch to be
    uniform."""
    return ALONE if ctas == 1 else Cluster(ctas, cute.arch.block_idx()[0] % ctas)


def meet(cluster: Cluster) -> None:
    """All threads of the cluster wait for each other; what they have written is visible to all."""
    if cluster.ctas == 1:
        cute.arch.sync_threads()
    else:
        nvvm.cluster_arrive()
        nvvm.cluster_wait()


def leave(cluster: Cluster) -> None:
    """The last thing that a thread does: no CTA exits before the others have done with its shared memory."""
    if cluster.ctas > 1:
        meet(cluster)
