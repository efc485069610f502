"""Why a deterministic backward pass hangs: the semaphores read out of it, against what its metadata foretells.

The protocol oracle says where every semaphore ends up for a number of resident CTAs. Which number a GPU holds is found
by trying: the one whose foretold semaphores are those that were seen. Then both say the same, and each confirms the
other; where none does, what was seen is told as it is, and that the metadata does not explain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracles.semaphore_order import FREE, Outcome, Visits, predict

MOST = 12  # places that are told


@dataclass(frozen=True)
class Explanation:
    """slots: resident CTAs with which the metadata foretells just what was seen; None: with no number of those tried.
    line: in one line; text: the whole of it."""

    slots: int | None
    line: str
    text: str


def explain(of: Visits, seen: Sequence[int], resident: int) -> Explanation:
    """Explains semaphores `seen` (flat, one per dQ tile) that stand still.

    resident  CTAs that the device holds at least at once (its multiprocessors); multiples of it are tried too
    """
    tried = sorted({min(of.ctas, resident * times) for times in range(1, 9)} | {of.ctas})
    tried = [slots for slots in tried if slots]
    outcomes = {slots: predict(of, slots) for slots in tried}
    for slots, outcome in outcomes.items():
        if outcome.ends != "always" and list(outcome.semaphores) == list(seen):
            return Explanation(slots, _line(outcome), f"as the metadata foretells with {slots} CTAs: {outcome.text}")
    places = _places(of, seen)
    line = f"{len(places)} of {len(set(of.tile))} dQ tiles do not get all their adds: {places[0]}" if places else ""
    foretold = outcomes[tried[-1]].text.partition("\n")[0] if tried else "nothing is launched"
    text = "\n".join([*places[:MOST], *(["…"] if len(places) > MOST else [])])
    line = line or "every semaphore stands at its last value, and yet CTAs wait: some did not begin at 0"
    return Explanation(None, line, f"{text}\nits metadata foretells: {foretold}".lstrip())


def _line(outcome: Outcome) -> str:
    lines = outcome.text.splitlines()
    return f"{lines[0]}; {lines[1]}" if len(lines) > 1 else lines[0]


def _places(of: Visits, seen: Sequence[int]) -> list[str]:
    """For each tile whose semaphore stands below its last value: who has still to add there, by rank."""
    visits: dict[int, list[tuple[int, int, int]]] = {}
    for cta in range(of.ctas):
        for at in range(of.begin[cta], of.begin[cta + 1]):
            visits.setdefault(of.tile[at], []).append((of.rank[at], of.owner[cta][2], of.release[at]))
    told = []
    for tile, here in sorted(visits.items()):
        value, last = seen[tile], sum(release for _, _, release in here)
        if value == last:
            continue
        b, h, m = of.place(tile)
        left = sorted((rank, n) for rank, n, _ in here if rank >= value and rank != FREE)
        who = ", ".join(f"n_block {n} for {rank}" for rank, n in left[:6]) + (" …" if len(left) > 6 else "")
        turn = [n for rank, n in left if rank == value]
        whose = f"it is n_block {turn[0]}'s turn" if turn else f"no n_block has rank {value}"
        told.append(
            f"(batch {b}, head {h}, m_block {m}) stands at {value} of {last}; still to come: {who or 'nobody'}; {whose}"
        )
    return told
