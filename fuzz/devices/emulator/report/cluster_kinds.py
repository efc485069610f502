"""Findings about clusters of CTAs: the name of each kind, and its sentence. See `kinds.py`."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.devices.emulator.report.seen import Seen
from fuzz.devices.emulator.state import tables as st

CLUSTER_NAMES = {
    st.F_CLUSTER_BARRIER: "barrier.cluster misused",
    st.F_CLUSTER_RANK: "address of no CTA of the cluster",
    st.F_CLUSTER_SPACE: "shared memory of another CTA accessed as .shared::cta",
    st.F_CLUSTER_EXITED: "shared memory of a CTA that has exited",
    st.F_CLUSTER_MBARRIER: "mbarrier of another CTA than the destination",
}
ORDERED, GONE, MULTICAST = range(3)  # values of F_CLUSTER_EXITED: it may have exited; it has; a multicast to it


def _barrier(s: Seen) -> str:
    if s.value == 0:
        return "arrives at the barrier of the cluster again; it has to wait (barrier.cluster.wait) between two arrivals"
    return "waits at the barrier of the cluster without having arrived; a barrier.cluster.arrive is missing"


def _exited(s: Seen) -> str:
    if s.value == MULTICAST:
        return f"issues a copy to several CTAs, one of which has exited: {s.size} bytes at {s.place}"
    if s.value == GONE:
        return f"{s.verb} {s.size} bytes at {s.place}; that CTA has exited, and its shared memory with it"
    return (
        f"{s.verb} {s.place}; nothing makes that CTA wait for this access before it exits: a barrier.cluster, or an "
        "mbarrier that it waits for, is missing"
    )


CLUSTER_SENTENCES: dict[int, Callable[[Seen], str]] = {
    st.F_CLUSTER_BARRIER: _barrier,
    st.F_CLUSTER_RANK: lambda s: f"{s.verb} {s.size} bytes in CTA {s.value} of its cluster, which has no such CTA",
    st.F_CLUSTER_SPACE: lambda s: (
        f"{s.verb} {s.size} bytes at {s.place} with an instruction for the CTA's own (.shared::cta); it needs "
        ".shared::cluster"
    ),
    st.F_CLUSTER_EXITED: _exited,
    st.F_CLUSTER_MBARRIER: lambda s: (
        f"{s.verb} {s.size} bytes and signals the mbarrier at {s.place}; it has to be in the CTA that the data goes to"
    ),
}
