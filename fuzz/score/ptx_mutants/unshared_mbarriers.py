"""Proof from a kernel's text that threads meet before anything uses an mbarrier: those of the CTA, or of the cluster.

PTX's fence.mbarrier_init makes mbarrier.init visible to the cluster. Inside a CTA bar.sync orders the accesses of all
threads: what comes before one thread's barrier is seen behind every other thread's. So the fence orders nothing that
the barrier does not order, where

- the text says and asks nothing of clusters: no size of one, no rank, no barrier.cluster, mapa or multicast, no pair of
  CTAs. An instruction for shared memory of a cluster then has an address of the CTA itself;
- every mbarrier.init, and the fence, comes before the first bar.sync 0 of its thread, which all threads execute;
- whatever else names an mbarrier, and every bulk copy, comes behind it.

Of CTAs in clusters it is the barrier of the cluster that has to come first: barrier.cluster.arrive, which is a release
of all accesses before it unless it is relaxed, and right behind it barrier.cluster.wait, an acquire. The fence is for
arrivals that are relaxed.

What is an access of an mbarrier is read off the instruction's name: an ordinary access at the address of one is not
seen.
"""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.register_flow import whole_flow

_IN_CLUSTER = re.compile(
    r"\.reqnctapercluster|\.explicitcluster|\.maxclusterrank|\.blocksareclusters|%(n?cluster|is_explicit_cluster)"
    r"|\bbarrier\.cluster\b|\bmapa\b|\bgetctarank\b|\.multicast\b|\.cta_group::2\b|\bclusterlaunchcontrol\b"
)
_MEET = re.compile(r"\s*(bar|barrier(\.cta)?)\.sync(\.aligned)?\s+0;")
_ARRIVE = re.compile(r"\s*barrier\.cluster\.arrive(\.release)?(\.aligned)?;")
_WAIT = re.compile(r"\s*barrier\.cluster\.wait(\.acquire)?(\.aligned)?;")
_INIT = re.compile(r"\s*mbarrier\.init\b")
_FENCE = re.compile(r"\s*fence\.mbarrier_init\b")
_USE = re.compile(r"\bmbarrier\b|\.async\.bulk\b|\b(st|red)\.async\b|\btcgen05\.commit\b")
_ENDS = re.compile(r"\s*(@!?%\w+\s+)?(ret|exit|trap)\b")


def is_seen_at_barrier(text: str, number: int) -> bool:
    """True where the fence.mbarrier_init in line `number` (counted from 1) of a kernel's PTX orders nothing that the
    barrier of the CTA, or of the cluster, does not order, see above; False where that is not known."""
    flow = whole_flow(text)
    if flow is None:
        return False
    meets = _cluster_meets(flow.lines) if _IN_CLUSTER.search(_code(text)) else _cta_meets(flow.lines)
    first = flow.ways(0, meets)  # lines that may run before a thread is at its first barrier
    behind = {after for i in first & meets for j in flow.after(i) for after in flow.ways(j, set())}
    begun = {i for i, line in enumerate(flow.lines) if _INIT.match(line) or _FENCE.match(line)}
    used = {i for i, line in enumerate(_code(text).splitlines()) if i not in begun and _USE.search(line)}
    left = {i for i in first if _ENDS.match(flow.lines[i])}
    return number - 1 in begun and begun <= first - meets - behind and not used & first and not left


def _cta_meets(lines: list[str]) -> set[int]:
    """Lines at which all threads of a CTA meet."""
    return {i for i, line in enumerate(lines) if _MEET.match(line)}


def _cluster_meets(lines: list[str]) -> set[int]:
    """Lines at which all threads of a cluster have met, after an arrival that is a release."""
    return {i for i, line in enumerate(lines) if i and _WAIT.match(line) and _ARRIVE.match(lines[i - 1])}


def _code(text: str) -> str:
    """A kernel's text without comments, line by line."""
    return re.sub(r"//[^\n]*", "", text)
