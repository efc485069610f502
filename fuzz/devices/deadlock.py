"""Deadlock report: why a deterministic backward pass hangs, from its semaphores and from its block lists.

The oracle of the semaphore order predicts the last value of every semaphore for a number of resident CTAs. The number
that a GPU holds is found by trying: it is the one whose predicted semaphores are those that were read. Prediction and
observation confirm each other then; where none agrees, the observed values are reported beside the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracles.dq_visits import FREE, Visits
from oracles.semaphore_order import Outcome, predict

MOST = 12  # semaphores that are named


@dataclass(frozen=True)
class Explanation:
    """resident_ctas: number of resident CTAs for which the prediction agrees with the observation; None: no tried
    number. line: in one line; text: in full."""

    resident_ctas: int | None
    line: str
    text: str


def explain(visits: Visits, seen: Sequence[int], resident: int) -> Explanation:
    """Explains the values `seen` (flat, one per dQ tile) of semaphores that no longer change.

    resident  number of CTAs that the device holds at least at once (its multiprocessors); multiples are tried too
    """
    tried = sorted({min(visits.ctas, resident * times) for times in range(1, 9)} | {visits.ctas})
    tried = [resident_ctas for resident_ctas in tried if resident_ctas]
    outcomes = {resident_ctas: predict(visits, resident_ctas) for resident_ctas in tried}
    for resident_ctas, outcome in outcomes.items():
        if outcome.ends != "always" and list(outcome.semaphores) == list(seen):
            text = f"as predicted from the block lists: {outcome.text}"
            return Explanation(resident_ctas, _line(outcome), text)
    lines = _incomplete(visits, seen)
    line = f"{len(lines)} of {len(set(visits.tile))} dQ tiles lack some of their adds: {lines[0]}" if lines else ""
    predicted = outcomes[tried[-1]].text.partition("\n")[0] if tried else "nothing is launched"
    text = "\n".join([*lines[:MOST], *(["…"] if len(lines) > MOST else [])])
    line = line or "every semaphore has its last value, and yet CTAs wait: some semaphores did not begin at 0"
    return Explanation(None, line, f"{text}\nprediction from the block lists: {predicted}".lstrip())


def _line(outcome: Outcome) -> str:
    lines = outcome.text.splitlines()
    return f"{lines[0]}; {lines[1]}" if len(lines) > 1 else lines[0]


def _incomplete(visits: Visits, seen: Sequence[int]) -> list[str]:
    """One line for each semaphore below its last value: the CTAs that have still to add to its tile, by rank."""
    by_tile: dict[int, list[tuple[int, int, int]]] = {}
    for cta in range(visits.ctas):
        for at in range(visits.begin[cta], visits.begin[cta + 1]):
            by_tile.setdefault(visits.tile[at], []).append((visits.rank[at], visits.owner[cta][2], visits.release[at]))
    lines = []
    for tile, here in sorted(by_tile.items()):
        value, last = seen[tile], sum(release for _, _, release in here)
        if value == last:
            continue
        remaining = sorted((rank, n) for rank, n, _ in here if rank >= value and rank != FREE)
        ctas = ", ".join(f"n_block {n} with rank {rank}" for rank, n in remaining[:6])
        ctas = ctas + (" …" if len(remaining) > 6 else "") if remaining else "no CTA"
        runnable = [n for rank, n in remaining if rank == value]
        next_one = f"the CTA of n_block {runnable[0]} could run" if runnable else f"no remaining CTA has rank {value}"
        semaphore = "semaphore dq[b {}, h {}, m {}]".format(*visits.coordinates(tile))
        lines.append(f"{semaphore} is {value} of {last}; still to add: {ctas}; {next_one}")
    return lines
